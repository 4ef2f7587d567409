#include "kernels/blocked_plan.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/sizes.h"

namespace collage {
namespace blocked {
namespace {

// An argument with few channels is read in planar layout: its blocks would be mostly zeros.
bool ReadsPlanar(const Layout& layout, const Program& program, const Step& step) {
  const Value& input = program.value(step.input);
  const std::vector<std::int64_t>& inputs = program.inputs;
  bool argument = std::find(inputs.begin(), inputs.end(), step.input) != inputs.end();
  return argument && !program.rows[Index(step.input)] && step.op == Op::kProduct &&
         input.channels * 2 <= layout.lanes && step.scale < 0;
}

bool Reads(const Step& step, int value) {
  if (step.input == value || step.scale == value) return true;
  for (const Convolution& convolution : step.convolutions) {
    for (const PostOpEntry& entry : convolution.entries) {
      if (entry.value == value) return true;
    }
  }
  return false;
}

void CheckTensors(const Convolution& convolution, std::int64_t depth, std::int64_t channels) {
  std::int64_t padded = DivideUp(channels, kPanel) * kPanel;
  if (convolution.weight_floats != Times(depth, padded) || convolution.bias_floats != padded) {
    Refuse("the blob's tensors do not fit its header");
  }
}

// Pixels from the first to the last read for `out` outputs of a window.
std::int64_t Reach(std::int64_t out, std::int64_t stride, std::int64_t size,
                   std::int64_t dilation) {
  return Plus(Times(out - 1, stride), Times(size - 1, dilation), 1);
}

void AddChunks(const Step& step, const Value& input, std::int64_t unit,
               std::vector<Chunk>* chunks) {
  const Convolution& convolution = step.convolutions[0];
  std::int64_t plane = step.padded_height * step.padded_width * unit;
  for (std::int64_t y = 0; y < convolution.height; ++y) {
    for (std::int64_t x = 0; x < convolution.width; ++x) {
      std::int64_t tap =
          (y * convolution.dilation_y * step.padded_width + x * convolution.dilation_x) * unit;
      for (std::int64_t channel = 0; channel < input.channels; channel += unit) {
        chunks->push_back({tap + channel / unit * plane, std::min(unit, input.channels - channel)});
      }
    }
  }
}

void PrepareProduct(const Layout& layout, Step* step, const Value& input, const Value& output) {
  const Convolution& convolution = step->convolutions[0];
  bool pointwise = convolution.height == 1 && convolution.width == 1;
  bool flat = pointwise && convolution.stride_y == 1 && convolution.stride_x == 1 &&
              output.pixels() == input.pixels();
  CheckTensors(convolution, Times(convolution.height, convolution.width, input.channels),
               output.channels);
  step->padded_height = std::max(
      Plus(convolution.pad_top, input.height),
      Reach(output.height, convolution.stride_y, convolution.height, convolution.dilation_y));
  step->padded_width = std::max(
      Plus(convolution.pad_left, input.width),
      Reach(output.width, convolution.stride_x, convolution.width, convolution.dilation_x));
  step->padded = step->padded_height != input.height || step->padded_width != input.width;
  std::int64_t unit = step->planar ? 1 : layout.lanes;
  std::int64_t channels = DivideUp(input.channels, unit) * unit;
  BytesOf(Times(step->padded_height, step->padded_width, channels, sizeof(float)),
          "blocked kernel: the size of a padded value");
  AddChunks(*step, input, unit, &step->chunks);
  Product& product = step->product;
  product.depth = convolution.height * convolution.width * input.channels;
  product.weights = convolution.weights, product.bias = convolution.bias;
  product.channels_out = output.channels;
  product.out_height = flat ? 1 : output.height;
  product.out_width = flat ? output.pixels() : output.width;
  product.row_floats = Times(step->padded_width, convolution.stride_y, unit);
  product.column_floats = Times(convolution.stride_x, unit);
  product.post_ops = convolution.PostOpsOf(output.pixels());
  product.chunks = step->chunks.data();
  product.chunk_count = static_cast<std::int64_t>(step->chunks.size());
  if (step->scale >= 0 && !flat) Refuse("a scale needs a 1x1 convolution with stride 1");
  if (step->op == Op::kExpand && (!flat || step->padded))
    Refuse("what is expanded needs a 1x1 convolution with stride 1 and no pads");
}

void PrepareDepthwise(Step* step, const Value& input, const Value& output) {
  const Convolution& convolution = step->convolutions.back();
  CheckTensors(convolution, Times(convolution.height, convolution.width), output.channels);
  Depthwise& d = step->depthwise;
  d.kernel_height = convolution.height, d.kernel_width = convolution.width;
  d.stride_y = convolution.stride_y, d.stride_x = convolution.stride_x;
  d.dilation_y = convolution.dilation_y, d.dilation_x = convolution.dilation_x;
  d.pad_top = convolution.pad_top, d.pad_left = convolution.pad_left;
  d.height = input.height, d.width = input.width;
  d.channels = output.channels, d.out_height = output.height, d.out_width = output.width;
  d.padded_height = std::max(Plus(d.pad_top, d.height),
                             Reach(d.out_height, d.stride_y, d.kernel_height, d.dilation_y));
  d.padded_width = std::max(Plus(d.pad_left, d.width),
                            Reach(d.out_width, d.stride_x, d.kernel_width, d.dilation_x));
  BytesOf(Times(d.padded_height, d.padded_width, kPanel, sizeof(float)),
          "blocked kernel: the size of a padded value");
  Times(d.padded_width, d.stride_y, kPanel);  // what a band of rows takes
  d.weights = convolution.weights, d.bias = convolution.bias;
  d.post_ops = convolution.PostOpsOf(output.pixels());
}

void PrepareStep(const Layout& layout, int threads, Program* program, Step* step) {
  const Value &input = program->value(step->input), &output = program->value(step->output);
  for (Convolution& convolution : step->convolutions) {
    for (const PostOpEntry& entry : convolution.entries) {
      convolution.post_ops.push_back(entry.post_op);
      if (entry.value < 0) continue;
      const Value& operand = program->value(entry.value);
      convolution.post_ops.back().operand = operand.data;
      convolution.post_ops.back().image_floats = layout.ImageFloats(operand);
    }
  }
  if (step->op == Op::kProduct) PrepareProduct(layout, step, input, output);
  if (step->op == Op::kExpand) {
    Value expanded = input;
    expanded.channels = output.channels;
    PrepareProduct(layout, step, input, expanded);
  }
  if (step->op == Op::kDepthwise || step->op == Op::kExpand) {
    PrepareDepthwise(step, input, output);
  }
  std::int64_t units = step->op == Op::kDepthwise ? layout.Groups(output) : layout.Strips(output);
  std::int64_t items = output.batch * units;
  std::int64_t most = step->is_flat() ? DivideUp(output.pixels(), 14) : output.height;
  if (threads > 1 && items < 2 * threads) {
    step->parts = std::min(most, DivideUp(2 * threads, items));
  }
  if (step->mean >= 0) {
    std::int64_t floats = Times(step->parts, output.batch, layout.PaddedChannels(output));
    program->sum_floats = std::max(program->sum_floats, Index(floats));
  }
}

}  // namespace

Bytes PlaceValues(const Layout& layout, Program* program) {
  Buffers buffers;
  std::vector<Step>& steps = program->steps;
  auto make = [&](std::int64_t number, int call) {
    Value& value = program->value(number);
    auto floats = static_cast<std::size_t>(value.batch * layout.ImageFloats(value));
    if (value.buffer < 0) value.buffer = buffers.AddToArena(floats * sizeof(float), call);
    buffers.Use(value.buffer, call);
  };
  auto use = [&](std::int64_t number, int call) {
    if (number < 0) return;
    if (program->value(number).buffer < 0) Refuse("a step reads what was not made before");
    buffers.Use(program->value(number).buffer, call);
  };
  for (std::int64_t input : program->inputs) {
    program->packed.push_back(std::any_of(steps.begin(), steps.end(), [&](const Step& step) {
      return Reads(step, static_cast<int>(input)) && !ReadsPlanar(layout, *program, step);
    }));
    if (program->packed.back()) make(input, 0);
  }
  int call = 0;
  for (Step& step : steps) {
    step.planar = ReadsPlanar(layout, *program, step);
    ++call;
    if (!step.planar) use(step.input, call);
    use(step.scale, call);
    for (const Convolution& convolution : step.convolutions) {
      for (const PostOpEntry& entry : convolution.entries) use(entry.value, call);
    }
    make(step.output, call);
    if (step.mean >= 0) make(step.mean, call);
  }
  for (std::int64_t output : program->outputs) use(output, call + 1);
  Bytes arena = Allocate(buffers.Place());
  for (Value& value : program->values) {
    if (value.buffer < 0) continue;
    value.data = reinterpret_cast<float*>(arena.get() + buffers[value.buffer].place);
  }
  return arena;
}

void PrepareSteps(const Layout& layout, int threads, Program* program) {
  for (Step& step : program->steps) PrepareStep(layout, threads, program, &step);
}

}  // namespace blocked
}  // namespace collage
