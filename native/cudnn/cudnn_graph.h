// The region of a blob as operation graphs of cuDNN: what the blob says, translated to descriptors one by one.
//
// A blob's header describes a region:
//   values   a list of {role, dtype, shape, strides, place, number}; a value is known by its number in the list
//     role   "input" or "output": argument number `place` of the kernel, "constant": tensor number `place` of the
//            blob, "buffer": memory of the kernel's own, "virtual": never in memory, "number": a scalar, `number`
//   graphs   a list of {rank, operations}, run one after the other, or {from, to}: a copy to other strides, which no
//            operation graph can say; an operation is {op, ...}:
//     convolution  x, w, y, pads_before, pads_after, strides, dilations
//     matmul       a, b, y
//     pointwise    mode, x, y, and b for two operands; upper, beta, alpha: numbers of the mode
//     reduction    mode ("max", "sum"), x, y
//     norm         mode ("layer", "rms", "instance"), x, scale, bias, epsilon, y
//   where a value that an operation does not have is left out or -1. Sums are in float32.
#ifndef COLLAGE_CUDNN_GRAPH_H_
#define COLLAGE_CUDNN_GRAPH_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/blob.h"
#include "cudnn/cudnn_graph_api.h"
#include "cudnn/cudnn_library.h"

namespace collage {
namespace cudnn {

// A descriptor of the graph interface. Attributes may be set until it is finalised, and read afterwards.
class Described {
 public:
  explicit Described(dnn::Kind kind);

  template <typename T>
  void Set(dnn::Attribute attribute, dnn::Type type, const std::vector<T>& elements) {
    SetRaw(attribute, type, static_cast<std::int64_t>(elements.size()), elements.data());
  }

  template <typename T>
  void Set(dnn::Attribute attribute, dnn::Type type, const T& element) {
    SetRaw(attribute, type, 1, &element);
  }

  void Set(dnn::Attribute attribute, const Described& other) {
    Set(attribute, dnn::kDescriptorType, other.get());
  }

  void Finalize();

  // The elements of an attribute, `most` of them at most.
  template <typename T>
  std::vector<T> Read(dnn::Attribute attribute, dnn::Type type, std::int64_t most) const {
    std::vector<T> found(static_cast<std::size_t>(most));
    std::int64_t count = 0;
    ReadRaw(attribute, type, most, &count, found.data());
    found.resize(static_cast<std::size_t>(count < most ? count : most));
    return found;
  }

  // Fills the descriptors in `made` with an attribute's, and shortens it to as many as there are.
  void Fill(dnn::Attribute attribute, std::vector<dnn::Descriptor>* made) const;

  // How many elements an attribute has.
  std::int64_t Count(dnn::Attribute attribute, dnn::Type type) const;

  dnn::Descriptor get() const { return object_.get(); }

 private:
  void SetRaw(dnn::Attribute attribute, dnn::Type type, std::int64_t count, const void* elements);
  void ReadRaw(dnn::Attribute attribute, dnn::Type type, std::int64_t most, std::int64_t* count,
               void* elements) const;

  vendor::Object object_;
};

enum class Role { kInput, kConstant, kOutput, kBuffer, kVirtual, kNumber };

// Its number in the list, plus one, is the tensor's id for cuDNN.
struct Value {
  Role role;
  std::string dtype;
  std::vector<std::int64_t> shape, strides;
  std::size_t place;
  float number;
  std::size_t nbytes;
  DLDataType type;
};

// Throws a ffi ValueError where an entry cannot be what it says.
std::vector<Value> ReadValues(const Blob& blob);

// One operation graph with all the descriptors that it is made of.
struct OperationGraph {
  Described whole;
  std::deque<Described> parts;      // references stay valid
  std::vector<std::size_t> values;  // those in memory, or numbers, in ascending order
  std::int64_t rank;                // which of the heuristic's proposals to take, 0 is its best

  // Without a `handle`, for a device that is not here.
  OperationGraph(const json::Object& entry, const std::vector<Value>& all, dnn::Handle handle);
};

// One entry of the blob's graphs: an operation graph, or (nullptr) a copy of value `from` to value `to`.
struct Step {
  std::unique_ptr<OperationGraph> graph;
  std::size_t from, to;
};

// All of the blob's, in order.
std::vector<Step> ReadSteps(const Blob& blob, const std::vector<Value>& values, dnn::Handle handle);

}  // namespace cudnn
}  // namespace collage

#endif  // COLLAGE_CUDNN_GRAPH_H_
