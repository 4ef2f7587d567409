// The transforms and the micro-kernel, for one instruction set. Included by winograd_<name>.cc inside
// an anonymous namespace, after simd_<name>.h.
#include "kernels/simd_math.h"

constexpr int kStrip = 64;  // pixels of a row of tiles that are transformed together

// Points 0, 1, -1, infinity.
struct F2 {
  static constexpr int kOut = 2;
  static constexpr int kIn = 4;

  static COLLAGE_INLINE void Input(const V* d, V* r) {
    r[0] = d[2] - d[0];
    r[1] = d[2] + d[1];
    r[2] = d[2] - d[1];
    r[3] = d[3] - d[1];
  }

  static COLLAGE_INLINE void Filter(const V* g, V* r) {
    V even = Simd::Set(0.5f) * (g[0] + g[2]);
    r[0] = Simd::Set(0) - g[0];
    r[1] = Scaled(0.5f, g[1], even);
    r[2] = Scaled(-0.5f, g[1], even);
    r[3] = g[2];
  }

  static COLLAGE_INLINE void Output(const V* m, V* y) {
    y[0] = m[0] + m[1] + m[2];
    y[1] = m[1] - m[2] + m[3];
  }
};

// Points 0, +-a, +-b, infinity with a = sqrt(1/2) and b = sqrt(2): a fifth of the error of the usual
// +-1 and +-2, with a*a and b*b exact.
struct F4 {
  static constexpr int kOut = 4;
  static constexpr int kIn = 6;
  static constexpr float kA = 0.70710678118654752f;
  static constexpr float kB = 1.41421356237309505f;

  static COLLAGE_INLINE void Input(const V* d, V* r) {
    V even = Scaled(-2.0f, d[2], d[4]), odd = Scaled(-2.0f, d[1], d[3]);
    r[0] = Scaled(-2.5f, d[2], d[0] + d[4]);
    r[1] = Scaled(kA, odd, even);
    r[2] = Scaled(-kA, odd, even);
    even = Scaled(-0.5f, d[2], d[4]), odd = Scaled(-0.5f, d[1], d[3]);
    r[3] = Scaled(kB, odd, even);
    r[4] = Scaled(-kB, odd, even);
    r[5] = Scaled(-2.5f, d[3], d[1] + d[5]);
  }

  static COLLAGE_INLINE void Filter(const V* g, V* r) {
    V even_a = Scaled(-1 / 3.0f, g[2], Simd::Set(-2 / 3.0f) * g[0]);
    V even_b = Scaled(1 / 3.0f, g[2], Simd::Set(1 / 6.0f) * g[0]);
    r[0] = g[0];
    r[1] = Scaled(-kA / 1.5f, g[1], even_a);
    r[2] = Scaled(kA / 1.5f, g[1], even_a);
    r[3] = Scaled(kB / 6, g[1], even_b);
    r[4] = Scaled(-kB / 6, g[1], even_b);
    r[5] = g[2];
  }

  static COLLAGE_INLINE void Output(const V* m, V* y) {
    V sum_a = m[1] + m[2], difference_a = m[1] - m[2];
    V sum_b = m[3] + m[4], difference_b = m[3] - m[4];
    y[0] = m[0] + sum_a + sum_b;
    y[1] = Scaled(kA, difference_a, Simd::Set(kB) * difference_b);
    y[2] = Scaled(0.5f, sum_a, sum_b + sum_b);
    y[3] = Scaled(kA / 2, difference_a, Scaled(kB * 2, difference_b, m[5]));
  }
};

// Adjacent tiles in one row of one image, from tile `tile` of the block.
struct Strip {
  std::int64_t image, row, column, count, tile;
};

