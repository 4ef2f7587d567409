// Regions of convolutions in blocked layout; see blocked.h. Header entries:
//   values   [batch, channels, height, width] of each value
//   inputs, outputs  numbers of the values that are arguments, row-major there
//   rows     those of them whose channels are innermost in the argument: [batch, pixels, channels]
//   steps    lists of integers, in an order in which they can run: operator, input, output, value that
//            takes the output's mean per channel (-1: none), value of one pixel that scales the input
//            (-1: none), then one convolution, or two (kExpand: a flat product, then a depthwise one).
//            A convolution: tensors of weights and bias, height and width of the kernel, strides,
//            dilations, pads at the top and left, then the count of its posts and each one's kind,
//            operand (an activation, a value, or -1 - t for tensor t), and place of the activation's
//            two parameters in tensor 0. kMean and kElementwise have posts only.
// and "instructions" (text, for tests): the instruction set to use, if the machine has it.
#include "blocked.h"

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "kernel.h"
#include "native_kernel.h"
#include "thread_pool.h"

namespace collage {
namespace blocked {
namespace {

using Shape = std::vector<std::int64_t>;

enum class Op : std::int64_t { kProduct, kDepthwise, kExpand, kMean, kElementwise };

const Instructions& ChooseInstructions(const std::string& name) {
  return ChooseFor("blocked", Versions<Instructions>{Avx512(), Avx2(), Plain()}, name);
}

thread_local Scratch padded_scratch, weight_scratch;

// A post whose operand is a value learns where that is when the arena is there.
struct PostEntry {
  Post post{};
  int value = -1;
};

struct Value {
  std::int64_t batch = 0, channels = 0, height = 0, width = 0;
  int buffer = -1;
  float* data = nullptr;

  std::int64_t pixels() const { return height * width; }
};

struct Convolution {
  const float* weights = nullptr;
  const float* bias = nullptr;
  std::size_t weight_bytes = 0, bias_bytes = 0;
  std::int64_t height = 1, width = 1, stride_y = 1, stride_x = 1, dilation_y = 1, dilation_x = 1,
               pad_top = 0, pad_left = 0;
  std::vector<PostEntry> entries;
  std::vector<Post> posts;
};

struct Step {
  Op op{};
  int input = -1, output = -1, mean = -1, scale = -1;
  std::vector<Convolution> convolutions;
  std::vector<Chunk> chunks;
  Product product{};
  Depthwise depthwise{};
  bool planar = false;  // the input is read as the argument that it is
  bool padded = false;  // the product's input is copied, with zeros around it
  std::int64_t padded_height = 0, padded_width = 0;  // of that copy
  std::int64_t parts = 1;  // of the output's pixels or rows, for threads
};

[[noreturn]] void Refuse(const std::string& what) {
  TVM_FFI_THROW(ValueError) << "blocked kernel: " << what;
  TVM_FFI_UNREACHABLE();
}

std::vector<std::int64_t> Integers(const tvm::ffi::Any& list) {
  std::vector<std::int64_t> found;
  for (const tvm::ffi::Any& one : list.cast<json::Array>()) found.push_back(one.cast<std::int64_t>());
  return found;
}

tvm::ffi::Any Entry(const Blob& blob, const char* key) {
  auto found = blob.header().find(tvm::ffi::String(key));
  if (found == blob.header().end()) Refuse(std::string("no ") + key + " in the header");
  return (*found).second;
}

// Reads the integers of one step.
class Reader {
 public:
  Reader(const Blob& blob, std::vector<std::int64_t> integers, std::int64_t values)
      : blob_(blob), integers_(std::move(integers)), values_(values) {}

  Step ReadStep() {
    Step step;
    step.op = static_cast<Op>(Next());
    step.input = NextValue(), step.output = NextValue();
    step.mean = NextValue(true), step.scale = NextValue(true);
    step.convolutions.resize(step.op == Op::kExpand ? 2 : 1);
    for (Convolution& one : step.convolutions) {
      if (step.op <= Op::kExpand) ReadWindow(&one);
      ReadPosts(&one);
    }
    return step;
  }

