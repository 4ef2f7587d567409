// Operation graphs of cuDNN from a blob, translated to descriptors one by one.
//
// The blob's header describes a region:
//   values   a list of {role, dtype, shape, strides, place, number}; other fields refer to values by position
//     role   "input" or "output": argument `place` of the kernel, "constant": tensor `place` of the blob,
//            "buffer": scratch memory of the kernel, "virtual": never in memory, "number": the scalar `number`
//   graphs   a list of {rank, operations}, run in order, or {from, to}: a copy to other strides, outside of the
//            operation graphs; an operation is {op, ...}:
//     convolution  x, w, y, pads_before, pads_after, strides, dilations
//     matmul       a, b, y
//     pointwise    mode, x, y, and b for two operands; upper, beta, alpha: numbers of the mode
//     reduction    mode ("max", "sum"), x, y
//     norm         mode ("layer", "rms", "instance"), x, scale, bias, epsilon, y
//   Absent operands are left out or -1. Sums are in float32.
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
class GraphDescriptor {
 public:
  explicit GraphDescriptor(dnn::Kind kind);

  template <typename T>
  void Set(dnn::Attribute attribute, dnn::Type type, const std::vector<T>& elements) {
    SetRaw(attribute, type, static_cast<std::int64_t>(elements.size()), elements.data());
  }

  template <typename T>
  void Set(dnn::Attribute attribute, dnn::Type type, const T& element) {
    SetRaw(attribute, type, 1, &element);
  }

  void Set(dnn::Attribute attribute, const GraphDescriptor& other) {
    Set(attribute, dnn::kDescriptorType, other.get());
  }

  void Finalize();

  // The elements of an attribute, at most `limit`.
  template <typename T>
  std::vector<T> Read(dnn::Attribute attribute, dnn::Type type, std::int64_t limit) const {
    std::vector<T> elements(static_cast<std::size_t>(limit));
    std::int64_t count = 0;
    ReadRaw(attribute, type, limit, &count, elements.data());
    elements.resize(static_cast<std::size_t>(count < limit ? count : limit));
    return elements;
  }

  // Fills `descriptors` from an attribute and shortens it to the attribute's length.
  void Fill(dnn::Attribute attribute, std::vector<dnn::Descriptor>* descriptors) const;

  // The number of elements of an attribute.
  std::int64_t Count(dnn::Attribute attribute, dnn::Type type) const;

  dnn::Descriptor get() const { return object_.get(); }

 private:
  void SetRaw(dnn::Attribute attribute, dnn::Type type, std::int64_t count, const void* elements);
  void ReadRaw(dnn::Attribute attribute, dnn::Type type, std::int64_t limit, std::int64_t* count,
               void* elements) const;

  vendor::Object object_;
};

enum class Role { kInput, kConstant, kOutput, kBuffer, kVirtual, kNumber };

// A value; its position in the list plus one is cuDNN's tensor id.
struct Value {
  Role role;
  std::string dtype;
  std::vector<std::int64_t> shape, strides;
  std::size_t place;
  float number;
  std::size_t nbytes;
  DLDataType type;
};

// Throws a ffi ValueError for an invalid entry.
std::vector<Value> ReadValues(const Blob& blob);

// One operation graph with all its descriptors.
struct OperationGraph {
  GraphDescriptor descriptor;
  std::deque<GraphDescriptor> parts;  // references stay valid
  std::vector<std::size_t> values;    // positions of values in memory or numbers, ascending
  std::int64_t rank;                  // rank of the heuristic's proposal; 0 is the best

  // Without a `handle`, for a device that is only described.
  OperationGraph(const json::Object& entry, const std::vector<Value>& all, dnn::Handle handle);
};

// One entry of the blob's graphs: an operation graph, or (nullptr) a copy of value `from` to value `to`.
struct Step {
  std::unique_ptr<OperationGraph> graph;
  std::size_t from, to;
};

// All steps of the blob, in order.
std::vector<Step> ReadSteps(const Blob& blob, const std::vector<Value>& values, dnn::Handle handle);

}  // namespace cudnn
}  // namespace collage

#endif  // COLLAGE_CUDNN_GRAPH_H_
