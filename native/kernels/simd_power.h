// 2^x for |x| <= 126 without a table. Included by simd_<name>.h whose Simd has Whole(x), the nearest
// integer, and TimesPower(x, n), x * 2^n for a whole n. 2^f for |f| <= 1/2 is a minimax polynomial with
// a relative error of 7.5e-8.
template <class Simd>
inline __attribute__((always_inline)) typename Simd::V PolynomialPower(typename Simd::V x) {
  auto whole = Simd::Whole(x), f = x - whole;
  auto p = Simd::Fma(Simd::Set(1.327646679e-3f), f, Simd::Set(9.675541293e-3f));
  p = Simd::Fma(p, f, Simd::Set(5.550713290e-2f));
  p = Simd::Fma(p, f, Simd::Set(2.402211972e-1f));
  p = Simd::Fma(p, f, Simd::Set(6.931469671e-1f));
  p = Simd::Fma(p, f, Simd::Set(1.000000072f));
  return Simd::TimesPower(p, whole);
}