template <class F>
COLLAGE_INLINE Strip StripAt(const Geometry& geometry, Range tiles, std::int64_t tile) {
  std::int64_t row = tile / geometry.tiles_x, column = tile % geometry.tiles_x;
  std::int64_t count = Least(geometry.tiles_x - column, tiles.last - tile);
  count = Least(count, (kStrip - 2) / F::kOut);
  return {row / geometry.tiles_y, row % geometry.tiles_y, column, count, tile - tiles.first};
}

// Pixels of a row that exist, of `kLanes` from column `first`.
COLLAGE_INLINE Range Existing(std::int64_t first, std::int64_t width) {
  return {first < 0 ? Least(kLanes, -first) : 0, Least(kLanes, width - first)};
}

// Columns first: lanes are pixels of one channel. Then the transpose to lanes of channels.
template <class F>
void TransformColumns(const Geometry& geometry, const float* input, const Strip& strip,
                      std::int64_t channel, V (*pixels)[kStrip]) {
  std::int64_t top = strip.row * F::kOut - geometry.pad_top;
  std::int64_t left = strip.column * F::kOut - geometry.pad_left;
  std::int64_t plane = geometry.height * geometry.width;
  std::int64_t channels = Least(kLanes, geometry.channels_in - channel);
  const float* corner = input + (strip.image * geometry.channels_in + channel) * plane;
  V turned[F::kIn][kLanes];
  for (std::int64_t done = 0; done < strip.count * F::kOut + 2; done += kLanes) {
    Range existing = Existing(left + done, geometry.width);
    bool whole = existing.first == 0 && existing.last == kLanes;
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float* pixel = corner + lane * plane + top * geometry.width + left + done;
      V d[F::kIn], r[F::kIn];
      for (int i = 0; i < F::kIn; ++i, pixel += geometry.width) {
        bool inside = top + i >= 0 && top + i < geometry.height && lane < channels;
        if (i >= 2)
          __builtin_prefetch(pixel + F::kOut * geometry.width);  // for the next row of tiles
        d[i] = !inside ? Simd::Set(0)
               : whole ? Simd::Load(pixel)
                       : Simd::LoadPart(pixel, existing.first, existing.last);
      }
      F::Input(d, r);
      for (int i = 0; i < F::kIn; ++i) turned[i][lane] = r[i];
    }
    for (int i = 0; i < F::kIn; ++i) Simd::Transpose(turned[i], pixels[i] + done);
  }
}

template <class F>
void TransformInput(const Geometry& geometry, const float* input, Range tiles, std::int64_t channel,
                    float* v, std::int64_t v_stride) {
  V pixels[F::kIn][kStrip];
  for (std::int64_t tile = tiles.first; tile < tiles.last;) {
    Strip strip = StripAt<F>(geometry, tiles, tile);
    TransformColumns<F>(geometry, input, strip, channel, pixels);
    for (int i = 0; i < F::kIn; ++i) {
      float* target = v + i * F::kIn * v_stride + strip.tile * kLanes;
      for (std::int64_t t = 0; t < strip.count; ++t, target += kLanes) {
        V r[F::kIn];
        F::Input(pixels[i] + t * F::kOut, r);
        for (int j = 0; j < F::kIn; ++j) Simd::Store(target + j * v_stride, r[j]);
      }
    }
    tile += strip.count;
  }
}

// Weights of `depth` input channels and one panel: [depth][3][3][kPanel] to u.
template <class F>
void TransformWeights(const float* weights, std::int64_t depth, float* u, std::int64_t u_stride) {
  for (std::int64_t k = 0; k < depth; ++k, weights += 9 * kPanel, u += kPanel) {
    for (int lane = 0; lane < kPanel; lane += kLanes) {
      V half[3][F::kIn];
      for (int j = 0; j < 3; ++j) {
        V column[3];
        for (int i = 0; i < 3; ++i) column[i] = Simd::Load(weights + (3 * i + j) * kPanel + lane);
        F::Filter(column, half[j]);
      }
      for (int i = 0; i < F::kIn; ++i) {
        V row[3] = {half[0][i], half[1][i], half[2][i]}, r[F::kIn];
        F::Filter(row, r);
        for (int j = 0; j < F::kIn; ++j) {
          Simd::Store(u + (i * F::kIn + j) * u_stride + lane, r[j]);
        }
      }
    }
  }
}

