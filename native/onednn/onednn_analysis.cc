#include "onednn/onednn_analysis.h"

namespace collage::onednn {
namespace {

std::vector<int> ValuesRead(const Step& step) {
  std::vector<int> values = step.inputs;
  for (const PostOp& post_op : step.post_ops) {
    if (post_op.value >= 0) values.push_back(post_op.value);
  }
  return values;
}

// The layout of a view's source for which the view has the layout `after`; null if there is none.
Desc SourceLayout(const Program& program, const Step& step, const Desc& after) {
  const OneDnn& api = OneDnn::Get();
  if (step.op == "reshape") return api.Reshaped(after, program.values[step.inputs[0]]);
  Dims permutation = step.dims("permutation");
  std::vector<int> inverse(permutation.size());
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    inverse[static_cast<std::size_t>(permutation[i])] = static_cast<int>(i);
  }
  return api.Permuted(after, inverse);
}

void FindPreferredLayouts(const Program& program, Analysis* analysis) {
  const OneDnn& api = OneDnn::Get();
  std::vector<int> readers(program.values.size(), 0);
  for (const Step& step : program.steps) {
    for (int value : ValuesRead(step)) ++readers[value];
  }
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    int value = program.outputs[i];
    analysis->targets[value] = static_cast<int>(program.inputs.size() + i);
    analysis->preferred_layouts[value] = api.RowMajor(program.values[value]);
  }
  for (auto step = program.steps.rbegin(); step != program.steps.rend(); ++step) {
    if (!step->is_view() || step->op == "slice") continue;
    int source = step->inputs[0];
    if (readers[source] != 1 || analysis->targets[source] >= 0) continue;
    Desc after = analysis->preferred_layouts[step->output];
    if (after == nullptr) after = api.RowMajor(program.values[step->output]);
    analysis->preferred_layouts[source] = SourceLayout(program, *step, after);
    if (analysis->preferred_layouts[source] != nullptr)
      analysis->targets[source] = analysis->targets[step->output];
  }
}

void FindLastReads(const Program& program, Analysis* analysis) {
  for (std::size_t i = 0; i < program.values.size(); ++i) analysis->roots[i] = static_cast<int>(i);
  for (const Step& step : program.steps) {
    if (step.is_view()) analysis->roots[step.output] = analysis->roots[step.inputs[0]];
    for (int value : ValuesRead(step)) analysis->last_reads[analysis->roots[value]] = step.position;
  }
  for (int value : program.outputs) {
    analysis->last_reads[analysis->roots[value]] = static_cast<int>(program.steps.size());
  }
}

}  // namespace

Analysis Analyse(const Program& program) {
  std::size_t count = program.values.size();
  Analysis analysis{std::vector<Desc>(count), std::vector<int>(count, -1),
                    std::vector<int>(count, 0), std::vector<int>(count, -1)};
  FindPreferredLayouts(program, &analysis);
  FindLastReads(program, &analysis);
  return analysis;
}

}  // namespace collage::onednn
