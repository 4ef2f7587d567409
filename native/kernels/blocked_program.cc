// Reads the program of a blocked kernel from its blob. Header entries:
//   values   [batch, channels, height, width] of each value
//   inputs, outputs  numbers of the argument values; arguments are row-major
//   rows     numbers of arguments with innermost channels: [batch, pixels, channels]
//   steps    lists of integers, in execution order: operator, input, output, value for the output's mean per channel
//            (-1: none), value of one pixel with the scale of the input (-1: none), then one convolution, or two
//            (kExpand: a flat product, then a depthwise one). A convolution: tensors of weights and bias, height and
//            width of the kernel, strides, dilations, pads at the top and left, the number of post-ops, and for each
//            its kind, operand (an activation, a value, or -1 - t for tensor t), and position of the activation's
//            two parameters in tensor 0. kMean and kElementwise have post-ops only.
#include "kernels/blocked_program.h"

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/string.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/native_kernel.h"
#include "core/sizes.h"

namespace collage {
namespace blocked {
namespace {

constexpr std::int64_t kOps = 5, kPostOpKinds = 5;

// Reads the integers of one step.
class Reader {
 public:
  Reader(const Blob& blob, std::vector<std::int64_t> integers, std::int64_t values)
      : blob_(blob), integers_(std::move(integers)), values_(values) {}

  Step ReadStep() {
    Step step;
    step.op = static_cast<Op>(Next(0, kOps - 1, "blocked kernel: a step's operator"));
    step.input = NextValue(), step.output = NextValue();
    step.mean = NextValue(true), step.scale = NextValue(true);
    step.convolutions.resize(step.op == Op::kExpand ? 2 : 1);
    for (Convolution& convolution : step.convolutions) {
      if (step.op <= Op::kExpand) ReadWindow(&convolution);
      ReadPostOps(&convolution);
    }
    if (at_ != integers_.size()) Refuse("a step has more numbers than it needs");
    return step;
  }

 private:
  std::int64_t Next() {
    if (at_ == integers_.size()) Refuse("a step ends too early");
    return integers_[at_++];
  }

  std::int64_t Next(std::int64_t minimum, std::int64_t maximum, const char* what) {
    return InRange(Next(), minimum, maximum, what);
  }

  int NextValue(bool optional = false) {
    std::int64_t value = Next();
    if (value >= values_ || (value < 0 && !optional)) Refuse("a step names no value");
    return static_cast<int>(value);
  }

  // The floats of a tensor of the blob, and their number.
  const float* Floats(std::int64_t number, std::int64_t* count) {
    if (number < 0 || number >= static_cast<std::int64_t>(blob_.tensors().size()))
      Refuse("a step names no tensor");
    const TensorView& tensor = blob_.tensors()[Index(number)];
    if (!tensor.is_float32()) Refuse("a tensor is not float32");
    *count = static_cast<std::int64_t>(tensor.nbytes / sizeof(float));
    return static_cast<const float*>(tensor.data);
  }

  void ReadWindow(Convolution* convolution) {
    convolution->weights = Floats(Next(), &convolution->weight_floats);
    convolution->bias = Floats(Next(), &convolution->bias_floats);
    for (std::int64_t* number :
         {&convolution->height, &convolution->width, &convolution->stride_y, &convolution->stride_x,
          &convolution->dilation_y, &convolution->dilation_x}) {
      *number = Next(1, kMostExtent, "blocked kernel: an extent, stride or dilation of a window");
    }
    for (std::int64_t* number : {&convolution->pad_top, &convolution->pad_left}) {
      *number = Next(0, kMostExtent, "blocked kernel: a pad");
    }
  }

