// What a program must be before oneDNN sees it. oneDNN compares the shapes of a primitive's operands
// itself; it reads as many strides and pads as there are dimensions, works with what views say of memory,
// and counts in `int`.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "onednn/onednn_program.h"
#include "core/sizes.h"

namespace collage::onednn {
namespace {

constexpr std::size_t kMostInputs = 1024;  // of a concatenation
constexpr std::size_t kLeastImage = 3,
                      kMostImage = 5;  // dimensions: batch, channels, one to three others

struct Operands {
  std::size_t minimum, most;
};

[[noreturn]] void Refuse(const Step& step, const std::string& what) {
  TVM_FFI_THROW(ValueError) << "onednn: " << step.name << ": " << what;
  TVM_FFI_UNREACHABLE();
}

void CheckOperands(const Step& step) {
  static const std::map<std::string, Operands> kOperands = {
      {"convolution", {2, 3}}, {"deconvolution", {2, 3}},
      {"matmul", {2, 3}},      {"eltwise", {1, 1}},
      {"binary", {2, 2}},      {"pooling", {1, 1}},
      {"softmax", {1, 1}},     {"layer_normalization", {2, 3}},
      {"lrn", {1, 1}},         {"reduction", {1, 1}},
      {"resampling", {1, 1}},  {"concat", {1, kMostInputs}},
      {"reshape", {1, 1}},     {"permute", {1, 1}},
      {"slice", {1, 1}},
  };
  auto entry = kOperands.find(step.op);
  if (entry == kOperands.end()) Refuse(step, "there is no such operator");
  const Operands& operands = entry->second;
  if (step.inputs.size() < operands.minimum || step.inputs.size() > operands.most)
    Refuse(step, "it has " + std::to_string(step.inputs.size()) + " inputs");
  if (step.is_view() && !step.post_ops.empty()) Refuse(step, "a view has no post-operations");
}

// One number per dimension of `count`, each in the range.
Dims Sides(const Step& step, const char* key, std::size_t count, dnnl_dim_t minimum) {
  Dims sides = step.dims(key);
  if (sides.size() != count)
    Refuse(step, "'" + std::string(key) + "' has " + std::to_string(sides.size()) +
                     " numbers, not " + std::to_string(count));
  for (dnnl_dim_t side : sides) {
    InRange(side, minimum, kMostExtent, "onednn: " + step.name + ": '" + key + "'");
  }
  return sides;
}

void CheckWindow(const Program& program, const Step& step) {
  std::size_t rank = program.values[step.inputs[0]].size();
  if (rank < kLeastImage || rank > kMostImage || program.values[step.output].size() != rank)
    Refuse(step, "its input and output are no images of the same rank");
  for (const char* key : {"pads_begin", "pads_end", "dilations"}) Sides(step, key, rank - 2, 0);
  Sides(step, "strides", rank - 2, 1);
  if (step.op == "pooling") Sides(step, "kernel", rank - 2, 1);
}

void CheckAxis(const Program& program, const Step& step) {
  auto rank = static_cast<dnnl_dim_t>(program.values[step.output].size());
  InRange(step.integer("axis"), 0, rank - 1, "onednn: " + step.name + ": 'axis'");
  for (int input : step.inputs) {
    if (program.values[input].size() != program.values[step.output].size())
      Refuse(step, "an input's rank is not that of the output");
  }
}

void CheckPermutation(const Program& program, const Step& step) {
  const Dims &from = program.values[step.inputs[0]], &to = program.values[step.output];
  Dims permutation = Sides(step, "permutation", from.size(), 0), sorted = permutation;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<dnnl_dim_t>(i)) Refuse(step, "'permutation' is none");
  }
  if (to.size() != from.size()) Refuse(step, "its output has another rank");
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i] != from[static_cast<std::size_t>(permutation[i])])
      Refuse(step, "its output has not the permuted shape");
  }
}

void CheckSlice(const Program& program, const Step& step) {
  const Dims &from = program.values[step.inputs[0]], &to = program.values[step.output];
  Dims starts = Sides(step, "starts", from.size(), 0), steps = Sides(step, "steps", from.size(), 1);
  if (to.size() != from.size()) Refuse(step, "its output has another rank");
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (Plus(starts[i], Times(to[i] - 1, steps[i])) >= from[i])
      Refuse(step, "it leads out of its input");
  }
}

// Whether each extent of `dims` is that of `whole`, or 1.
bool Broadcasts(const Dims& dims, const Dims& result_dims) {
  if (dims.size() != result_dims.size()) return false;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != result_dims[i] && dims[i] != 1) return false;
  }
  return true;
}

void CheckShapes(const Program& program, const Step& step) {
  const Dims &input = program.values[step.inputs[0]], &output = program.values[step.output];
  const std::string& op = step.op;
  if (op == "convolution" || op == "deconvolution" || op == "pooling") CheckWindow(program, step);
  if (op == "softmax" || op == "concat") CheckAxis(program, step);
  if (op == "permute") CheckPermutation(program, step);
  if (op == "slice") CheckSlice(program, step);
  if (op == "reshape" && ElementsOf(input, 1, "") != ElementsOf(output, 1, ""))
    Refuse(step, "its output has another number of elements");
  bool same = op == "eltwise" || op == "softmax" || op == "layer_normalization" || op == "lrn";
  if (same && input != output) Refuse(step, "its input and output differ in shape");
  if (op == "lrn") {
    InRange(step.integer("size"), 1, kMostExtent, "onednn: " + step.name + ": 'size'");
    if (input.size() < 2) Refuse(step, "it has no channels");
  }
  if (op == "resampling" &&
      (input.size() != output.size() || input.size() < kLeastImage || input.size() > kMostImage))
    Refuse(step, "its input and output are no images of the same rank");
  if (op == "reduction" && !Broadcasts(output, input))
    Refuse(step, "its output is no reduction of its input");
  if (op == "binary") {
    for (int value : step.inputs) {
      if (!Broadcasts(program.values[value], output)) Refuse(step, "an operand does not broadcast");
    }
  }
  for (const PostOp& post_op : step.post_ops) {
    if (post_op.value >= 0 && !Broadcasts(program.values[post_op.value], output))
      Refuse(step, "a post-operation's operand does not broadcast to the result");
  }
}

void CheckValue(const Dims& dims) {
  if (dims.empty() || dims.size() > DNNL_MAX_NDIMS) {
    TVM_FFI_THROW(ValueError) << "onednn: a value of " << dims.size() << " dimensions";
  }
  for (dnnl_dim_t extent : dims) InRange(extent, 1, kMostExtent, "onednn: an extent of a value");
  BytesOf(Times(ElementsOf(dims, 1, ""), sizeof(float)), "onednn: the size of a value");
}

}  // namespace

void CheckProgram(const Program& program) {
  for (const Dims& dims : program.values) CheckValue(dims);
  std::vector<bool> defined(program.values.size());
  for (const std::vector<int>* side : {&program.inputs, &program.weights}) {
    for (int value : *side) defined[static_cast<std::size_t>(value)] = true;
  }
  for (const Step& step : program.steps) {
    CheckOperands(step);
    CheckShapes(program, step);
    if (defined[static_cast<std::size_t>(step.output)]) Refuse(step, "its output is made already");
    defined[static_cast<std::size_t>(step.output)] = true;
  }
}

}  // namespace collage::onednn
