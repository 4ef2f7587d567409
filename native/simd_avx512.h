// Vectors of floats, see simd_math.h. Included inside an anonymous namespace.
struct Simd {
  using V = __m512;
  typedef int I __attribute__((vector_size(64)));
  static constexpr const char* kName = "avx512";
  static constexpr int kLanes = 16;
  static constexpr int kRows = 14;
  static constexpr int kColumns = 2;

  static V Set(float x) { return _mm512_set1_ps(x); }
  static V Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static V Fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V Max(V a, V b) { return _mm512_max_ps(a, b); }
  static V Min(V a, V b) { return _mm512_min_ps(a, b); }

  static V Whole(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
  static V TimesPower(V x, V n) { return _mm512_scalef_ps(x, n); }
  static V Reciprocal(V x) {  // one step of Newton's method
    V r = _mm512_rcp14_ps(x);
    return r * _mm512_fnmadd_ps(x, r, Set(2.0f));
  }

  // Lanes first..last - 1 from memory, zeros elsewhere.
  static V LoadPart(const float* p, std::int64_t first, std::int64_t last) {
    return _mm512_maskz_loadu_ps(Mask(last) & ~Mask(first), p);
  }
  static void StorePart(float* p, V v, std::int64_t last) {
    _mm512_mask_storeu_ps(p, Mask(last), v);
  }

  static void Transpose(const V* rows, V* columns) {
    __m512d pairs[16];
    for (int i = 0; i < 16; i += 4) {
      for (int high = 0; high < 2; ++high) {
        V a = high ? _mm512_unpackhi_ps(rows[i], rows[i + 1])
                   : _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        V b = high ? _mm512_unpackhi_ps(rows[i + 2], rows[i + 3])
                   : _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]);
        pairs[i + 2 * high] = _mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
        pairs[i + 2 * high + 1] = _mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
      }
    }
    for (int i = 0; i < 4; ++i) {  // pairs[4 r + i]: rows 4 r.., columns i, 4 + i, 8 + i, 12 + i
      V a = _mm512_castpd_ps(pairs[i]), b = _mm512_castpd_ps(pairs[4 + i]);
      V c = _mm512_castpd_ps(pairs[8 + i]), d = _mm512_castpd_ps(pairs[12 + i]);
      V even_low = _mm512_shuffle_f32x4(a, b, 0x88), odd_low = _mm512_shuffle_f32x4(a, b, 0xdd);
      V even_high = _mm512_shuffle_f32x4(c, d, 0x88), odd_high = _mm512_shuffle_f32x4(c, d, 0xdd);
      columns[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      columns[4 + i] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      columns[8 + i] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
      columns[12 + i] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
  }

 private:
  static __mmask16 Mask(std::int64_t lanes) {
    return lanes <= 0 ? 0 : static_cast<__mmask16>((1u << lanes) - 1);
  }
};
