// Regions of convolutions in blocked layout; see blocked.h. The blob is described in blocked_program.cc;
// its header may also have "instructions" (text, for tests): the instruction set to use, if the machine
// has it.
#include "kernels/blocked.h"

#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/arena.h"
#include "kernels/blocked_plan.h"
#include "kernels/blocked_program.h"
#include "core/kernel.h"
#include "kernels/native_kernel.h"
#include "core/thread_pool.h"

namespace collage {
namespace blocked {
namespace {

const Instructions& ChooseInstructions(const std::string& name) {
  return ChooseFor("blocked", IsaTable<Instructions>{Avx512(), Avx2(), Plain()}, name);
}

thread_local Scratch padded_scratch, weight_scratch;

// A plane, and where it lies among zeros.
struct Frame {
  std::int64_t height, width, padded_height, padded_width, top, left;
};

Frame FrameOf(const Depthwise& d) {
  return {d.height, d.width, d.padded_height, d.padded_width, d.pad_top, d.pad_left};
}

// Rows of zeros and pixels; without a source the zeros alone.
void CopyPadded(const Frame& frame, Range rows, std::int64_t unit, const float* source,
                float* padded) {
  auto zero = [&](float* first, std::int64_t pixels) {
    std::memset(first, 0, Index(pixels * unit) * sizeof(float));
  };
  for (std::int64_t y = rows.first; y < rows.last; ++y) {
    float* row = padded + y * frame.padded_width * unit;
    std::int64_t from = y - frame.top, end = frame.left + frame.width;
    if (from < 0 || from >= frame.height) {
      zero(row, frame.padded_width);
      continue;
    }
    zero(row, frame.left);
    zero(row + end * unit, frame.padded_width - end);
    if (source == nullptr) continue;
    std::memcpy(row + frame.left * unit, source + from * frame.width * unit,
                Index(frame.width * unit) * sizeof(float));
  }
}

Range Part(std::int64_t size, std::int64_t part, std::int64_t parts) {
  return {size * part / parts, size * (part + 1) / parts};
}

class BlockedKernel : public Kernel {
 public:
  explicit BlockedKernel(const KernelSpec& spec)
      : blob_(spec.blob),
        threads_(std::max(1, spec.threads)),
        instructions_(ChooseInstructions(blob_->GetString("instructions", ""))),
        layout_{instructions_.lanes, instructions_.columns},
        program_(ReadProgram(*blob_)),
        arena_(PlaceValues(layout_, &program_)),
        arguments_(program_.values.size()) {
    PrepareSteps(layout_, threads_, &program_);
    sums_.resize(program_.sum_floats);
    for (const std::vector<std::int64_t>* side : {&program_.inputs, &program_.outputs}) {
      for (std::int64_t number : *side) {
        const Value& value = program_.value(number);
        expected_.push_back({value.batch * value.channels * value.pixels(), kFloat32});
      }
    }
  }

  void Run(DLTensor* const* args, int count) final {
    CheckArguments("blocked", expected_, args, count);
    auto inputs = static_cast<int>(program_.inputs.size());
    for (int i = 0; i < inputs; ++i) {
      arguments_[Index(program_.inputs[Index(i)])] = static_cast<float*>(DataOf(args[i]));
      if (program_.packed[Index(i)]) Pack(program_.inputs[Index(i)]);
    }
    for (const Step& step : program_.steps) RunStep(step);
    for (int i = inputs; i < count; ++i) {
      Unpack(program_.outputs[Index(i - inputs)], static_cast<float*>(DataOf(args[i])));
    }
  }

 private:
  // All of an argument, by groups: use(the argument's first channel in the group, the value's floats,
  // channels).
  template <class Use>
  void ForGroups(std::int64_t number, Use use) const {
    const Value& value = program_.value(number);
    std::int64_t groups = layout_.Groups(value), pixels = value.pixels();
    std::int64_t step = program_.rows[Index(number)] ? 1 : pixels;
    ParallelFor(threads_, value.batch * groups, [&](std::int64_t item, int) {
      std::int64_t image = item / groups, first = item % groups * layout_.lanes;
      use(image * value.channels * pixels + first * step,
          value.data + item * pixels * layout_.lanes,
          std::min<std::int64_t>(layout_.lanes, value.channels - first));
    });
  }

