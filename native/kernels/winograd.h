// Winograd convolutions: common definitions of the kernel (winograd.cc) and its instruction sets.
//
// A 3x3 convolution with stride 1 is computed in tiles of m x m outputs from n x n inputs, n = m + 2
// (Lavin and Gray, 2015): Y = A'[(G g G') * (B' d B)]A. The product in the middle is elementwise, so
// over all tiles and channels it is n*n matrix products [tiles, channels_in] x [channels_in,
// channels_out], with 9 m*m / (n*n) times fewer multiplications: 2.25 for m = 2 and 4 for m = 4.
//
// Work goes by blocks of tiles that stay in the second-level cache:
//   v  transformed input   [n*n][channels_in / lanes][tiles][lanes]
//   u  transformed weights [channels_out / kPanel][n*n][channels_in][kPanel]
//   m  products of a panel [n*n][kPanel / lanes][tiles][lanes]
// u is computed at compilation. It is n*n / 9 times as large as the weights; with few tiles, reading it takes longer than
// the products. Then it is computed at run time, for a panel and some input channels at a time, from weights
// [channels_out / kPanel][channels_in][3][3][kPanel].
//
// Lanes are channels, except where rows of the NCHW input are loaded and rows of output are stored.
//
// The same source (winograd_kernels.h) is compiled once per instruction set; nothing else of the
// plug-in is compiled for more than the baseline of the architecture.
#ifndef COLLAGE_WINOGRAD_H_
#define COLLAGE_WINOGRAD_H_

#include <cstdint>

#include "kernels/activation.h"

namespace collage {
namespace winograd {

constexpr std::int64_t kPanel = 32;  // output channels that are computed together

// last(first(convolution + bias) + residual); `residual` may be null.
struct Epilogue {
  const float* bias;
  Function first;
  const float* residual;
  Function last;
};

// One convolution; tiles are numbered by image, row and column.
struct Geometry {
  std::int64_t channels_in, channels_out;
  std::int64_t height, width, out_height, out_width;
  std::int64_t pad_top, pad_left;
  std::int64_t tiles_y, tiles_x;
};

struct Range {
  std::int64_t first, last;
};

// m = v * u, or m += v * u, for every point and the first `channels` of a panel. `next_floats` from `next` are
// prefetched. Strides are between points, in floats.
struct Product {
  std::int64_t tiles, depth, channels;
  std::int64_t v_stride, u_stride, m_stride;
  bool add;
  const float* next;
  std::int64_t next_floats;
};

// The functions of one instruction set. Strides are in floats.
struct Instructions {
  const char* name;
  int lanes;

  // Writes the lanes of `channel`.. of `tiles`: v + point * v_stride + tile * lanes.
  void (*transform_input)(const Geometry& geometry, const float* input, Range tiles,
                          std::int64_t channel, float* v, std::int64_t v_stride);

  // u + point * u_stride = the weights [depth][3][3][kPanel] at that point.
  void (*transform_weights)(const float* weights, std::int64_t depth, float* u,
                            std::int64_t u_stride);

  void (*multiply)(const Product& product, const float* v, const float* u, float* m);

  // Writes the outputs of `tiles` for the channels `channel`.. of m's panel.
  void (*transform_output)(const Geometry& geometry, const Epilogue& epilogue, Range tiles,
                           std::int64_t channel, const float* m, std::int64_t m_stride,
                           float* output);
};

// The instruction sets for tiles of `size` (2 or 4) outputs; null where the compiler has none.
const Instructions* Avx512(int size);
const Instructions* Avx2(int size);
const Instructions* Plain(int size);

}  // namespace winograd
}  // namespace collage

#endif  // COLLAGE_WINOGRAD_H_
