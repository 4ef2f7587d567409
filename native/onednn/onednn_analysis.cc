#include "onednn/onednn_analysis.h"

namespace collage::onednn {
namespace {

std::vector<int> ValuesRead(const Step& step) {
  std::vector<int> found = step.inputs;
  for (const PostOp& post : step.post) {
    if (post.value >= 0) found.push_back(post.value);
  }
  return found;
}

// The layout of a view's source that gives the view the layout `after`; null when there is none.
Desc Undone(const Program& program, const Step& step, const Desc& after) {
  const OneDnn& api = OneDnn::Get();
  if (step.op == "reshape") return api.Reshaped(after, program.values[step.inputs[0]]);
  Dims permutation = step.dims("permutation");
  std::vector<int> inverse(permutation.size());
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    inverse[static_cast<std::size_t>(permutation[i])] = static_cast<int>(i);
  }
  return api.Permuted(after, inverse);
}

void FindWishes(const Program& program, Analysis* found) {
  const OneDnn& api = OneDnn::Get();
  std::vector<int> readers(program.values.size(), 0);
  for (const Step& step : program.steps) {
    for (int value : ValuesRead(step)) ++readers[value];
  }
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    int value = program.outputs[i];
    found->targets[value] = static_cast<int>(program.inputs.size() + i);
    found->wishes[value] = api.RowMajor(program.values[value]);
  }
  for (auto step = program.steps.rbegin(); step != program.steps.rend(); ++step) {
    if (!step->is_view() || step->op == "slice") continue;
    int source = step->inputs[0];
    if (readers[source] != 1 || found->targets[source] >= 0) continue;
    Desc after = found->wishes[step->output];
    if (after == nullptr) after = api.RowMajor(program.values[step->output]);
    found->wishes[source] = Undone(program, *step, after);
    if (found->wishes[source] != nullptr) found->targets[source] = found->targets[step->output];
  }
}

void FindLastReads(const Program& program, Analysis* found) {
  for (std::size_t i = 0; i < program.values.size(); ++i) found->roots[i] = static_cast<int>(i);
  for (const Step& step : program.steps) {
    if (step.is_view()) found->roots[step.output] = found->roots[step.inputs[0]];
    for (int value : ValuesRead(step)) found->last_reads[found->roots[value]] = step.position;
  }
  for (int value : program.outputs) {
    found->last_reads[found->roots[value]] = static_cast<int>(program.steps.size());
  }
}

}  // namespace

Analysis Analyse(const Program& program) {
  std::size_t count = program.values.size();
  Analysis found{std::vector<Desc>(count), std::vector<int>(count, -1), std::vector<int>(count, 0),
                 std::vector<int>(count, -1)};
  FindWishes(program, &found);
  FindLastReads(program, &found);
  return found;
}

}  // namespace collage::onednn