  void ReadPostOps(Convolution* convolution) {
    auto limit = static_cast<std::int64_t>(integers_.size());
    convolution->entries.resize(Index(Next(0, limit, "blocked kernel: a step's count of posts")));
    for (PostOpEntry& entry : convolution->entries) {
      entry.post_op.kind =
          static_cast<PostOpKind>(Next(0, kPostOpKinds - 1, "blocked kernel: the kind of a post"));
      std::int64_t operand = Next(), parameters = Next();
      if (entry.post_op.kind == PostOpKind::kFunction) {
        InRange(operand, 0, kActivations - 1, "blocked kernel: an activation");
        std::int64_t count = 0;
        const float* table = Floats(0, &count);
        if (parameters < 0 || parameters > count - 2) Refuse("an activation has no parameters");
        const float* pair = table + parameters;
        entry.post_op.function = {static_cast<Activation>(operand), pair[0], pair[1]};
      } else if (operand < 0) {
        entry.post_op.operand = Floats(-1 - operand, &entry.constant_floats);
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

void CheckNumbers(const std::vector<std::int64_t>& numbers, const Program& program,
                  const char* refusal) {
  for (std::int64_t number : numbers) {
    if (number < 0 || number >= static_cast<std::int64_t>(program.values.size())) Refuse(refusal);
  }
}

Value ReadValue(const tvm::ffi::Any& entry) {
  Value value;
  std::vector<std::int64_t> shape;
  for (const tvm::ffi::Any& extent : As<json::Array>(entry, "values")) {
    shape.push_back(InRange(As<std::int64_t>(extent, "values"), 1, kMostExtent,
                            "blocked kernel: an extent of a value"));
  }
  if (shape.size() != 4) Refuse("a value has not four dimensions");
  value.batch = shape[0], value.channels = shape[1];
  value.height = shape[2], value.width = shape[3];
  std::int64_t channels = DivideUp(value.channels, kPanel) * kPanel;
  BytesOf(Times(value.batch, channels, value.height, value.width, sizeof(float)),
          "blocked kernel: the size of a value");
  return value;
}

bool IsPerChannel(const Value& value, const Value& of) {
  return value.batch == of.batch && value.channels == of.channels && value.pixels() == 1;
}

// Checks the operands of post-ops on `result`, a value or (inside kExpand) an intermediate result.
void CheckPostOps(const Program& program, const Convolution& convolution, const Value& result) {
  for (const PostOpEntry& entry : convolution.entries) {
    PostOpKind kind = entry.post_op.kind;
    if (kind == PostOpKind::kFunction) continue;
    bool is_full = kind == PostOpKind::kAddValue || kind == PostOpKind::kMultiplyValue;
    if (entry.value < 0) {
      bool has_all_channels = entry.constant_floats == DivideUp(result.channels, kPanel) * kPanel;
      if (is_full || !has_all_channels) Refuse("a post's constant is no number per channel");
    } else {
      const Value& operand = program.value(entry.value);
      if (is_full ? !operand.HasShapeOf(result) : !IsPerChannel(operand, result))
        Refuse("a post's operand has not the shape that it needs");
    }
  }
}

void CheckShapes(const Program& program, const Step& step) {
  const Value &input = program.value(step.input), &output = program.value(step.output);
  if (input.batch != output.batch) Refuse("a step's input and output differ in batch");
  bool depthwise = step.op == Op::kDepthwise || step.op == Op::kExpand;
  bool same_channels =
      step.op == Op::kProduct || step.op == Op::kExpand || input.channels == output.channels;
  if (!same_channels) Refuse("a step's input and output differ in channels");
  if (step.op == Op::kMean && output.pixels() != 1) Refuse("a mean has more than one pixel");
  if (step.op == Op::kElementwise && !input.HasShapeOf(output))
    Refuse("an elementwise step's input and output differ in shape");
  if (step.mean >= 0 && !(depthwise && IsPerChannel(program.value(step.mean), output)))
    Refuse("a mean per channel has not the shape that it needs");
  if (step.scale >= 0 &&
      !(step.op == Op::kProduct && IsPerChannel(program.value(step.scale), input)))
    Refuse("a scale has not the shape that it needs");
  Value result = output;
  if (step.op == Op::kExpand) {
    result.height = input.height, result.width = input.width;
    CheckPostOps(program, step.convolutions[0], result);
  }
  CheckPostOps(program, step.convolutions.back(), output);
}

// Values have one producer: otherwise the arena could reuse the memory of a value before its last reader.
void CheckOrder(const Program& program) {
  std::vector<bool> result(program.values.size());
  for (std::int64_t input : program.inputs) result[Index(input)] = true;
  for (const Step& step : program.steps) {
    for (int value : {step.output, step.mean}) {
      if (value < 0) continue;
      if (result[Index(value)]) Refuse("a value is made twice");
      result[Index(value)] = true;
    }
  }
}

}  // namespace

void Refuse(const std::string& what) {
  TVM_FFI_THROW(ValueError) << "blocked kernel: " << what;
  TVM_FFI_UNREACHABLE();
}

Program ReadProgram(const Blob& blob) {
  Program program;
  const json::Object& header = blob.header();
  for (const tvm::ffi::Any& value : Get<json::Array>(header, "values")) {
    program.values.push_back(ReadValue(value));
  }
  auto count = static_cast<std::int64_t>(program.values.size());
  for (const tvm::ffi::Any& step : Get<json::Array>(header, "steps")) {
    std::vector<std::int64_t> integers;
    for (const tvm::ffi::Any& number : As<json::Array>(step, "steps")) {
      integers.push_back(As<std::int64_t>(number, "steps"));
    }
    program.steps.push_back(Reader(blob, std::move(integers), count).ReadStep());
  }
  program.inputs = Integers(header, "inputs");
  program.outputs = Integers(header, "outputs");
  CheckNumbers(program.inputs, program, "an argument is no value");
  CheckNumbers(program.outputs, program, "an argument is no value");
  std::vector<std::int64_t> rows = Integers(header, "rows");
  CheckNumbers(rows, program, "rows of no value");
  program.rows.resize(program.values.size());
  for (std::int64_t value : rows) program.rows[Index(value)] = true;
  for (const Step& step : program.steps) CheckShapes(program, step);
  CheckOrder(program);
  return program;
}

}  // namespace blocked
}  // namespace collage
