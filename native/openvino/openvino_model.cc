// An original model in OpenVINO, for inputs of any shape. Entries of the settings are those of openvino_api.h, and
//   inputs   [index, ...]: the model's input for each value; default: in order
//   outputs  [index, ...]: the model's output for each result; default: in order
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/host_tensor.h"
#include "core/original_model.h"
#include "openvino/openvino_api.h"

namespace collage {
namespace {

namespace ffi = tvm::ffi;

using OwnedTensor = std::unique_ptr<ov_tensor_t, decltype(&ov_tensor_free)>;

class OpenVinoOriginal : public OriginalModel {
 public:
  OpenVinoOriginal(const KernelSpec& settings, const ModelSource& source)
      : runtime_(OpenVino::Get()),
        model_(runtime_.Compile(settings, runtime_.Read(source.bytes).get())),
        request_(runtime_.MakeRequest(model_.get())) {
    std::size_t inputs = 0, outputs = 0;
    runtime_.Check(runtime_.ov_compiled_model_inputs_size(model_.get(), &inputs));
    runtime_.Check(runtime_.ov_compiled_model_outputs_size(model_.get(), &outputs));
    inputs_ = Places(*settings.blob, "inputs", inputs);
    outputs_ = Places(*settings.blob, "outputs", outputs);
    if (inputs_.size() != inputs) {
      TVM_FFI_THROW(ValueError) << "the model has " << inputs << " inputs, not " << inputs_.size();
    }
  }

  ModelValues Run(const ModelValues& inputs) final {
    if (inputs.size() != inputs_.size()) {
      TVM_FFI_THROW(ValueError) << "the model has " << inputs_.size() << " inputs, not "
                                << inputs.size();
    }
    std::vector<OwnedTensor> wrapped;  // until the end of the run
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      std::string name = std::to_string(i);
      ffi::Tensor tensor = TensorOf(inputs[static_cast<std::int64_t>(i)], name);
      wrapped.push_back(Wrapped(*tensor.GetDLTensorPtr()));
      runtime_.Check(runtime_.ov_infer_request_set_input_tensor_by_index(request_.get(), inputs_[i],
                                                                         wrapped.back().get()));
    }
    runtime_.Check(runtime_.ov_infer_request_infer(request_.get()));
    ModelValues results;
    for (std::size_t place : outputs_) results.push_back(Copied(place));
    return results;
  }

 private:
  static std::vector<std::size_t> Places(const Blob& blob, const char* entry, std::size_t count) {
    std::vector<std::size_t> places;
    for (int place : blob.GetSizes(entry)) {
      places.push_back(static_cast<std::size_t>(place));
      if (places.back() >= count) {
        TVM_FFI_THROW(ValueError) << "the model has no place " << place << " among its " << entry;
      }
    }
    for (std::size_t i = 0; places.size() < count && i < count && blob.GetSizes(entry).empty();
         ++i) {
      places.push_back(i);
    }
    return places;
  }

  OwnedTensor Wrapped(const DLTensor& tensor) const {
    std::vector<std::int64_t> extents(tensor.shape, tensor.shape + tensor.ndim);
    ov_shape_t shape{static_cast<std::int64_t>(extents.size()), extents.data()};
    ov_tensor_t* wrapped = nullptr;
    runtime_.Check(runtime_.ov_tensor_create_from_host_ptr(OpenVinoType(tensor.dtype), shape,
                                                           DataOf(&tensor), &wrapped));
    return {wrapped, runtime_.ov_tensor_free};
  }

  // The request's own memory is overwritten by the next run.
  ModelValue Copied(std::size_t place) const {
    ov_tensor_t* raw = nullptr;
    runtime_.Check(
        runtime_.ov_infer_request_get_output_tensor_by_index(request_.get(), place, &raw));
    OwnedTensor tensor(raw, runtime_.ov_tensor_free);
    ov_element_type_e element{};
    runtime_.Check(runtime_.ov_tensor_get_element_type(raw, &element));
    ov_shape_t shape{};
    runtime_.Check(runtime_.ov_tensor_get_shape(raw, &shape));
    std::vector<std::int64_t> extents(shape.dims, shape.dims + shape.rank);
    runtime_.Check(runtime_.ov_shape_free(&shape));
    ffi::Tensor copy =
        MakeTensor(ffi::ShapeView(extents.data(), extents.size()), TypeOfOpenVino(element));
    void* data = nullptr;
    std::size_t size = ffi::GetDataSize(*copy.GetDLTensorPtr());
    if (size != 0) {
      runtime_.Check(runtime_.ov_tensor_data(raw, &data));
      std::memcpy(copy.data_ptr(), data, size);
    }
    return copy;
  }

  const OpenVino& runtime_;
  OpenVinoCompiled model_;
  OpenVinoRequest request_;
  std::vector<std::size_t> inputs_;   // of the values among the model's inputs
  std::vector<std::size_t> outputs_;  // of the results among the model's outputs
};

const RegisterFramework kRegistered("openvino", [](const KernelSpec& settings,
                                                   const ModelSource& source) {
  return std::unique_ptr<OriginalModel>(new OpenVinoOriginal(settings, source));
});

}  // namespace
}  // namespace collage