 private:
  std::int64_t Next() {
    if (at_ == integers_.size()) Refuse("a step ends too early");
    return integers_[at_++];
  }

  int NextValue(bool optional = false) {
    std::int64_t value = Next();
    if (value >= values_ || (value < 0 && !optional)) Refuse("a step names no value");
    return static_cast<int>(value);
  }

  const TensorView& Tensor(std::int64_t number) {
    if (number < 0 || number >= static_cast<std::int64_t>(blob_.tensors().size()))
      Refuse("a step names no tensor");
    return blob_.tensors()[static_cast<std::size_t>(number)];
  }

  void ReadWindow(Convolution* one) {
    const TensorView &weights = Tensor(Next()), &bias = Tensor(Next());
    one->weights = static_cast<const float*>(weights.data), one->weight_bytes = weights.nbytes;
    one->bias = static_cast<const float*>(bias.data), one->bias_bytes = bias.nbytes;
    for (std::int64_t* number : {&one->height, &one->width, &one->stride_y, &one->stride_x,
                                 &one->dilation_y, &one->dilation_x, &one->pad_top, &one->pad_left}) {
      *number = Next();
    }
  }

  void ReadPosts(Convolution* one) {
    one->entries.resize(static_cast<std::size_t>(Next()));
    for (PostEntry& entry : one->entries) {
      entry.post.kind = static_cast<PostKind>(Next());
      std::int64_t operand = Next(), parameters = Next();
      if (entry.post.kind == PostKind::kFunction) {
        const TensorView& table = Tensor(0);
        if (static_cast<std::size_t>(parameters + 2) * sizeof(float) > table.nbytes)
          Refuse("an activation has no parameters");
        const float* found = static_cast<const float*>(table.data) + parameters;
        entry.post.function = {static_cast<Activation>(operand), found[0], found[1]};
      } else if (operand < 0) {
        entry.post.operand = static_cast<const float*>(Tensor(-1 - operand).data);
      } else {
        if (operand >= values_) Refuse("a post names no value");
        entry.value = static_cast<int>(operand);
      }
    }
  }

  const Blob& blob_;
  std::vector<std::int64_t> integers_;
  std::int64_t values_;
  std::size_t at_ = 0;
};

class BlockedKernel : public Kernel {
 public:
  explicit BlockedKernel(const KernelSpec& spec)
      : blob_(spec.blob),
        threads_(std::max(1, spec.threads)),
        instructions_(ChooseInstructions(blob_->GetString("instructions", ""))),
        lanes_(instructions_.lanes) {
    ReadHeader();
    PlaceValues();
    for (Step& step : steps_) PrepareStep(&step);
  }

  void Run(DLTensor* const* args, int count) final {
    auto inputs = static_cast<int>(inputs_.size()), all = inputs + static_cast<int>(outputs_.size());
    if (count != all) {
      TVM_FFI_THROW(ValueError) << "blocked kernel: expected " << all << " tensors, got " << count;
    }
    for (int i = 0; i < inputs; ++i) {
      arguments_[Index(inputs_[Index(i)])] = static_cast<float*>(DataOf(args[i]));
      if (packed_[Index(i)]) Pack(inputs_[Index(i)]);
    }
    for (const Step& step : steps_) RunStep(step);
    for (int i = inputs; i < all; ++i) {
      Unpack(outputs_[Index(i - inputs)], static_cast<float*>(DataOf(args[i])));
    }
  }

 private:
  static std::size_t Index(std::int64_t number) { return static_cast<std::size_t>(number); }

  std::int64_t Groups(const Value& value) const { return DivideUp(value.channels, lanes_); }
  std::int64_t ImageFloats(const Value& value) const {
    return Groups(value) * value.pixels() * lanes_;
  }
  // Groups that a strip may write or add to beyond the last one are there too.
  std::int64_t PaddedChannels(const Value& value) const {
    return DivideUp(value.channels, kPanel) * kPanel;
  }
  std::int64_t Strips(const Value& value) const {
    return DivideUp(value.channels, lanes_ * instructions_.columns);
  }

