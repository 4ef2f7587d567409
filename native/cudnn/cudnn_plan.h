// Execution plans of an operation graph: cuDNN's heuristics propose engines; proposals within the limits become
// plans, and the blob's rank selects one of them.
#ifndef COLLAGE_CUDNN_PLAN_H_
#define COLLAGE_CUDNN_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cudnn/cudnn_graph.h"
#include "core/kernel.h"

namespace collage {
namespace cudnn {

// Device of a plan: the GPU of `handle`, or (nullptr) a GPU given by its description only.
struct Target {
  dnn::Handle handle;
  const GraphDescriptor* device;
};

// Rounding of float32 by engines. Tensor cores round it to TF32, with 10 bits of fraction.
enum class Rounding {
  kNone,  // no engine on tensor cores
  kTf32,  // only engines on tensor cores: the others belong to kNone
  kFree,  // the graph is in 16 bits, which they keep
};

struct Limits {
  Rounding rounding;
  std::int64_t workspace;  // largest workspace of a plan, in bytes
};

struct Plan {
  GraphDescriptor descriptor, config;
  std::int64_t engine, workspace;
  std::vector<int> notes;  // cudnnBackendNumericalNote_t
};

// The usable plans, best first, at most `limit`. Throws a ffi RuntimeError with the reasons if there are none.
std::vector<Plan> UsablePlans(const OperationGraph& graph, const Target& target,
                              const Limits& limits, std::size_t limit);

// A kernel for the graphs of a blob (cudnn_graph_kernel.cc).
std::unique_ptr<Kernel> MakeGraphKernel(const KernelSpec& spec);

}  // namespace cudnn
}  // namespace collage

#endif  // COLLAGE_CUDNN_PLAN_H_
