// Regions in ONNX Runtime on the CPU. Blob: tensor 0 is an ONNX model (bytes); header entries
// are those of SessionOptions and OnnxSession, and
//   allocates  1: called with inputs only; returns its outputs, whose shapes may depend on data
#include <algorithm>
#include <memory>
#include <vector>

#include "core/kernel.h"
#include "onnxruntime/onnxruntime_session.h"
#include "onnxruntime/onnxruntime_values.h"

namespace collage {
namespace {

class OnnxRuntimeKernel : public Kernel {
 public:
  explicit OnnxRuntimeKernel(const KernelSpec& spec)
      : runtime_(OnnxRuntime::Get(spec.threads)),
        session_(runtime_, *spec.blob, SessionOptions(runtime_, *spec.blob, spec.threads),
                 runtime_.memory()),
        allocates_(spec.blob->GetInt("allocates", 0) != 0) {}

  void Run(DLTensor* const* args, int count) final {
    session_.Bind(args, count, session_.size());
    session_.Run();
  }

  bool Allocates() const final { return allocates_; }

  std::vector<tvm::ffi::Tensor> RunAllocating(DLTensor* const* inputs, int count) final {
    session_.Bind(inputs, count, session_.inputs());
    std::vector<ort::Value*>& values = session_.values();
    std::fill(values.begin() + count, values.end(), nullptr);
    session_.Run();
    std::vector<tvm::ffi::Tensor> results;
    try {
      for (std::size_t i = session_.inputs(); i < values.size(); ++i) {
        results.push_back(Returned(values[i]));
        values[i] = nullptr;  // the tensor owns it
      }
    } catch (...) {
      for (std::size_t i = session_.inputs(); i < values.size(); ++i) {
        if (values[i] != nullptr) runtime_.Function<ort::ReleaseValue>()(values[i]);
      }
      throw;
    }
    return results;
  }

 private:
  tvm::ffi::Tensor Returned(ort::Value* value) const {
    int is_tensor = 0;
    runtime_.Call<ort::IsTensor>(value, &is_tensor);
    if (!is_tensor) TVM_FFI_THROW(TypeError) << "onnxruntime returned a value that is no tensor";
    TensorFacts facts = FactsOf(runtime_, value);
    return tvm::ffi::Tensor::FromNDAlloc(
        ReturnedMemory(runtime_, value),
        tvm::ffi::ShapeView(facts.shape.data(), facts.shape.size()), TensorType(facts.element),
        DLDevice{kDLCPU, 0});
  }

  const OnnxRuntime& runtime_;
  OnnxSession session_;
  const bool allocates_;
};

const RegisterKernel kRegistered("onnxruntime", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new OnnxRuntimeKernel(spec));
});

}  // namespace
}  // namespace collage
