// Vectors of floats, see simd_math.h. Included inside an anonymous namespace.
#include "kernels/simd_power.h"

struct Simd {
  using V = __m256;
  typedef int I __attribute__((vector_size(32)));
  static constexpr const char* kName = "avx2";
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;
  static constexpr int kColumns = 2;

  static V Set(float x) { return _mm256_set1_ps(x); }
  static V Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static V Fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V Max(V a, V b) { return _mm256_max_ps(a, b); }
  static V Min(V a, V b) { return _mm256_min_ps(a, b); }

  static V Whole(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static V TimesPower(V x, V n) {
    I power = (I)_mm256_cvtps_epi32(n);
    return x * (V)((power + 127) << 23);
  }
  static V PowerOfTwo(V x) { return PolynomialPower<Simd>(x); }
  static V Quotient(V a, V b) { return a / b; }

  // Lanes first..last - 1 from memory, zeros elsewhere.
  static V LoadPart(const float* p, std::int64_t first, std::int64_t last) {
    return _mm256_maskload_ps(p, Mask(first, last));
  }
  static void StorePart(float* p, V v, std::int64_t last) {
    _mm256_maskstore_ps(p, Mask(0, last), v);
  }

  static void Transpose(const V* rows, V* columns) {
    V quads[8];
    for (int i = 0; i < 8; i += 4) {
      V low_a = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      V low_b = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
      V high_a = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
      V high_b = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
      quads[i] = _mm256_shuffle_ps(low_a, low_b, 0x44);
      quads[i + 1] = _mm256_shuffle_ps(low_a, low_b, 0xee);
      quads[i + 2] = _mm256_shuffle_ps(high_a, high_b, 0x44);
      quads[i + 3] = _mm256_shuffle_ps(high_a, high_b, 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      columns[i] = _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x20);
      columns[4 + i] = _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x31);
    }
  }

 private:
  static __m256i Mask(std::int64_t first, std::int64_t last) {
    __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i from = _mm256_set1_epi32(static_cast<int>(first));
    __m256i to = _mm256_set1_epi32(static_cast<int>(last));
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(from, lanes), _mm256_cmpgt_epi32(to, lanes));
  }
};
