// Vectors of floats, see simd_math.h. Included inside an anonymous namespace.
#include "kernels/simd_power.h"

struct Simd {
  typedef float V __attribute__((vector_size(16)));
  typedef int I __attribute__((vector_size(16)));
  static constexpr const char* kName = "plain";
  static constexpr int kLanes = 4;
  static constexpr int kRows = 4;
  static constexpr int kColumns = 2;

  static V Set(float x) { return V{x, x, x, x}; }
  static V Load(const float* p) { return V{p[0], p[1], p[2], p[3]}; }
  static void Store(float* p, V v) { StorePart(p, v, kLanes); }
  static V Fma(V a, V b, V c) { return a * b + c; }
  static V Max(V a, V b) { return a > b ? a : b; }
  static V Min(V a, V b) { return a < b ? a : b; }

  static V Whole(V x) { return (x + Set(12582912.0f)) - Set(12582912.0f); }  // 1.5 * 2^23
  static V TimesPower(V x, V n) {
    I power = (I)(n + Set(12582912.0f));  // n in the low bits
    return x * (V)((power + 127) << 23);
  }
  static V PowerOfTwo(V x) { return PolynomialPower<Simd>(x); }
  static V Quotient(V a, V b) { return a / b; }

  // Lanes first..last - 1 from memory, zeros elsewhere.
  static V LoadPart(const float* p, std::int64_t first, std::int64_t last) {
    V v = Set(0);
    for (std::int64_t i = first; i < last; ++i) v[i] = p[i];
    return v;
  }
  static void StorePart(float* p, V v, std::int64_t last) {
    for (std::int64_t i = 0; i < last; ++i) p[i] = v[i];
  }

  static void Transpose(const V* rows, V* columns) {
    for (int i = 0; i < kLanes; ++i) {
      columns[i] = V{rows[0][i], rows[1][i], rows[2][i], rows[3][i]};
    }
  }
};
