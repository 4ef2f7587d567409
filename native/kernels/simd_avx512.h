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

  // 2^(n / 32) from a table, times a parabola for the rest, with a relative error of 1e-7.
  static V PowerOfTwo(V x) {
    V sum = x + Set(393216.0f);  // 1.5 * 2^18: n is in its low bits
    V rest = x - (sum - Set(393216.0f));
    V root = Root(_mm512_castps_si512(sum));
    return Fma(root * rest, Fma(Set(0.240226507f), rest, Set(0.693157344f)), root);
  }

  static V Quotient(V a, V b) {
    if (__builtin_cpu_is("amd")) return a / b;  // takes as long as 6 products, Intel's as 16
    V r = _mm512_rcp14_ps(b);
    return a * (r * _mm512_fnmadd_ps(b, r, Set(2.0f)));  // one step of Newton's method
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
  // 2^(n / 32). Of the table's bits n * 2^18 is taken off, so that n's own bits give the exponent.
  static V Root(__m512i n) {
    alignas(64) static const std::uint32_t table[32] = {
        0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3,
        0x3f78f4f0, 0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043, 0x3f75fed7, 0x3f75a15b,
        0x3f75583f, 0x3f7523f6, 0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a,
        0x3f75b9be, 0x3f76248c, 0x3f76a81e, 0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907,
        0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3};
    __m512i low = _mm512_load_si512(table), high = _mm512_load_si512(table + 16);
    __m512i power = _mm512_permutex2var_epi32(low, n, high);
    return _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_slli_epi32(n, 18)));
  }
  static __mmask16 Mask(std::int64_t lanes) {
    return lanes <= 0 ? 0 : static_cast<__mmask16>((1u << lanes) - 1);
  }
};