  void Pack(std::int64_t number) const {
    const Value& value = program_.value(number);
    const float* argument = arguments_[Index(number)];
    ForGroups(number, [&](std::int64_t first, float* group, std::int64_t channels) {
      if (!program_.rows[Index(number)]) {
        instructions_.pack(argument + first, channels, value.pixels(), group);
        return;
      }
      for (std::int64_t pixel = 0; pixel < value.pixels(); ++pixel) {
        std::memcpy(group + pixel * layout_.lanes, argument + first + pixel * value.channels,
                    Index(channels) * sizeof(float));
      }
    });
  }

  void Unpack(std::int64_t number, float* argument) const {
    const Value& value = program_.value(number);
    ForGroups(number, [&](std::int64_t first, float* group, std::int64_t channels) {
      if (!program_.rows[Index(number)]) {
        instructions_.unpack(group, channels, value.pixels(), argument + first);
        return;
      }
      for (std::int64_t pixel = 0; pixel < value.pixels(); ++pixel) {
        std::memcpy(argument + first + pixel * value.channels, group + pixel * layout_.lanes,
                    Index(channels) * sizeof(float));
      }
    });
  }

  void RunStep(const Step& step) {
    const Value &input = program_.value(step.input), &output = program_.value(step.output);
    switch (step.op) {
      case Op::kProduct:
        RunProduct(step, input, output);
        break;
      case Op::kDepthwise:
      case Op::kExpand:
        if (step.mean >= 0) std::fill(sums_.begin(), sums_.end(), 0.0f);
        RunDepthwise(step, input, output);
        if (step.mean >= 0) FinishMeans(step, output);
        break;
      case Op::kMean:
        ParallelFor(threads_, input.batch * layout_.Groups(input), [&](std::int64_t item, int) {
          instructions_.mean(input.data + item * input.pixels() * layout_.lanes, input.pixels(),
                             output.data + item * layout_.lanes);
        });
        break;
      case Op::kElementwise: {
        PostOps post_ops = step.convolutions[0].PostOpsOf(output.pixels());
        std::int64_t groups = layout_.Groups(output), floats = output.pixels() * layout_.lanes;
        ParallelFor(threads_, output.batch * groups, [&](std::int64_t item, int) {
          instructions_.elementwise(post_ops, input.data + item * floats, item / groups,
                                    item % groups, output.data + item * floats);
        });
        break;
      }
    }
  }

  void RunProduct(const Step& step, const Value& input, const Value& output) const {
    const Product& product = step.product;
    std::int64_t strips = layout_.Strips(output);
    bool flat = step.is_flat();
    for (std::int64_t image = 0; image < output.batch; ++image) {
      const float* source =
          step.padded ? PaddedInput(step, input, image) : Source(step, input, image);
      const float* scale = nullptr;
      if (step.scale >= 0) {
        const Value& factors = program_.value(step.scale);
        scale = factors.data + image * layout_.ImageFloats(factors);
      }
      ParallelFor(threads_, strips * step.parts, [&](std::int64_t item, int) {
        Range rows = flat ? Range{0, 1} : Part(output.height, item / strips, step.parts);
        Range columns =
            flat ? Part(product.out_width, item / strips, step.parts) : Range{0, product.out_width};
        float* workspace =
            scale == nullptr ? nullptr : weight_scratch.AtLeast(product.depth * kPanel);
        instructions_.product(product, source, scale, image, item % strips, rows, columns,
                              workspace, output.data + image * layout_.ImageFloats(output));
      });
    }
  }

