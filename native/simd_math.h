// Arithmetic for one instruction set. Included inside an anonymous namespace, after simd_<name>.h has
// defined
//
//   struct Simd {
//     using V = ...;  // vector of floats that has the arithmetic operators
//     using I = ...;  // vector of 32-bit integers of the same size
//     kLanes, kRows x kColumns (accumulators of a micro-kernel: pixels x vectors of channels)
//     Set, Load, Store, LoadPart, StorePart, Fma, Max, Min, Transpose
//     Whole(x), the nearest integer; TimesPower(x, n), x * 2^n for a whole n <= 127; Reciprocal(x)
//   };
//
// No template of the standard library is used here: one that is compiled for AVX-512 could be chosen
// by the linker for the whole plug-in. "activation.h" is included before.
using V = Simd::V;
constexpr int kLanes = Simd::kLanes;

#define COLLAGE_INLINE inline __attribute__((always_inline))

COLLAGE_INLINE std::int64_t Least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
COLLAGE_INLINE V Fma(V a, V b, V c) { return Simd::Fma(a, b, c); }
COLLAGE_INLINE V Scaled(float a, V b, V c) { return Simd::Fma(Simd::Set(a), b, c); }

// 1 / (1 + exp(-x)). 2^f for |f| <= 1/2 is a minimax polynomial with a relative error of 7.5e-8.
COLLAGE_INLINE V Sigmoid(V x) {
  V z = Simd::Min(Simd::Set(126.0f), x * Simd::Set(-1.44269504088896341f));
  V whole = Simd::Whole(z);
  V f = z - whole;
  V p = Scaled(1.327646679e-3f, f, Simd::Set(9.675541293e-3f));
  p = Fma(p, f, Simd::Set(5.550713290e-2f));
  p = Fma(p, f, Simd::Set(2.402211972e-1f));
  p = Fma(p, f, Simd::Set(6.931469671e-1f));
  p = Fma(p, f, Simd::Set(1.000000072f));
  return Simd::Reciprocal(Simd::Set(1.0f) + Simd::TimesPower(p, whole));
}

COLLAGE_INLINE V HardSigmoid(V a, V b, V x) {
  return Simd::Min(Simd::Set(1.0f), Simd::Max(Simd::Set(0), Fma(a, x, b)));
}

// Replaces `count` vectors by their function.
COLLAGE_INLINE void Apply(const Function& function, V* x, int count) {
  V a = Simd::Set(function.a), b = Simd::Set(function.b), zero = Simd::Set(0);
  switch (function.kind) {
    case Activation::kNone:
      return;
    case Activation::kClamp:
      for (int i = 0; i < count; ++i) x[i] = Simd::Min(b, Simd::Max(a, x[i]));
      return;
    case Activation::kLeakyRelu:
      for (int i = 0; i < count; ++i) x[i] = Fma(a, Simd::Min(zero, x[i]), Simd::Max(zero, x[i]));
      return;
    case Activation::kSigmoid:
      for (int i = 0; i < count; ++i) x[i] = Sigmoid(x[i]);
      return;
    case Activation::kSilu:
      for (int i = 0; i < count; ++i) x[i] = x[i] * Sigmoid(x[i]);
      return;
    case Activation::kHardSigmoid:
      for (int i = 0; i < count; ++i) x[i] = HardSigmoid(a, b, x[i]);
      return;
    case Activation::kHardSwish:
      for (int i = 0; i < count; ++i) x[i] = x[i] * HardSigmoid(a, b, x[i]);
      return;
    case Activation::kLinear:
      for (int i = 0; i < count; ++i) x[i] = Fma(a, x[i], b);
      return;
  }
}
