// The kernels of blocked.h for one instruction set. Included by blocked_<name>.cc inside an anonymous
// namespace, after simd_<name>.h.
#include "kernels/simd_math.h"

// Floats of an expanded value that are computed before they are read.
constexpr std::int64_t kBandFloats = 24 << 10;

// Consecutive pixels of one group of channels.
struct Place {
  std::int64_t image, group, pixel;
};

// Stores one vector after the other.
struct Emit {
  float* target;
  void operator()(int i, V v) const { Simd::Store(target + i * kLanes, v); }
};

template <class Store>
void ApplyPost(const PostOp& post_op, const PostOps& post_ops, const Place& place, const V* x,
               int count, Store store) {
  const float* image = post_op.operand + place.image * post_op.image_floats;
  const float* channel = image + place.group * kLanes;
  const float* same = image + (place.group * post_ops.pixels + place.pixel) * kLanes;
  switch (post_op.kind) {
    case PostOpKind::kFunction:
      return Apply(post_op.function, x, count, store);
    case PostOpKind::kAddValue:
      for (int i = 0; i < count; ++i) store(i, x[i] + Simd::Load(same + i * kLanes));
      return;
    case PostOpKind::kMultiplyValue:
      for (int i = 0; i < count; ++i) store(i, x[i] * Simd::Load(same + i * kLanes));
      return;
    case PostOpKind::kAddChannel:
      for (int i = 0; i < count; ++i) store(i, x[i] + Simd::Load(channel));
      return;
    case PostOpKind::kMultiplyChannel:
      for (int i = 0; i < count; ++i) store(i, x[i] * Simd::Load(channel));
      return;
  }
}

// Applies the post-ops to `count` pixels and stores them consecutively.
COLLAGE_INLINE void Finish(const PostOps& post_ops, const Place& place, V* x, int count,
                           float* target) {
  Emit emit{target};
  if (post_ops.count == 0) {
    for (int i = 0; i < count; ++i) emit(i, x[i]);
    return;
  }
  const PostOp* last = post_ops.first + post_ops.count - 1;
  for (const PostOp* post_op = post_ops.first; post_op < last; ++post_op) {
    ApplyPost(*post_op, post_ops, place, x, count, Keep{x});
  }
  ApplyPost(*last, post_ops, place, x, count, emit);
}