  void ReadHeader() {
    for (const tvm::ffi::Any& one : Entry(*blob_, "values").cast<json::Array>()) {
      Shape shape = Integers(one);
      if (shape.size() != 4) Refuse("a value has not four dimensions");
      values_.push_back({shape[0], shape[1], shape[2], shape[3]});
    }
    auto count = static_cast<std::int64_t>(values_.size());
    for (const tvm::ffi::Any& one : Entry(*blob_, "steps").cast<json::Array>()) {
      steps_.push_back(Reader(*blob_, Integers(one), count).ReadStep());
    }
    inputs_ = Integers(Entry(*blob_, "inputs"));
    outputs_ = Integers(Entry(*blob_, "outputs"));
    for (const auto* list : {&inputs_, &outputs_}) {
      for (std::int64_t one : *list) {
        if (one < 0 || one >= count) Refuse("an argument is no value");
      }
    }
    arguments_.resize(values_.size());
    rows_.resize(values_.size());
    for (std::int64_t one : Integers(Entry(*blob_, "rows"))) {
      if (one < 0 || one >= count) Refuse("rows of no value");
      rows_[Index(one)] = true;
    }
  }

  // An argument with few channels, which blocks would mostly fill with zeros, is read as it is.
  bool ReadsPlanar(const Step& step) const {
    const Value& input = values_[Index(step.input)];
    bool argument = std::find(inputs_.begin(), inputs_.end(), step.input) != inputs_.end();
    return argument && !rows_[Index(step.input)] && step.op == Op::kProduct && input.channels * 2 <= lanes_ && step.scale < 0;
  }

  void PlaceValues() {
    Buffers buffers;
    auto make = [&](std::int64_t number, int call) {
      Value& value = values_[Index(number)];
      auto floats = static_cast<std::size_t>(value.batch * ImageFloats(value));
      if (value.buffer < 0) value.buffer = buffers.AddToArena(floats * sizeof(float), call);
      buffers.Use(value.buffer, call);
    };
    auto use = [&](std::int64_t number, int call) {
      if (number < 0) return;
      if (values_[Index(number)].buffer < 0) Refuse("a step reads what was not made before");
      buffers.Use(values_[Index(number)].buffer, call);
    };
    for (std::int64_t input : inputs_) {
      packed_.push_back(std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) {
        return Reads(step, static_cast<int>(input)) && !ReadsPlanar(step);
      }));
      if (packed_.back()) make(input, 0);
    }
    int call = 0;
    for (Step& step : steps_) {
      step.planar = ReadsPlanar(step);
      ++call;
      if (!step.planar) use(step.input, call);
      use(step.scale, call);
      for (const Convolution& one : step.convolutions) {
        for (const PostEntry& entry : one.entries) use(entry.value, call);
      }
      make(step.output, call);
      if (step.mean >= 0) make(step.mean, call);
    }
    for (std::int64_t output : outputs_) use(output, call + 1);
    arena_ = Allocate(buffers.Place());
    for (Value& value : values_) {
      if (value.buffer < 0) continue;
      value.data = reinterpret_cast<float*>(arena_.get() + buffers[value.buffer].place);
    }
  }

  static bool Reads(const Step& step, int value) {
    if (step.input == value || step.scale == value) return true;
    for (const Convolution& one : step.convolutions) {
      for (const PostEntry& entry : one.entries) {
        if (entry.value == value) return true;
      }
    }
    return false;
  }

  void PrepareStep(Step* step) {
    const Value &input = values_[Index(step->input)], &output = values_[Index(step->output)];
    for (Convolution& one : step->convolutions) {
      for (const PostEntry& entry : one.entries) {
        one.posts.push_back(entry.post);
        if (entry.value < 0) continue;
        const Value& operand = values_[Index(entry.value)];
        one.posts.back().operand = operand.data;
        one.posts.back().image_floats = ImageFloats(operand);
      }
    }
    if (step->op == Op::kProduct) PrepareProduct(step, input, output);
    if (step->op == Op::kExpand) {
      Value expanded = input;
      expanded.channels = output.channels;
      PrepareProduct(step, input, expanded);
    }
    if (step->op == Op::kDepthwise || step->op == Op::kExpand) {
      PrepareDepthwise(step, input, output);
    }
    std::int64_t units = step->op == Op::kDepthwise ? Groups(output) : Strips(output);
    std::int64_t items = output.batch * units;
    std::int64_t most = IsFlat(*step) ? DivideUp(output.pixels(), 14) : output.height;
    if (threads_ > 1 && items < 2 * threads_) {
      step->parts = std::min(most, DivideUp(2 * threads_, items));
    }
    if (step->mean >= 0) {
      std::int64_t floats = step->parts * output.batch * PaddedChannels(output);
      sums_.resize(std::max(sums_.size(), Index(floats)));
    }
  }

