#include "cudnn/cudnn_plan.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

namespace collage {
namespace cudnn {
namespace {

// Counts of refused proposals.
struct Refusals {
  std::size_t proposals = 0, inexact = 0, exact = 0, large = 0;
  std::string message;  // cuDNN's message on the last one it refused itself

  std::string Text() const {
    std::ostringstream text;
    text << "cuDNN's heuristics propose " << proposals << " engines, and none is usable";
    if (inexact > 0) text << "; " << inexact << " round more than allowed (TF32, sums in 16 bits)";
    if (exact > 0) text << "; " << exact << " do not use TF32";
    if (large > 0) text << "; " << large << " need more workspace than allowed";
    if (!message.empty()) text << "; " << message;
    return text.str();
  }
};

std::vector<GraphDescriptor> Proposals(const OperationGraph& graph, const Target& target,
                                       dnn::Heuristic mode) {
  GraphDescriptor heuristics(dnn::kHeuristics);
  heuristics.Set(dnn::kHeuristicsGraph, graph.descriptor);
  heuristics.Set(dnn::kHeuristicsMode, dnn::kHeuristicModeType, mode);
  if (target.device != nullptr) heuristics.Set(dnn::kHeuristicsDevice, *target.device);
  heuristics.Finalize();
  std::vector<GraphDescriptor> configs;
  std::vector<dnn::Descriptor> raw;
  std::int64_t count = heuristics.Count(dnn::kHeuristicsResults, dnn::kDescriptorType);
  for (std::int64_t i = 0; i < count; ++i) {
    configs.emplace_back(dnn::kEngineConfig);
    raw.push_back(configs.back().get());
  }
  heuristics.Fill(dnn::kHeuristicsResults, &raw);
  configs.erase(configs.begin() + static_cast<std::ptrdiff_t>(raw.size()), configs.end());
  return configs;
}

// Whether the engine rounds as required; counts it otherwise.
bool HasRounding(const std::vector<int>& notes, Rounding required, Refusals* refusals) {
  auto has = [&](int note) { return std::find(notes.begin(), notes.end(), note) != notes.end(); };
  const bool tensor_cores = has(dnn::kNoteTensorCore);
  const bool inexact = has(dnn::kNoteReducedPrecision) || has(dnn::kNoteDownConvert) ||
                       (required == Rounding::kNone && tensor_cores);
  const bool exact = !inexact && required == Rounding::kTf32 && !tensor_cores;
  refusals->inexact += inexact;
  refusals->exact += exact;
  return !inexact && !exact;
}

Plan MakePlan(GraphDescriptor config, const Target& target) {
  GraphDescriptor engine(dnn::kEngine), plan(dnn::kPlan);
  std::vector<dnn::Descriptor> raw = {engine.get()};
  config.Fill(dnn::kConfigEngine, &raw);
  std::int64_t number = engine.Read<std::int64_t>(dnn::kEngineIndex, dnn::kInt64Type, 1).at(0);
  std::vector<int> notes = engine.Read<int>(dnn::kEngineNotes, dnn::kNoteType, dnn::kNotes);
  if (target.handle != nullptr) plan.Set(dnn::kPlanHandle, dnn::kHandleType, target.handle);
  if (target.device != nullptr) plan.Set(dnn::kPlanDevice, *target.device);
  plan.Set(dnn::kPlanConfig, config);
  return {std::move(plan), std::move(config), number, 0, std::move(notes)};
}

// Moves the plan to `usable` if it keeps to the limits.
void AddIfUsable(Plan plan, const Limits& limits, std::vector<Plan>* usable, Refusals* refusals) {
  if (!HasRounding(plan.notes, limits.rounding, refusals)) return;
  plan.descriptor.Finalize();
  plan.workspace =
      plan.descriptor.Read<std::int64_t>(dnn::kPlanWorkspace, dnn::kInt64Type, 1).at(0);
  if (plan.workspace > limits.workspace) {
    ++refusals->large;
    return;
  }
  usable->push_back(std::move(plan));
}

}  // namespace

std::vector<Plan> UsablePlans(const OperationGraph& graph, const Target& target,
                              const Limits& limits, std::size_t limit) {
  std::vector<Plan> usable;
  Refusals refusals;
  // Modes repeat each other's proposals, so the first mode with a usable plan decides.
  for (dnn::Heuristic mode : {dnn::kModeA, dnn::kModeB, dnn::kModeFallback}) {
    std::vector<GraphDescriptor> proposals;
    try {
      proposals = Proposals(graph, target, mode);
    } catch (const tvm::ffi::Error& error) {
      refusals.message = error.message();
    }
    for (GraphDescriptor& config : proposals) {
      if (usable.size() == limit) break;
      ++refusals.proposals;
      try {
        AddIfUsable(MakePlan(std::move(config), target), limits, &usable, &refusals);
      } catch (const tvm::ffi::Error& error) {
        refusals.message = error.message();
      }
    }
    if (!usable.empty()) return usable;
  }
  TVM_FFI_THROW(RuntimeError) << refusals.Text();
  TVM_FFI_UNREACHABLE();
}

}  // namespace cudnn
}  // namespace collage
