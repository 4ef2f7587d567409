// From an operation graph to what executes it: cuDNN's heuristics propose engines, the first of them that keep to
// the limits and become a plan are usable, and the one of the wanted rank is taken.
#ifndef COLLAGE_CUDNN_PLAN_H_
#define COLLAGE_CUDNN_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cudnn/cudnn_graph.h"
#include "core/kernel.h"

namespace collage {
namespace cudnn {

// Where a plan will run: on the GPU of `handle`, or (nullptr) on one that is not here and only described.
struct Target {
  dnn::Handle handle;
  const Described* device;
};

// What engines may make of float32. Tensor cores round it to TF32, which has 10 bits.
enum class Rounding {
  kNone,  // no engine on tensor cores
  kTf32,  // only engines on tensor cores: the others belong to kNone
  kFree,  // the graph is in 16 bits, which they keep
};

struct Limits {
  Rounding rounding;
  std::int64_t workspace;  // bytes that a plan may use
};

struct Plan {
  Described whole, config;
  std::int64_t engine, workspace;
  std::vector<int> notes;  // cudnnBackendNumericalNote_t
};

// The usable plans, best first, `most` of them at most. Throws a ffi RuntimeError with what became of the proposals
// when there are none.
std::vector<Plan> UsablePlans(const OperationGraph& graph, const Target& target,
                              const Limits& limits, std::size_t most);

// A kernel that runs the graphs of a blob (cudnn_graph_kernel.cc).
std::unique_ptr<Kernel> MakeGraphKernel(const KernelSpec& spec);

}  // namespace cudnn
}  // namespace collage

#endif  // COLLAGE_CUDNN_PLAN_H_