  static bool IsFlat(const Step& step) {
    return step.op == Op::kProduct && step.product.out_height == 1;
  }

  static Posts PostsOf(const Convolution& one, std::int64_t pixels) {
    return {one.posts.data(), static_cast<int>(one.posts.size()), pixels};
  }

  void CheckTensors(const Convolution& one, std::int64_t depth, std::int64_t channels) const {
    std::int64_t padded = DivideUp(channels, kPanel) * kPanel;
    if (one.weight_bytes != Index(depth * padded) * sizeof(float) ||
        one.bias_bytes != Index(padded) * sizeof(float)) {
      Refuse("the blob's tensors do not fit its header");
    }
  }

  void PrepareProduct(Step* step, const Value& input, const Value& output) {
    const Convolution& one = step->convolutions[0];
    bool pointwise = one.height == 1 && one.width == 1;
    bool flat = pointwise && one.stride_y == 1 && one.stride_x == 1 &&
                output.pixels() == input.pixels();
    CheckTensors(one, one.height * one.width * input.channels, output.channels);
    step->padded_height = std::max(one.pad_top + input.height, (output.height - 1) * one.stride_y +
                                   (one.height - 1) * one.dilation_y + 1);
    step->padded_width = std::max(one.pad_left + input.width, (output.width - 1) * one.stride_x +
                                  (one.width - 1) * one.dilation_x + 1);
    step->padded = step->padded_height != input.height || step->padded_width != input.width;
    std::int64_t unit = step->planar ? 1 : lanes_;
    std::int64_t plane = step->padded_height * step->padded_width * unit;
    for (std::int64_t y = 0; y < one.height; ++y) {
      for (std::int64_t x = 0; x < one.width; ++x) {
        std::int64_t tap =
            (y * one.dilation_y * step->padded_width + x * one.dilation_x) * unit;
        for (std::int64_t channel = 0; channel < input.channels; channel += unit) {
          step->chunks.push_back({tap + channel / unit * plane,
                                  std::min(unit, input.channels - channel)});
        }
      }
    }
    Product& product = step->product;
    product.depth = one.height * one.width * input.channels;
    product.weights = one.weights, product.bias = one.bias;
    product.channels_out = output.channels;
    product.out_height = flat ? 1 : output.height;
    product.out_width = flat ? output.pixels() : output.width;
    product.row_floats = step->padded_width * one.stride_y * unit;
    product.column_floats = one.stride_x * unit;
    product.posts = PostsOf(one, output.pixels());
    product.chunks = step->chunks.data();
    product.chunk_count = static_cast<std::int64_t>(step->chunks.size());
    if (step->scale >= 0 && !flat) Refuse("a scale needs a 1x1 convolution with stride 1");
  }

  void PrepareDepthwise(Step* step, const Value& input, const Value& output) {
    const Convolution& one = step->convolutions.back();
    CheckTensors(one, one.height * one.width, output.channels);
    Depthwise& d = step->depthwise;
    d.kernel_height = one.height, d.kernel_width = one.width;
    d.stride_y = one.stride_y, d.stride_x = one.stride_x;
    d.dilation_y = one.dilation_y, d.dilation_x = one.dilation_x;
    d.pad_top = one.pad_top, d.pad_left = one.pad_left;
    d.height = input.height, d.width = input.width;
    d.channels = output.channels, d.out_height = output.height, d.out_width = output.width;
    d.padded_height = std::max(d.pad_top + d.height, d.RowsFor(d.out_height) + d.pad_top);
    std::int64_t needed = (d.out_width - 1) * d.stride_x + (d.kernel_width - 1) * d.dilation_x + 1;
    d.padded_width = std::max(d.pad_left + d.width, needed);
    d.weights = one.weights, d.bias = one.bias;
    d.posts = PostsOf(one, output.pixels());
  }

