// The program of a blocked kernel: values and steps. It is read from a blob (blocked_program.cc), prepared before the
// first run (blocked_plan.h), and run (blocked.cc).
#ifndef COLLAGE_BLOCKED_PROGRAM_H_
#define COLLAGE_BLOCKED_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/blob.h"
#include "kernels/blocked.h"

namespace collage {
namespace blocked {

enum class Op : std::int64_t { kProduct, kDepthwise, kExpand, kMean, kElementwise };

// A post-op; the address of a value operand is set after allocation of the arena.
struct PostOpEntry {
  PostOp post_op{};
  int value = -1;
  std::int64_t constant_floats = 0;  // of an operand that is a tensor of the blob
};

struct Value {
  std::int64_t batch = 0, channels = 0, height = 0, width = 0;
  int buffer = -1;
  float* data = nullptr;

  std::int64_t pixels() const { return height * width; }
  bool HasShapeOf(const Value& other) const {
    return batch == other.batch && channels == other.channels && height == other.height &&
           width == other.width;
  }
};

struct Convolution {
  const float* weights = nullptr;
  const float* bias = nullptr;
  std::int64_t weight_floats = 0, bias_floats = 0;
  std::int64_t height = 1, width = 1, stride_y = 1, stride_x = 1, dilation_y = 1, dilation_x = 1,
               pad_top = 0, pad_left = 0;
  std::vector<PostOpEntry> entries;
  std::vector<PostOp> post_ops;

  // For a value of that many pixels.
  PostOps PostOpsOf(std::int64_t pixels) const {
    return {post_ops.data(), static_cast<int>(post_ops.size()), pixels};
  }
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
  std::int64_t parts = 1;                            // of the output's pixels or rows, for threads

  bool is_flat() const { return op == Op::kProduct && product.out_height == 1; }
};

inline std::size_t Index(std::int64_t number) { return static_cast<std::size_t>(number); }

struct Program {
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<std::int64_t> inputs, outputs;
  std::vector<bool> packed;    // per input
  std::vector<bool> rows;      // by value
  std::size_t sum_floats = 0;  // that steps with means need

  Value& value(std::int64_t number) { return values[Index(number)]; }
  const Value& value(std::int64_t number) const { return values[Index(number)]; }
};

[[noreturn]] void Refuse(const std::string& what);

// Tensors of the program are those of the blob. All numbers are valid for the kernels: extents are 1 or more, values
// have one producer, before all readers, and shapes fit each other.
Program ReadProgram(const Blob& blob);

}  // namespace blocked
}  // namespace collage

#endif  // COLLAGE_BLOCKED_PROGRAM_H_
