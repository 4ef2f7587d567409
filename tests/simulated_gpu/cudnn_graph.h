// The graph interface of the simulated cuDNN: descriptors as they were described.
#ifndef SIMULATED_CUDNN_GRAPH_H_
#define SIMULATED_CUDNN_GRAPH_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "cudnn/cudnn_graph_api.h"
#include "numbers.h"

namespace simulated {

namespace dnn = collage::dnn;

using Longs = std::vector<std::int64_t>;

constexpr int kBadParam = 2000, kNotFinalized = 2004, kSizeInsufficient = 2006,
              kShapeMismatch = 2008;
constexpr int kDuplicated = 2009, kWrongType = 2010, kWrongKind = 2012, kNotSupported = 3000;

struct Attributed {
  int type;
  std::int64_t count;
  std::vector<char> bytes;
};

struct Descriptor {
  int kind;
  bool finalized = false;
  std::map<int, Attributed> attributes;
  int engine = 0, note = -1;  // of an engine and its configuration; -1 for no note
  std::int64_t workspace = 0;

  bool Has(int attribute) const { return attributes.count(attribute) > 0; }

  template <typename T>
  std::vector<T> All(int attribute) const {
    auto found = attributes.find(attribute);
    if (found == attributes.end()) return {};
    std::vector<T> values(static_cast<std::size_t>(found->second.count));
    std::memcpy(values.data(), found->second.bytes.data(), found->second.bytes.size());
    return values;
  }

  template <typename T>
  T One(int attribute, T otherwise = {}) const {
    std::vector<T> values = All<T>(attribute);
    return values.empty() ? otherwise : values[0];
  }

  const Descriptor* Get(int attribute) const {
    return static_cast<const Descriptor*>(One<void*>(attribute, nullptr));
  }

  // Of a tensor.
  Longs dims() const { return All<std::int64_t>(dnn::kTensorDims); }
  Longs strides() const { return All<std::int64_t>(dnn::kTensorStrides); }
  std::int64_t id() const { return One<std::int64_t>(dnn::kTensorId); }
  bool is_virtual() const { return One<char>(dnn::kTensorVirtual) != 0; }
  bool by_value() const { return One<char>(dnn::kTensorByValue) != 0; }
  int type() const { return One<int>(dnn::kTensorType); }
};

inline Descriptor& Of(void* one) { return *static_cast<Descriptor*>(one); }

inline Dtype WidthOf(int type) {
  return type == dnn::kFloat ? Dtype::kFloat : type == dnn::kHalf ? Dtype::kHalf : Dtype::kBfloat;
}

// What an operation reads, in the interface's order, and what it writes.
struct Ports {
  std::vector<int> reads;
  int writes;
};
const Ports& PortsOf(int kind);

std::vector<const Descriptor*> OperationsOf(const Descriptor& graph);

// What the heuristics propose for a graph: engine, numerical note (-1 for none), workspace.
struct Proposal {
  int engine, note;
  std::int64_t workspace;
};
std::vector<Proposal> Propose(const Descriptor& graph);

// Checks an operation's extents; a status.
int CheckOperation(const Descriptor& operation);

// Computes a graph on the memory that `pointers` name by tensor id; with `rounds`, what is multiplied is TF32.
void Compute(const Descriptor& graph, const std::map<std::int64_t, void*>& pointers, bool rounds);

}  // namespace simulated

#endif  // SIMULATED_CUDNN_GRAPH_H_