  // All of an argument, by groups: use(the argument's first channel in the group, the value's floats,
  // channels).
  template <class Use>
  void ForGroups(std::int64_t number, Use use) const {
    const Value& value = values_[Index(number)];
    std::int64_t groups = Groups(value), pixels = value.pixels();
    std::int64_t step = rows_[Index(number)] ? 1 : pixels;
    ParallelFor(threads_, value.batch * groups, [&](std::int64_t item, int) {
      std::int64_t image = item / groups, first = item % groups * lanes_;
      use(image * value.channels * pixels + first * step, value.data + item * pixels * lanes_,
          std::min<std::int64_t>(lanes_, value.channels - first));
    });
  }

  void Pack(std::int64_t number) const {
    const Value& value = values_[Index(number)];
    const float* argument = arguments_[Index(number)];
    ForGroups(number, [&](std::int64_t first, float* group, std::int64_t channels) {
      if (!rows_[Index(number)]) {
        instructions_.pack(argument + first, channels, value.pixels(), group);
        return;
      }
      for (std::int64_t pixel = 0; pixel < value.pixels(); ++pixel) {
        std::memcpy(group + pixel * lanes_, argument + first + pixel * value.channels,
                    Index(channels) * sizeof(float));
      }
    });
  }

  void Unpack(std::int64_t number, float* argument) const {
    const Value& value = values_[Index(number)];
    ForGroups(number, [&](std::int64_t first, float* group, std::int64_t channels) {
      if (!rows_[Index(number)]) {
        instructions_.unpack(group, channels, value.pixels(), argument + first);
        return;
      }
      for (std::int64_t pixel = 0; pixel < value.pixels(); ++pixel) {
        std::memcpy(argument + first + pixel * value.channels, group + pixel * lanes_,
                    Index(channels) * sizeof(float));
      }
    });
  }

  void RunStep(const Step& step) {
    const Value &input = values_[Index(step.input)], &output = values_[Index(step.output)];
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
        ParallelFor(threads_, input.batch * Groups(input), [&](std::int64_t item, int) {
          instructions_.mean(input.data + item * input.pixels() * lanes_, input.pixels(),
                             output.data + item * lanes_);
        });
        break;
      case Op::kElementwise: {
        Posts posts = PostsOf(step.convolutions[0], output.pixels());
        std::int64_t groups = Groups(output), floats = output.pixels() * lanes_;
        ParallelFor(threads_, output.batch * groups, [&](std::int64_t item, int) {
          instructions_.elementwise(posts, input.data + item * floats, item / groups,
                                    item % groups, output.data + item * floats);
        });
        break;
      }
    }
  }

  void RunProduct(const Step& step, const Value& input, const Value& output) const {
    const Product& product = step.product;
    std::int64_t strips = Strips(output);
    bool flat = IsFlat(step);
    for (std::int64_t image = 0; image < output.batch; ++image) {
      const float* source = step.padded ? PaddedInput(step, input, image) : Source(step, input, image);
      const float* scale = nullptr;
      if (step.scale >= 0) {
        const Value& factors = values_[Index(step.scale)];
        scale = factors.data + image * ImageFloats(factors);
      }
      ParallelFor(threads_, strips * step.parts, [&](std::int64_t item, int) {
        Range rows = flat ? Range{0, 1} : Part(output.height, item / strips, step.parts);
        Range columns = flat ? Part(product.out_width, item / strips, step.parts)
                             : Range{0, product.out_width};
        float* workspace =
            scale == nullptr ? nullptr : weight_scratch.AtLeast(product.depth * kPanel);
        instructions_.product(product, source, scale, image, item % strips, rows, columns,
                              workspace, output.data + image * ImageFloats(output));
      });
    }
  }

  static Range Part(std::int64_t size, std::int64_t part, std::int64_t parts) {
    return {size * part / parts, size * (part + 1) / parts};
  }