// H pixels and C vectors of channels: out[j * H + i] = bias + sum over the chunks. The distance between pixels is S
// floats, or `step` if S is 0. As many weights from `next`, those of the next strip or step, are prefetched.
template <int H, int C, int S>
void Multiply(const float* a, std::int64_t step, const Product& product, const float* b,
              const float* bias, const float* next, V* out) {
  if (S > 0) step = S;
  V sum[H][C];
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) sum[i][j] = Simd::Load(bias + j * kLanes);
  }
  const Chunk* end = product.chunks + product.chunk_count;
  for (const Chunk* chunk = product.chunks; chunk < end; ++chunk) {
    const float* values = a + chunk->offset;
    for (const float* last = values + chunk->lanes; values < last; ++values, b += kPanel) {
      V weights[C];
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) weights[j] = Simd::Load(b + j * kLanes);
      for (int line = 0; line < C * kLanes; line += 16) __builtin_prefetch(next + line, 0, 2);
      next += kPanel;
#pragma GCC unroll 16
      for (int i = 0; i < H; ++i) {
        V value = Simd::Set(values[i * step]);
#pragma GCC unroll 4
        for (int j = 0; j < C; ++j) sum[i][j] = Fma(value, weights[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) out[j * H + i] = sum[i][j];
  }
}

using MultiplyFunction = void (*)(const float*, std::int64_t, const Product&, const float*,
                                  const float*, const float*, V*);

template <int C, int S, int H = Simd::kRows>
COLLAGE_INLINE MultiplyFunction ChooseHeight(std::int64_t height) {
  if constexpr (H > 1) {
    if (height < H) return ChooseHeight<C, S, H - 1>(height);
  }
  return Multiply<H, C, S>;
}

template <int C>
COLLAGE_INLINE MultiplyFunction ChooseMultiply(std::int64_t height, std::int64_t step) {
  if (step == kLanes) return ChooseHeight<C, kLanes>(height);
  return step == 2 ? ChooseHeight<C, 2>(height) : ChooseHeight<C, 0>(height);
}

// Calls use(first, count) for parts of nearly equal size, at most `most`.
template <class Use>
COLLAGE_INLINE void Balanced(Range range, std::int64_t most, Use use) {
  std::int64_t size = range.last - range.first, parts = (size + most - 1) / most;
  for (std::int64_t part = 0; part < parts; ++part) {
    std::int64_t first = size * part / parts, last = size * (part + 1) / parts;
    use(range.first + first, last - first);
  }
}

// The weights of a strip times the scale of their inputs.
template <int C>
const float* ScaledWeights(const Product& product, const float* weights, const float* scale,
                           float* workspace) {
  for (std::int64_t k = 0; k < product.depth; ++k) {
    V factor = Simd::Set(scale[k]);
    for (int j = 0; j < C; ++j) {
      std::int64_t at = k * kPanel + j * kLanes;
      Simd::Store(workspace + at, factor * Simd::Load(weights + at));
    }
  }
  return workspace;
}

template <int C>
void ProductStrip(const Product& product, const float* source, const float* scale,
                  std::int64_t image, std::int64_t channel, Range rows, Range columns,
                  float* workspace, float* output) {
  const float* weights =
      product.weights + channel / kPanel * product.depth * kPanel + channel % kPanel;
  const float* next = weights + product.depth * kPanel;
  if (scale != nullptr) weights = ScaledWeights<C>(product, weights, scale, workspace);
  for (std::int64_t y = rows.first; y < rows.last; ++y) {
    Balanced(columns, Simd::kRows, [&](std::int64_t x, std::int64_t count) {
      V tile[Simd::kRows * C];
      const float* a = source + y * product.row_floats + x * product.column_floats;
      ChooseMultiply<C>(count, product.column_floats)(a, product.column_floats, product, weights,
                                                      product.bias + channel, next, tile);
      Place place{image, channel / kLanes, y * product.out_width + x};
      for (int j = 0; j < C; ++j, ++place.group) {
        Finish(product.post_ops, place, tile + j * count, static_cast<int>(count),
               output + (place.group * product.post_ops.pixels + place.pixel) * kLanes);
      }
    });
  }
}

void ProductOf(const Product& product, const float* source, const float* scale, std::int64_t image,
               std::int64_t strip, Range rows, Range columns, float* workspace, float* output) {
  std::int64_t channel = strip * Simd::kColumns * kLanes;
  bool is_full = product.channels_out - channel > (Simd::kColumns - 1) * kLanes;
  auto run = is_full ? ProductStrip<Simd::kColumns> : ProductStrip<1>;
  for (int j = 0; j < (is_full ? 1 : Simd::kColumns); ++j, channel += kLanes) {
    if (channel >= product.channels_out) break;
    run(product, source, scale, image, channel, rows, columns, workspace, output);
  }
}

// T pixels of one row of a depthwise convolution, with stride S in x, or any where S is 0.
template <int T, int S>
void DepthwiseTile(const Depthwise& d, const float* corner, const float* weights, const float* bias,
                   V* out) {
  V sum[T];
#pragma GCC unroll 16
  for (int i = 0; i < T; ++i) sum[i] = Simd::Load(bias);
  std::int64_t step = (S > 0 ? S : d.stride_x) * kLanes;
  std::int64_t right = d.dilation_x * kLanes, down = d.dilation_y * d.padded_width * kLanes;
  for (std::int64_t ky = 0; ky < d.kernel_height; ++ky, corner += down) {
    const float* pixel = corner;
    for (std::int64_t kx = 0; kx < d.kernel_width; ++kx, weights += kPanel, pixel += right) {
      V weight = Simd::Load(weights);
#pragma GCC unroll 16
      for (int i = 0; i < T; ++i) sum[i] = Fma(Simd::Load(pixel + i * step), weight, sum[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < T; ++i) out[i] = sum[i];
}

using DepthwiseFunction = void (*)(const Depthwise&, const float*, const float*, const float*, V*);

template <int S, int T = Simd::kRows>
COLLAGE_INLINE DepthwiseFunction ChooseWidth(std::int64_t width) {
  if constexpr (T > 1) {
    if (width < T) return ChooseWidth<S, T - 1>(width);
  }
  return DepthwiseTile<T, S>;
}

COLLAGE_INLINE DepthwiseFunction ChooseDepthwise(std::int64_t width, std::int64_t stride) {
  if (stride == 1) return ChooseWidth<1>(width);
  return stride == 2 ? ChooseWidth<2>(width) : ChooseWidth<0>(width);
}

void DepthwiseOf(const Depthwise& d, const float* padded, std::int64_t image, std::int64_t group,
                 Range rows, float* output, float* sums) {
  std::int64_t channel = group * kLanes, taps = d.kernel_height * d.kernel_width;
  const float* weights = d.weights + channel / kPanel * taps * kPanel + channel % kPanel;
  V total = Simd::Set(0);
  for (std::int64_t y = rows.first; y < rows.last; ++y) {
    Balanced({0, d.out_width}, Simd::kRows, [&](std::int64_t x, std::int64_t count) {
      V tile[Simd::kRows];
      const float* corner = padded + (y * d.stride_y * d.padded_width + x * d.stride_x) * kLanes;
      ChooseDepthwise(count, d.stride_x)(d, corner, weights, d.bias + channel, tile);
      Place place{image, group, y * d.out_width + x};
      float* target = output + (group * d.post_ops.pixels + place.pixel) * kLanes;
      Finish(d.post_ops, place, tile, static_cast<int>(count), target);
      if (sums == nullptr) return;
      for (int i = 0; i < count; ++i) total = total + Simd::Load(target + i * kLanes);
    });
  }
  if (sums != nullptr) Simd::Store(sums, Simd::Load(sums) + total);
}

// Computes source pixels of a strip into the padded groups.
template <int C>
void ExpandPixels(const Product& product, const Depthwise& d, const float* source,
                  std::int64_t image, std::int64_t channel, Range pixels, float* padded) {
  const float* weights =
      product.weights + channel / kPanel * product.depth * kPanel + channel % kPanel;
  const float* next = weights + product.depth * kPanel;
  std::int64_t group_floats = d.padded_height * d.padded_width * kLanes;
  Balanced(pixels, Simd::kRows, [&](std::int64_t pixel, std::int64_t count) {
    V tile[Simd::kRows * C];
    ChooseMultiply<C>(count, kLanes)(source + pixel * kLanes, kLanes, product, weights,
                                     product.bias + channel, next, tile);
    for (std::int64_t done = 0, some; done < count; done += some) {  // row by row
      std::int64_t y = (pixel + done) / d.width, x = (pixel + done) % d.width;
      some = Least(count - done, d.width - x);
      float* row = padded + ((y + d.pad_top) * d.padded_width + d.pad_left + x) * kLanes;
      Place place{image, channel / kLanes, pixel + done};
      for (int j = 0; j < C; ++j, ++place.group) {
        Finish(product.post_ops, place, tile + j * count + done, static_cast<int>(some),
               row + j * group_floats);
      }
    }
  });
}

template <int C>
void ExpandStrip(const Product& product, const Depthwise& d, const float* source,
                 std::int64_t image, std::int64_t channel, Range rows, float* padded, float* output,
                 float* sums) {
  std::int64_t band = kBandFloats / (C * kLanes * d.padded_width * d.stride_y);
  std::int64_t done = d.RowsFor(rows.first + 1) - ((d.kernel_height - 1) * d.dilation_y + 1);
  if (done < 0) done = 0;
  Balanced(rows, band < 1 ? 1 : band, [&](std::int64_t first, std::int64_t count) {
    std::int64_t needed = Least(d.height, d.RowsFor(first + count));
    if (needed > done) {
      Range pixels{done * d.width, needed * d.width};
      ExpandPixels<C>(product, d, source, image, channel, pixels, padded);
      done = needed;
    }
    for (int j = 0; j < C; ++j) {
      DepthwiseOf(d, padded + j * d.padded_height * d.padded_width * kLanes, image,
                  channel / kLanes + j, {first, first + count}, output,
                  sums == nullptr ? nullptr : sums + channel + j * kLanes);
    }
  });
}

void ExpandOf(const Product& product, const Depthwise& d, const float* source, std::int64_t image,
              std::int64_t strip, Range rows, float* padded, float* output, float* sums) {
  std::int64_t channel = strip * Simd::kColumns * kLanes;
  bool is_full = product.channels_out - channel > (Simd::kColumns - 1) * kLanes;
  auto run = is_full ? ExpandStrip<Simd::kColumns> : ExpandStrip<1>;
  for (int j = 0; j < (is_full ? 1 : Simd::kColumns); ++j, channel += kLanes) {
    if (channel >= product.channels_out) break;
    run(product, d, source, image, channel, rows, padded, output, sums);
  }
}

void ElementwiseOf(const PostOps& post_ops, const float* source, std::int64_t image,
                   std::int64_t group, float* output) {
  Balanced({0, post_ops.pixels}, Simd::kRows, [&](std::int64_t pixel, std::int64_t count) {
    V x[Simd::kRows];
    for (int i = 0; i < count; ++i) x[i] = Simd::Load(source + (pixel + i) * kLanes);
    Finish(post_ops, {image, group, pixel}, x, static_cast<int>(count), output + pixel * kLanes);
  });
}

void MeanOf(const float* source, std::int64_t pixels, float* output) {
  V sum[4] = {Simd::Set(0), Simd::Set(0), Simd::Set(0), Simd::Set(0)};
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    sum[pixel & 3] = sum[pixel & 3] + Simd::Load(source + pixel * kLanes);
  }
  V total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  Simd::Store(output, total * Simd::Set(1.0f / static_cast<float>(pixels)));
}

void PackOf(const float* planar, std::int64_t channels, std::int64_t pixels, float* output) {
  for (std::int64_t pixel = 0; pixel < pixels; pixel += kLanes) {
    std::int64_t count = Least(kLanes, pixels - pixel);
    V rows[kLanes], columns[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const float* row = planar + lane * pixels + pixel;
      rows[lane] = lane >= channels  ? Simd::Set(0)
                   : count == kLanes ? Simd::Load(row)
                                     : Simd::LoadPart(row, 0, count);
    }
    Simd::Transpose(rows, columns);
    for (int i = 0; i < count; ++i) Simd::Store(output + (pixel + i) * kLanes, columns[i]);
  }
}

void UnpackOf(const float* source, std::int64_t channels, std::int64_t pixels, float* planar) {
  V rows[kLanes] = {}, columns[kLanes];
  for (std::int64_t pixel = 0; pixel < pixels; pixel += kLanes) {
    std::int64_t count = Least(kLanes, pixels - pixel);
    for (int i = 0; i < count; ++i) rows[i] = Simd::Load(source + (pixel + i) * kLanes);
    Simd::Transpose(rows, columns);
    for (int lane = 0; lane < channels; ++lane) {
      float* row = planar + lane * pixels + pixel;
      if (count == kLanes) {
        Simd::Store(row, columns[lane]);
      } else {
        Simd::StorePart(row, columns[lane], count);
      }
    }
  }
}

constexpr Instructions kInstructions = {
    Simd::kName, kLanes,        Simd::kColumns, ProductOf, DepthwiseOf,
    ExpandOf,    ElementwiseOf, MeanOf,         PackOf,    UnpackOf,
};
