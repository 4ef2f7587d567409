// Regions of convolutions in blocked layout: common definitions of the kernel (blocked_program.h, blocked_plan.h and
// blocked.cc) and its instruction sets.
//
// The layout of a value inside a region is [batch][channels / lanes][height * width][lanes]; arguments of the kernel
// are packed and unpacked at the region's borders. One micro-kernel serves all dense convolutions: accumulators are
// pixels x vectors of output channels, and a list of chunks has the offsets of the summed inputs, relative to the
// first input of a pixel.
//
//   w  weights [channels_out / kPanel][height * width * channels_in][kPanel], zeros at the end
//      depthwise [channels / kPanel][height * width][kPanel]
//
// Post-ops are applied to the tile of a micro-kernel in the first-level cache. A depthwise convolution runs over one
// vector of channels at a time, in a zero-padded copy. A 1x1 convolution before it writes that copy directly, a few rows
// at a time, and the expanded value is never stored completely (Sandler et al., 2018, call this pair with its projection
// an inverted residual). Sums over the pixels are computed in the same pass.
//
// The same source (blocked_kernels.h) is compiled once per instruction set.
#ifndef COLLAGE_BLOCKED_H_
#define COLLAGE_BLOCKED_H_

#include <cstdint>

#include "kernels/activation.h"

namespace collage {
namespace blocked {

constexpr std::int64_t kPanel = 32;  // channels whose weights lie together

struct Range {
  std::int64_t first, last;
};

// Consecutive inputs: `lanes` of them from `offset`, in floats.
struct Chunk {
  std::int64_t offset, lanes;
};

enum class PostOpKind : std::int64_t {
  kFunction,
  kAddValue,  // a value of the same shape
  kMultiplyValue,
  kAddChannel,  // a number per channel: a value of one pixel, or a constant
  kMultiplyChannel,
};

struct PostOp {
  PostOpKind kind;
  Function function;
  const float* operand;
  std::int64_t image_floats;  // of the operand, from one image to the next; 0 for constants
};

struct PostOps {
  const PostOp* first;
  int count;
  std::int64_t pixels;  // of the value they work on
};

// A dense convolution. A flat one (1x1, stride 1) has one row of all pixels.
struct Product {
  const Chunk* chunks;
  std::int64_t chunk_count, depth;  // the chunks' lanes are `depth` inputs
  const float* weights;
  const float* bias;  // padded like the weights
  std::int64_t channels_out;
  std::int64_t out_height, out_width;
  std::int64_t row_floats, column_floats;  // in the source, from one output pixel to the next
  PostOps post_ops;
};

// A depthwise convolution over padded rows; its source has `height` x `width` pixels without padding.
struct Depthwise {
  std::int64_t kernel_height, kernel_width, stride_y, stride_x, dilation_y, dilation_x;
  std::int64_t pad_top, pad_left, height, width, padded_height, padded_width;
  std::int64_t channels, out_height, out_width;
  const float* weights;
  const float* bias;
  PostOps post_ops;

  // Source rows, above zero or not, that are needed for output rows before `row`.
  std::int64_t RowsFor(std::int64_t row) const {
    return (row - 1) * stride_y + (kernel_height - 1) * dilation_y + 1 - pad_top;
  }
};

// The functions of one instruction set. Outputs are the first float of an image.
struct Instructions {
  const char* name;
  int lanes;
  int columns;  // vectors of channels in a strip, the unit of work of a product

  // One strip of output channels. `scale`, if not null, multiplies the inputs of a flat product; the
  // scaled weights go to `workspace`, of depth * kPanel floats.
  void (*product)(const Product& product, const float* source, const float* scale,
                  std::int64_t image, std::int64_t strip, Range rows, Range columns,
                  float* workspace, float* output);

  // One group of lanes, from `padded`. Adds the sums of its outputs to the lanes of `sums`, if any.
  void (*depthwise)(const Depthwise& depthwise, const float* padded, std::int64_t image,
                    std::int64_t group, Range rows, float* output, float* sums);

  // A flat product, of a strip of channels, and the depthwise convolution of its result. `padded` holds
  // `columns` padded groups, of which the zeros are there; the sums of channel i go to sums[i].
  void (*expand)(const Product& product, const Depthwise& depthwise, const float* source,
                 std::int64_t image, std::int64_t strip, Range rows, float* padded, float* output,
                 float* sums);

  // One group of lanes, of which `source` and `output` are the first float.
  void (*elementwise)(const PostOps& post_ops, const float* source, std::int64_t image,
                      std::int64_t group, float* output);
  void (*mean)(const float* source, std::int64_t pixels, float* output);

  // Between [channels][pixels], `channels` of them in this group, and [pixels][lanes].
  void (*pack)(const float* planar, std::int64_t channels, std::int64_t pixels, float* output);
  void (*unpack)(const float* source, std::int64_t channels, std::int64_t pixels, float* planar);
};

// Null where the compiler has none.
const Instructions* Avx512();
const Instructions* Avx2();
const Instructions* Plain();

}  // namespace blocked
}  // namespace collage

#endif  // COLLAGE_BLOCKED_H_
