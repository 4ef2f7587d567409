// Arithmetic for one instruction set. Included inside an anonymous namespace, after simd_<name>.h has
// defined
//
//   struct Simd {
//     using V = ...;  // vector of floats that has the arithmetic operators
//     using I = ...;  // vector of 32-bit integers of the same size
//     kLanes, kRows x kColumns (accumulators of a micro-kernel: pixels x vectors of channels)
//     Set, Load, Store, LoadPart, StorePart, Fma, Max, Min, Transpose
//     PowerOfTwo(x), 2^x for |x| <= 126; Quotient(a, b), a / b for b >= 1
//   };
//
// No template of the standard library is used here: the linker could select an instance compiled for AVX-512 for the
// whole plug-in. "activation.h" is included before.
using V = Simd::V;
constexpr int kLanes = Simd::kLanes;

#define COLLAGE_INLINE inline __attribute__((always_inline))

COLLAGE_INLINE std::int64_t Least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
COLLAGE_INLINE V Fma(V a, V b, V c) { return Simd::Fma(a, b, c); }
COLLAGE_INLINE V Scaled(float a, V b, V c) { return Simd::Fma(Simd::Set(a), b, c); }

// 1 + exp(-x), with x between -87.3 and 87.3; a NaN stays one.
COLLAGE_INLINE V OnePlusExp(V x) {
  V z = x * Simd::Set(-1.44269504088896341f);
  z = Simd::Max(Simd::Set(-126.0f), Simd::Min(Simd::Set(126.0f), z));
  return Simd::Set(1.0f) + Simd::PowerOfTwo(z);
}

COLLAGE_INLINE V Sigmoid(V x) { return Simd::Quotient(Simd::Set(1.0f), OnePlusExp(x)); }
COLLAGE_INLINE V Silu(V x) { return Simd::Quotient(x, OnePlusExp(x)); }

COLLAGE_INLINE V HardSigmoid(V a, V b, V x) {
  return Simd::Min(Simd::Set(1.0f), Simd::Max(Simd::Set(0), Fma(a, x, b)));
}

// Replaces a vector.
struct Keep {
  V* x;
  void operator()(int i, V v) const { x[i] = v; }
};

// Calls store(i, the function of x[i]) for `count` vectors.
template <class Store>
COLLAGE_INLINE void Apply(const Function& function, const V* x, int count, Store store) {
  V a = Simd::Set(function.a), b = Simd::Set(function.b), zero = Simd::Set(0);
  auto each = [&](auto of) __attribute__((always_inline)) {
    for (int i = 0; i < count; ++i) store(i, of(x[i]));
  };
  switch (function.kind) {
    case Activation::kNone:
      return each([](V v) { return v; });
    case Activation::kClamp:
      return each([&](V v) { return Simd::Min(b, Simd::Max(a, v)); });
    case Activation::kLeakyRelu:
      return each([&](V v) { return Fma(a, Simd::Min(zero, v), Simd::Max(zero, v)); });
    case Activation::kSigmoid:
      return each([](V v) { return Sigmoid(v); });
    case Activation::kSilu:
      return each([](V v) { return Silu(v); });
    case Activation::kHardSigmoid:
      return each([&](V v) { return HardSigmoid(a, b, v); });
    case Activation::kHardSwish:
      return each([&](V v) { return v * HardSigmoid(a, b, v); });
    case Activation::kLinear:
      return each([&](V v) { return Fma(a, v, b); });
  }
}