  const float* Source(const Step& step, const Value& input, std::int64_t image) const {
    if (step.planar) {
      return arguments_[Index(step.input)] + image * input.channels * input.pixels();
    }
    return input.data + image * ImageFloats(input);
  }

  // A copy of a whole image with zeros around it. It belongs to the calling thread.
  const float* PaddedInput(const Step& step, const Value& input, std::int64_t image) const {
    const float* source = Source(step, input, image);
    std::int64_t unit = step.planar ? 1 : lanes_;
    std::int64_t planes = step.planar ? input.channels : Groups(input);
    std::int64_t plane = step.padded_height * step.padded_width * unit;
    float* padded = padded_scratch.AtLeast(planes * plane);
    const Convolution& one = step.convolutions[0];
    Frame frame{input.height, input.width, step.padded_height, step.padded_width,
                one.pad_top,  one.pad_left};
    ParallelFor(threads_, planes, [&](std::int64_t number, int) {
      CopyPadded(frame, {0, frame.padded_height}, unit, source + number * input.pixels() * unit,
                 padded + number * plane);
    });
    return padded;
  }

  struct Frame {
    std::int64_t height, width, padded_height, padded_width, top, left;
  };

  static Frame FrameOf(const Depthwise& d) {
    return {d.height, d.width, d.padded_height, d.padded_width, d.pad_top, d.pad_left};
  }

  // Rows of zeros and pixels; without a source the zeros alone.
  static void CopyPadded(const Frame& frame, Range rows, std::int64_t unit, const float* source,
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

  void RunDepthwise(const Step& step, const Value& input, const Value& output) {
    const Depthwise& d = step.depthwise;
    bool expand = step.op == Op::kExpand;
    std::int64_t columns = expand ? instructions_.columns : 1;
    std::int64_t units = expand ? Strips(output) : Groups(output), channels = PaddedChannels(output);
    std::int64_t floats = d.padded_height * d.padded_width * lanes_;
    ParallelFor(threads_, output.batch * units * step.parts, [&](std::int64_t item, int) {
      std::int64_t unit = item % units, image = item / units % output.batch;
      std::int64_t part = item / units / output.batch;
      Range rows = Part(output.height, part, step.parts);
      Range needed{rows.first * d.stride_y, d.RowsFor(rows.last) + d.pad_top};
      float* padded = padded_scratch.AtLeast(columns * floats);
      float* sums = step.mean < 0 ? nullptr
                                  : sums_.data() + (part * output.batch + image) * channels;
      const float* source = input.data + image * ImageFloats(input);
      float* target = output.data + image * ImageFloats(output);
      for (std::int64_t i = 0; i < columns; ++i) {
        CopyPadded(FrameOf(d), needed, lanes_,
                   expand ? nullptr : source + unit * input.pixels() * lanes_, padded + i * floats);
      }
      if (expand) {
        instructions_.expand(step.product, d, source, image, unit, rows, padded, target, sums);
      } else {
        instructions_.depthwise(d, padded, image, unit, rows, target,
                                sums == nullptr ? nullptr : sums + unit * lanes_);
      }
    });
  }

  void FinishMeans(const Step& step, const Value& output) {
    const Value& mean = values_[Index(step.mean)];
    std::int64_t channels = PaddedChannels(output), images = output.batch;
    float factor = 1.0f / static_cast<float>(output.pixels());
    for (std::int64_t image = 0; image < images; ++image) {
      float* target = mean.data + image * ImageFloats(mean);
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
  std::int64_t lanes_;
  std::vector<Value> values_;
  std::vector<Step> steps_;
  std::vector<std::int64_t> inputs_, outputs_;
  std::vector<bool> packed_;          // per input
  std::vector<bool> rows_;            // by value
  std::vector<float*> arguments_;     // by value, for inputs
  std::vector<float> sums_;
  Bytes arena_;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("collage.blocked_instructions", [] {
    return tvm::ffi::String(ChooseInstructions("").name);
  });
}

const RegisterKernel kRegistered("blocked", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new BlockedKernel(spec));
});

}  // namespace
}  // namespace blocked
}  // namespace collage
