// Initializers of a kernel's model that are shared weights: sessions read one memory, and keep what ONNX Runtime packs
// from it in one container.
#ifndef COLLAGE_SHARED_INITIALIZERS_H_
#define COLLAGE_SHARED_INITIALIZERS_H_

#include <memory>
#include <vector>

#include "core/blob.h"
#include "onnxruntime/onnxruntime_session.h"

namespace collage {

// Lives longer than the session.
class SharedInitializers {
 public:
  // Adds the shared weights of tensor 0 of the blob, an ONNX model, to the options of its session.
  SharedInitializers(const OnnxRuntime& runtime, const Blob& blob, const SessionOptions& options);

  bool empty() const { return values_.empty(); }

  // Packed weights of all sessions in the process; they are released with the last of these sessions.
  ort::PackedWeights* packed() const { return packed_.get(); }

 private:
  using OwnedValue = std::unique_ptr<ort::Value, ort::ReleaseValue::Type>;

  std::shared_ptr<ort::PackedWeights> packed_;
  std::vector<SharedWeight> weights_;
  std::vector<OwnedValue> values_;
};

}  // namespace collage

#endif  // COLLAGE_SHARED_INITIALIZERS_H_
