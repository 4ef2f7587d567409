#include "cudnn/cudnn_plan.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

namespace collage {
namespace cudnn {
namespace {

// What became of the proposals that are not usable.
struct Refusals {
  std::size_t proposals = 0, inexact = 0, exact = 0, large = 0;
  std::string words;  // of the last that cuDNN itself refused

  std::string Text() const {
    std::ostringstream text;
    text << "cuDNN's heuristics propose " << proposals << " engines, and none is usable";
    if (inexact > 0) text << "; " << inexact << " round more than allowed (TF32, sums in 16 bits)";
    if (exact > 0) text << "; " << exact << " do not use TF32";
    if (large > 0) text << "; " << large << " need more workspace than allowed";
    if (!words.empty()) text << "; " << words;
    return text.str();
  }
};

std::vector<Described> Proposals(const OperationGraph& graph, const Target& target,
                                 dnn::Heuristic mode) {
  Described heuristics(dnn::kHeuristics);
  heuristics.Set(dnn::kHeuristicsGraph, graph.whole);
  heuristics.Set(dnn::kHeuristicsMode, dnn::kHeuristicModeType, mode);
  if (target.device != nullptr) heuristics.Set(dnn::kHeuristicsDevice, *target.device);
  heuristics.Finalize();
  std::vector<Described> configs;
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

// Counts the engine that rounds more, or less, than wanted.
bool RoundsAsWanted(const std::vector<int>& notes, Rounding wanted, Refusals* refusals) {
  auto has = [&](int note) { return std::find(notes.begin(), notes.end(), note) != notes.end(); };
  const bool tensor_cores = has(dnn::kNoteTensorCore);
  const bool inexact = has(dnn::kNoteReducedPrecision) || has(dnn::kNoteDownConvert) ||
                       (wanted == Rounding::kNone && tensor_cores);
  const bool exact = !inexact && wanted == Rounding::kTf32 && !tensor_cores;
  refusals->inexact += inexact;
  refusals->exact += exact;
  return !inexact && !exact;
}

Plan MakePlan(Described config, const Target& target) {
  Described engine(dnn::kEngine), whole(dnn::kPlan);
  std::vector<dnn::Descriptor> raw = {engine.get()};
  config.Fill(dnn::kConfigEngine, &raw);
  std::int64_t number = engine.Read<std::int64_t>(dnn::kEngineIndex, dnn::kInt64Type, 1).at(0);
  std::vector<int> notes = engine.Read<int>(dnn::kEngineNotes, dnn::kNoteType, dnn::kNotes);
  if (target.handle != nullptr) whole.Set(dnn::kPlanHandle, dnn::kHandleType, target.handle);
  if (target.device != nullptr) whole.Set(dnn::kPlanDevice, *target.device);
  whole.Set(dnn::kPlanConfig, config);
  return {std::move(whole), std::move(config), number, 0, std::move(notes)};
}

// Moves the plan to `usable` when it is.
void Try(Plan plan, const Limits& limits, std::vector<Plan>* usable, Refusals* refusals) {
  if (!RoundsAsWanted(plan.notes, limits.rounding, refusals)) return;
  plan.whole.Finalize();
  plan.workspace = plan.whole.Read<std::int64_t>(dnn::kPlanWorkspace, dnn::kInt64Type, 1).at(0);
  if (plan.workspace > limits.workspace) {
    ++refusals->large;
    return;
  }
  usable->push_back(std::move(plan));
}

}  // namespace

std::vector<Plan> UsablePlans(const OperationGraph& graph, const Target& target,
                              const Limits& limits, std::size_t most) {
  std::vector<Plan> usable;
  Refusals refusals;
  // Modes repeat each other's proposals, so the first one that has a usable plan decides.
  for (dnn::Heuristic mode : {dnn::kModeA, dnn::kModeB, dnn::kModeFallback}) {
    std::vector<Described> proposals;
    try {
      proposals = Proposals(graph, target, mode);
    } catch (const tvm::ffi::Error& error) {
      refusals.words = error.message();
    }
    for (Described& config : proposals) {
      if (usable.size() == most) break;
      ++refusals.proposals;
      try {
        Try(MakePlan(std::move(config), target), limits, &usable, &refusals);
      } catch (const tvm::ffi::Error& error) {
        refusals.words = error.message();
      }
    }
    if (!usable.empty()) return usable;
  }
  TVM_FFI_THROW(RuntimeError) << refusals.Text();
  TVM_FFI_UNREACHABLE();
}

}  // namespace cudnn
}  // namespace collage