  const float* Source(const Step& step, const Value& input, std::int64_t image) const {
    if (step.planar) {
      return arguments_[Index(step.input)] + image * input.channels * input.pixels();
    }
    return input.data + image * layout_.ImageFloats(input);
  }

  // A copy of a whole image with zeros around it. It belongs to the calling thread.
  const float* PaddedInput(const Step& step, const Value& input, std::int64_t image) const {
    const float* source = Source(step, input, image);
    std::int64_t unit = step.planar ? 1 : layout_.lanes;
    std::int64_t planes = step.planar ? input.channels : layout_.Groups(input);
    std::int64_t plane = step.padded_height * step.padded_width * unit;
    float* padded = padded_scratch.AtLeast(planes * plane);
    const Convolution& one = step.convolutions[0];
    Frame frame{input.height,      input.width, step.padded_height,
                step.padded_width, one.pad_top, one.pad_left};
    ParallelFor(threads_, planes, [&](std::int64_t number, int) {
      CopyPadded(frame, {0, frame.padded_height}, unit, source + number * input.pixels() * unit,
                 padded + number * plane);
    });
    return padded;
  }

  void RunDepthwise(const Step& step, const Value& input, const Value& output) {
    const Depthwise& d = step.depthwise;
    bool expand = step.op == Op::kExpand;
    std::int64_t columns = expand ? instructions_.columns : 1;
    std::int64_t units = expand ? layout_.Strips(output) : layout_.Groups(output);
    std::int64_t channels = layout_.PaddedChannels(output);
    std::int64_t floats = d.padded_height * d.padded_width * layout_.lanes;
    ParallelFor(threads_, output.batch * units * step.parts, [&](std::int64_t item, int) {
      std::int64_t unit = item % units, image = item / units % output.batch;
      std::int64_t part = item / units / output.batch;
      Range rows = Part(output.height, part, step.parts);
      Range needed{rows.first * d.stride_y, d.RowsFor(rows.last) + d.pad_top};
      float* padded = padded_scratch.AtLeast(columns * floats);
      float* sums =
          step.mean < 0 ? nullptr : sums_.data() + (part * output.batch + image) * channels;
      const float* source = input.data + image * layout_.ImageFloats(input);
      float* target = output.data + image * layout_.ImageFloats(output);
      for (std::int64_t i = 0; i < columns; ++i) {
        CopyPadded(FrameOf(d), needed, layout_.lanes,
                   expand ? nullptr : source + unit * input.pixels() * layout_.lanes,
                   padded + i * floats);
      }
      if (expand) {
        instructions_.expand(step.product, d, source, image, unit, rows, padded, target, sums);
      } else {
        instructions_.depthwise(d, padded, image, unit, rows, target,
                                sums == nullptr ? nullptr : sums + unit * layout_.lanes);
      }
    });
  }

  void FinishMeans(const Step& step, const Value& output) {
    const Value& mean = program_.value(step.mean);
    std::int64_t channels = layout_.PaddedChannels(output), images = output.batch;
    float factor = 1.0f / static_cast<float>(output.pixels());
    for (std::int64_t image = 0; image < images; ++image) {
      float* target = mean.data + image * layout_.ImageFloats(mean);
      for (std::int64_t channel = 0; channel < output.channels; ++channel) {
        float sum = 0;
        for (std::int64_t part = 0; part < step.parts; ++part) {
          sum += sums_[Index((part * images + image) * channels + channel)];
        }
        target[channel] = sum * factor;
      }
    }
  }

  std::shared_ptr<const Blob> blob_;  // owns weights and biases
  int threads_;
  const Instructions& instructions_;
  Layout layout_;
  Program program_;
  Bytes arena_;
  std::vector<Argument> expected_;
  std::vector<float*> arguments_;  // by value, for inputs
  std::vector<float> sums_;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def(
      "collage.blocked_instructions", [] { return tvm::ffi::String(ChooseInstructions("").name); });
}

const RegisterKernel kRegistered("blocked", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new BlockedKernel(spec));
});

}  // namespace
}  // namespace blocked
}  // namespace collage
