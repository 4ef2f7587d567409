// Reads the program of a blocked kernel from its blob. Header entries:
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
#include "blocked_program.h"

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/string.h>

#include <string>
#include <utility>
#include <vector>

namespace collage {
namespace blocked {
namespace {

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

void CheckNumbers(const std::vector<std::int64_t>& numbers, const Program& program,
                  const char* otherwise) {
  for (std::int64_t one : numbers) {
    if (one < 0 || one >= static_cast<std::int64_t>(program.values.size())) Refuse(otherwise);
  }
}

}  // namespace

void Refuse(const std::string& what) {
  TVM_FFI_THROW(ValueError) << "blocked kernel: " << what;
  TVM_FFI_UNREACHABLE();
}

Program ReadProgram(const Blob& blob) {
  Program program;
  for (const tvm::ffi::Any& one : Entry(blob, "values").cast<json::Array>()) {
    std::vector<std::int64_t> shape = Integers(one);
    if (shape.size() != 4) Refuse("a value has not four dimensions");
    program.values.push_back({shape[0], shape[1], shape[2], shape[3]});
  }
  auto count = static_cast<std::int64_t>(program.values.size());
  for (const tvm::ffi::Any& one : Entry(blob, "steps").cast<json::Array>()) {
    program.steps.push_back(Reader(blob, Integers(one), count).ReadStep());
  }
  program.inputs = Integers(Entry(blob, "inputs"));
  program.outputs = Integers(Entry(blob, "outputs"));
  CheckNumbers(program.inputs, program, "an argument is no value");
  CheckNumbers(program.outputs, program, "an argument is no value");
  std::vector<std::int64_t> rows = Integers(Entry(blob, "rows"));
  CheckNumbers(rows, program, "rows of no value");
  program.rows.resize(program.values.size());
  for (std::int64_t one : rows) program.rows[Index(one)] = true;
  return program;
}

}  // namespace blocked
}  // namespace collage