// Prefetch distances to the weights of the next point, often in memory only. Each pass over the tiles prefetches a part
// of them, so the transfer is continuous; 0 prefetches cached weights.
struct Ahead {
  std::int64_t lines[2];
};

// c = a * b, or c += a * b, for H tiles and C vectors of channels. The lanes of `a` are the channels
// summed over.
template <int H, int C>
void Multiply(const float* a, std::int64_t a_stride, const float* b, std::int64_t depth, float* c,
              std::int64_t c_stride, bool add, Ahead ahead) {
  constexpr int kLines = C * kLanes > 16 ? 2 : 1;
  V sum[H][C];
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) {
      sum[i][j] = add ? Simd::Load(c + j * c_stride + i * kLanes) : Simd::Set(0);
    }
  }
  for (std::int64_t start = 0; start < depth; start += kLanes, a += a_stride) {
    std::int64_t lanes = Least(kLanes, depth - start);
    for (std::int64_t k = 0; k < lanes; ++k, b += kPanel) {
      V weights[C];
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) weights[j] = Simd::Load(b + j * kLanes);
      for (int j = 0; j < kLines; ++j) __builtin_prefetch(b + ahead.lines[j], 0, 3);
#pragma GCC unroll 16
      for (int i = 0; i < H; ++i) {
        V value = Simd::Set(a[i * kLanes + k]);
#pragma GCC unroll 4
        for (int j = 0; j < C; ++j) sum[i][j] = Fma(value, weights[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) Simd::Store(c + j * c_stride + i * kLanes, sum[i][j]);
  }
}

using MultiplyFunction = void (*)(const float*, std::int64_t, const float*, std::int64_t, float*,
                                  std::int64_t, bool, Ahead);

// Multiply<height, C> for every height up to kRows.
template <int C, int H = Simd::kRows>
COLLAGE_INLINE MultiplyFunction Choose(std::int64_t height) {
  if constexpr (H > 1) {
    if (height < H) return Choose<C, H - 1>(height);
  }
  return Multiply<H, C>;
}

// All tiles of one point, in passes of nearly equal height.
template <int C>
void MultiplyPoint(const Product& product, const float* v, const float* u, float* m) {
  std::int64_t passes = (product.tiles + Simd::kRows - 1) / Simd::kRows;
  std::int64_t height = product.tiles / passes, higher = product.tiles % passes;
  std::int64_t stride = product.tiles * kLanes;
  for (std::int64_t i = 0, tile = 0; i < passes; ++i) {
    std::int64_t rows = height + (i < higher);
    Ahead ahead{{i < 2 ? product.u_stride + i * 16 : 0, passes == 1 ? product.u_stride + 16 : 0}};
    Choose<C>(rows)(v + tile * kLanes, stride, u, product.depth, m + tile * kLanes, stride,
                    product.add, ahead);
    tile += rows;
  }
}

template <class F>
void MultiplyAll(const Product& product, const float* v, const float* u, float* m) {
  constexpr std::int64_t kPoints = F::kIn * F::kIn;
  std::int64_t vectors = (product.channels + kLanes - 1) / kLanes;
  std::int64_t share = (product.next_floats + kPoints - 1) / kPoints;
  for (std::int64_t point = 0; point < kPoints; ++point) {
    for (std::int64_t done = 0; done < share; done += 16) {
      __builtin_prefetch(product.next + point * share + done, 0, 2);
    }
    for (std::int64_t j = 0; j < vectors; j += Simd::kColumns) {
      auto multiply =
          vectors - j >= Simd::kColumns ? MultiplyPoint<Simd::kColumns> : MultiplyPoint<1>;
      multiply(product, v + point * product.v_stride, u + point * product.u_stride + j * kLanes,
               m + point * product.m_stride + j * product.tiles * kLanes);
    }
  }
}

// The outputs of `count` tiles, at most kLanes pixels wide: lanes are channels.
template <class F>
COLLAGE_INLINE void TransformTiles(const float* m, std::int64_t m_stride, std::int64_t count,
                                   V (*rows)[kLanes]) {
  for (std::int64_t t = 0; t < count; ++t, m += kLanes) {
    V half[F::kOut][F::kIn];
    for (int j = 0; j < F::kIn; ++j) {
      V column[F::kIn], y[F::kOut];
      for (int i = 0; i < F::kIn; ++i) column[i] = Simd::Load(m + (i * F::kIn + j) * m_stride);
      F::Output(column, y);
      for (int i = 0; i < F::kOut; ++i) half[i][j] = y[i];
    }
    for (int i = 0; i < F::kOut; ++i) F::Output(half[i], rows[i] + t * F::kOut);
  }
}

// Stores `width` pixels of one row for kLanes channels or fewer. The pixels `ahead` come next.
COLLAGE_INLINE void StoreRow(const Geometry& geometry, const Epilogue& epilogue, std::int64_t image,
                             std::int64_t channel, std::int64_t pixel, std::int64_t width,
                             std::int64_t ahead, const V* row, float* output) {
  V turned[kLanes];
  Simd::Transpose(row, turned);
  std::int64_t plane = geometry.out_height * geometry.out_width;
  std::int64_t start = (image * geometry.channels_out + channel) * plane + pixel;
  std::int64_t channels = Least(kLanes, geometry.channels_out - channel);
  for (std::int64_t lane = 0; lane < channels; ++lane, start += plane) {
    V x = turned[lane] + Simd::Set(epilogue.bias[channel + lane]);
    Apply(epilogue.first, &x, 1, Keep{&x});
    if (epilogue.residual != nullptr) {
      const float* residual = epilogue.residual + start;
      __builtin_prefetch(residual + ahead);
      x = x + (width == kLanes ? Simd::Load(residual) : Simd::LoadPart(residual, 0, width));
    }
    Apply(epilogue.last, &x, 1, Keep{&x});
    __builtin_prefetch(output + start + ahead, 1);
    if (width == kLanes) {
      Simd::Store(output + start, x);
    } else {
      Simd::StorePart(output + start, x, width);
    }
  }
}

template <class F>
void TransformOutput(const Geometry& geometry, const Epilogue& epilogue, Range tiles,
                     std::int64_t channel, const float* m, std::int64_t m_stride, float* output) {
  constexpr std::int64_t kTiles = kLanes / F::kOut;
  V rows[F::kOut][kLanes] = {};
  for (std::int64_t tile = tiles.first; tile < tiles.last;) {
    Strip strip = StripAt<F>(geometry, tiles, tile);
    for (std::int64_t t = 0; t < strip.count; t += kTiles) {
      std::int64_t count = Least(kTiles, strip.count - t);
      TransformTiles<F>(m + (strip.tile + t) * kLanes, m_stride, count, rows);
      std::int64_t x = (strip.column + t) * F::kOut, y = strip.row * F::kOut;
      std::int64_t width = Least(count * F::kOut, geometry.out_width - x);
      for (int i = 0; i < F::kOut && y + i < geometry.out_height; ++i) {
        StoreRow(geometry, epilogue, strip.image, channel, (y + i) * geometry.out_width + x, width,
                 F::kOut * geometry.out_width, rows[i], output);
      }
    }
    tile += strip.count;
  }
}

template <class F>
constexpr Instructions kInstructions = {Simd::kName,         kLanes,         TransformInput<F>,
                                        TransformWeights<F>, MultiplyAll<F>, TransformOutput<F>};

const Instructions* Find(int size) { return size == 4 ? &kInstructions<F4> : &kInstructions<F2>; }
