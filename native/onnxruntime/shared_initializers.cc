#include "onnxruntime/shared_initializers.h"

#include <mutex>
#include <string_view>
#include <utility>

#include "onnxruntime/initializers.h"

namespace collage {
namespace {

std::shared_ptr<ort::PackedWeights> CommonPackedWeights(const OnnxRuntime& runtime) {
  static std::mutex mutex;
  static auto* common = new std::weak_ptr<ort::PackedWeights>();
  std::lock_guard<std::mutex> lock(mutex);
  if (std::shared_ptr<ort::PackedWeights> packed = common->lock()) return packed;
  ort::PackedWeights* created = nullptr;
  runtime.Call<ort::CreatePackedWeights>(&created);
  std::shared_ptr<ort::PackedWeights> packed(created,
                                             runtime.Function<ort::ReleasePackedWeights>());
  *common = packed;
  return packed;
}

}  // namespace

SharedInitializers::SharedInitializers(const OnnxRuntime& runtime, const Blob& blob,
                                       const SessionOptions& options) {
  if (blob.tensors().empty() || !blob.has_shared()) return;
  const TensorView& model = blob.tensors()[0];
  for (const Initializer& initializer :
       ReadInitializers({static_cast<const char*>(model.data), model.nbytes})) {
    const SharedWeight* weight = blob.FindShared(initializer.data);
    if (weight == nullptr) continue;
    // ONNX Runtime reads it only; the type of the C function is not const.
    ort::Value* value = nullptr;
    runtime.Call<ort::CreateTensorWithData>(
        runtime.memory(), static_cast<void*>(const_cast<char*>(weight->data())), weight->size(),
        initializer.shape.data(), initializer.shape.size(), initializer.element, &value);
    values_.emplace_back(value, runtime.Function<ort::ReleaseValue>());
    weights_.push_back(*weight);
    runtime.Call<ort::AddInitializer>(options.get(), initializer.name.c_str(), value);
  }
  if (!values_.empty()) packed_ = CommonPackedWeights(runtime);
}

}  // namespace collage
