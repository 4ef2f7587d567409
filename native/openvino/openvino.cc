// Regions in OpenVINO on the CPU. Blob: tensor 0 is an ONNX model (bytes); header entries are those of openvino_api.h,
// and
//   shapes  [rank, extents..., rank, extents..., ...]: shapes for the model's inputs
//   inputs  [index, ...]: the model's input for each input of the kernel; default: in order
//
// OpenVINO reads the ONNX bytes itself. A kernel has one inference request. Tensors are wrapped, never copied; a
// wrapper is kept as long as the executable passes the same memory.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/kernel.h"
#include "core/library.h"
#include "openvino/openvino_api.h"

namespace collage {
namespace {

// What a parameter of the request is bound to; bound anew only when memory, dtype or shape changes.
class Binding {
 public:
  bool Matches(const DLTensor* tensor) const {
    return tensor_ != nullptr && DataOf(tensor) == data_ && IsSame(tensor->dtype, dtype_) &&
           static_cast<std::size_t>(tensor->ndim) == shape_.size() &&
           std::memcmp(shape_.data(), tensor->shape, shape_.size() * sizeof(std::int64_t)) == 0;
  }

  const ov_tensor_t* Wrap(const OpenVino& runtime, const DLTensor* tensor) {
    tensor_ = nullptr;
    data_ = DataOf(tensor);
    dtype_ = tensor->dtype;
    shape_.assign(tensor->shape, tensor->shape + tensor->ndim);
    ov_shape_t shape{static_cast<std::int64_t>(shape_.size()), shape_.data()};
    ov_tensor_t* wrapped = nullptr;
    runtime.Check(runtime.ov_tensor_create_from_host_ptr(OpenVinoType(tensor->dtype), shape, data_,
                                                         &wrapped));
    tensor_ = {wrapped, runtime.ov_tensor_free};
    return wrapped;
  }

  void Forget() { tensor_ = nullptr; }

 private:
  std::unique_ptr<ov_tensor_t, decltype(&ov_tensor_free)> tensor_{nullptr, nullptr};
  void* data_ = nullptr;
  DLDataType dtype_{};
  std::vector<std::int64_t> shape_;
};

// Shapes in OpenVINO's form, which own memory.
class PartialShapes {
 public:
  explicit PartialShapes(const OpenVino& runtime) : runtime_(runtime) {}
  PartialShapes(const PartialShapes&) = delete;
  PartialShapes& operator=(const PartialShapes&) = delete;
  ~PartialShapes() {
    for (ov_partial_shape_t& shape : shapes_) runtime_.ov_partial_shape_free(&shape);
  }

  void Add(std::vector<std::int64_t>* extents) {
    ov_shape_t shape{static_cast<std::int64_t>(extents->size()), extents->data()};
    ov_partial_shape_t partial_shape{};
    runtime_.Check(runtime_.ov_shape_to_partial_shape(shape, &partial_shape));
    shapes_.push_back(partial_shape);
  }

  const ov_partial_shape_t* data() const { return shapes_.data(); }

 private:
  const OpenVino& runtime_;
  std::vector<ov_partial_shape_t> shapes_;
};

class OpenVinoKernel : public Kernel {
 public:
  explicit OpenVinoKernel(const KernelSpec& spec)
      : runtime_(OpenVino::Get()),
        model_(nullptr, runtime_.ov_compiled_model_free),
        request_(nullptr, runtime_.ov_infer_request_free) {
    if (spec.blob->tensors().empty()) TVM_FFI_THROW(ValueError) << "the blob holds no ONNX model";
    Compile(spec);
    request_ = runtime_.MakeRequest(model_.get());
    std::size_t outputs = 0;
    runtime_.Check(runtime_.ov_compiled_model_inputs_size(model_.get(), &inputs_));
    runtime_.Check(runtime_.ov_compiled_model_outputs_size(model_.get(), &outputs));
    bindings_.resize(inputs_ + outputs);
    places_ = spec.blob->GetSizes("inputs");
    if (places_.empty()) {
      for (std::size_t i = 0; i < inputs_; ++i) places_.push_back(static_cast<int>(i));
    }
    if (places_.size() != inputs_) {
      TVM_FFI_THROW(ValueError) << "openvino kernel: the model has " << inputs_ << " inputs, not "
                                << places_.size();
    }
    for (int place : places_) {
      if (static_cast<std::size_t>(place) >= inputs_) {
        TVM_FFI_THROW(ValueError) << "openvino kernel: the model has no input " << place;
      }
    }
  }

  void Run(DLTensor* const* args, int count) final {
    if (static_cast<std::size_t>(count) != bindings_.size()) {
      TVM_FFI_THROW(ValueError) << "openvino kernel: expected " << bindings_.size()
                                << " tensors, got " << count;
    }
    for (std::size_t i = 0; i < bindings_.size(); ++i) {
      if (!bindings_[i].Matches(args[i])) Bind(i, args[i]);
    }
    runtime_.Check(runtime_.ov_infer_request_infer(request_.get()));
  }

 private:
  void Compile(const KernelSpec& spec) {
    const TensorView& bytes = spec.blob->tensors()[0];
    OpenVinoModel model = runtime_.Read({static_cast<const char*>(bytes.data), bytes.nbytes});
    Reshape(*spec.blob, model.get());
    model_ = runtime_.Compile(spec, model.get());
  }

  // Gives the inputs of the model the shapes that the blob names for them.
  void Reshape(const Blob& blob, ov_model_t* model) const {
    std::vector<int> flat = blob.GetSizes("shapes");
    if (flat.empty()) return;
    std::vector<std::size_t> ports;
    PartialShapes shapes(runtime_);
    for (std::size_t at = 0; at < flat.size();) {
      std::size_t rank = static_cast<std::size_t>(flat[at++]);
      if (rank > flat.size() - at) TVM_FFI_THROW(ValueError) << "the blob's shapes are truncated";
      std::vector<std::int64_t> extents(flat.data() + at, flat.data() + at + rank);
      at += rank;
      ports.push_back(ports.size());
      shapes.Add(&extents);
    }
    runtime_.Check(runtime_.ov_model_reshape_by_port_indexes(model, ports.data(), shapes.data(),
                                                             ports.size()));
  }

  // A refused tensor leaves the binding empty, so that the next call does not take it for bound.
  void Bind(std::size_t position, const DLTensor* tensor) {
    bool input = position < inputs_;
    auto set = input ? runtime_.ov_infer_request_set_input_tensor_by_index
                     : runtime_.ov_infer_request_set_output_tensor_by_index;
    const ov_tensor_t* wrapped = bindings_[position].Wrap(runtime_, tensor);
    std::size_t place = input ? static_cast<std::size_t>(places_[position]) : position - inputs_;
    ov_status_e status = set(request_.get(), place, wrapped);
    if (status != ov_status_e::OK) bindings_[position].Forget();
    runtime_.Check(status);
  }

  const OpenVino& runtime_;
  OpenVinoCompiled model_;
  OpenVinoRequest request_;
  std::size_t inputs_ = 0;
  std::vector<int> places_;        // of the kernel's inputs among the model's
  std::vector<Binding> bindings_;  // inputs, then outputs
};

const RegisterKernel kRegistered("openvino", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new OpenVinoKernel(spec));
});

}  // namespace
}  // namespace collage
