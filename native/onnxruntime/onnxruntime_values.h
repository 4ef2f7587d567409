// Values of a model in ONNX Runtime: tensors, text, sequences, maps.
#ifndef COLLAGE_ONNXRUNTIME_VALUES_H_
#define COLLAGE_ONNXRUNTIME_VALUES_H_

#include <memory>
#include <string>
#include <vector>

#include "core/original_model.h"
#include "onnxruntime/onnxruntime_session.h"

namespace collage {

using OwnedValue = std::unique_ptr<ort::Value, ort::ReleaseValue::Type>;

// The memory of a tensor allocated by ONNX Runtime; it returns to the arena with the tensor.
class ReturnedMemory {
 public:
  ReturnedMemory(const OnnxRuntime& runtime, ort::Value* value)
      : runtime_(&runtime), value_(value) {}

  void AllocData(DLTensor* tensor) {
    runtime_->Call<ort::GetTensorMutableData>(value_, &tensor->data);
  }
  void FreeData(DLTensor*) { runtime_->Function<ort::ReleaseValue>()(value_); }

 private:
  const OnnxRuntime* runtime_;
  ort::Value* value_;
};

// The shape and the element type of a tensor.
struct TensorFacts {
  std::vector<std::int64_t> shape;
  int element = 0;
};
TensorFacts FactsOf(const OnnxRuntime& runtime, const ort::Value* value);

// An input of a session.
struct InputType {
  std::string name;
  int element = 0;  // of a tensor; 0 for other types, and for optional ones
};

// `value` in ONNX Runtime. A tensor's memory stays the caller's, who keeps it until the end of the run.
OwnedValue ToOnnxRuntime(const OnnxRuntime& runtime, const ModelValue& value,
                         const InputType& input);

// The value, which the result owns.
ModelValue FromOnnxRuntime(const OnnxRuntime& runtime, OwnedValue value);

}  // namespace collage

#endif  // COLLAGE_ONNXRUNTIME_VALUES_H_
