// The 16-bit floats of generated CUDA code: every operation is done in float and rounded once. A part of
// kernel.h, which declares Yield.
#ifndef SIMULATED_HALF_H_
#define SIMULATED_HALF_H_

#include <cmath>
#include <cstdint>

#include "numbers.h"

namespace simulated {

template <Dtype type>
struct Narrow {
  std::uint16_t bits;

  Narrow() = default;
  Narrow(const Narrow&) = default;
  Narrow(const volatile Narrow& from) : bits(from.bits) {}
  Narrow& operator=(const Narrow&) = default;
  // Through such pointers TVM sums up within a warp, whose threads then read, and then write, together.
  void operator=(const Narrow& from) volatile {
    Yield();
    bits = from.bits;
    Yield();
  }
  Narrow(float value) { Store(&bits, type, 0, value); }  // NOLINT: as CUDA's, not explicit
  Narrow(double value) : Narrow(static_cast<float>(value)) {}
  Narrow(int value) : Narrow(static_cast<float>(value)) {}
  Narrow(std::int64_t value) : Narrow(static_cast<float>(value)) {}
  operator float() const { return Load(&bits, type, 0); }    // NOLINT
  operator float() const volatile { return Narrow(*this); }  // NOLINT

  friend Narrow operator+(Narrow a, Narrow b) { return Narrow(float(a) + float(b)); }
  friend Narrow operator-(Narrow a, Narrow b) { return Narrow(float(a) - float(b)); }
  friend Narrow operator*(Narrow a, Narrow b) { return Narrow(float(a) * float(b)); }
  friend Narrow operator/(Narrow a, Narrow b) { return Narrow(float(a) / float(b)); }
  friend Narrow operator-(Narrow a) { return Narrow(-float(a)); }
  friend bool operator<(Narrow a, Narrow b) { return float(a) < float(b); }
  friend bool operator>(Narrow a, Narrow b) { return float(a) > float(b); }
  friend bool operator<=(Narrow a, Narrow b) { return float(a) <= float(b); }
  friend bool operator>=(Narrow a, Narrow b) { return float(a) >= float(b); }
  friend bool operator==(Narrow a, Narrow b) { return float(a) == float(b); }
  friend bool operator!=(Narrow a, Narrow b) { return float(a) != float(b); }
  Narrow& operator+=(Narrow b) { return *this = *this + b; }

#define SIMULATED_UNARY(NAME, WHAT) \
  friend Narrow NAME(Narrow a) { return Narrow(WHAT(float(a))); }
  SIMULATED_UNARY(hexp, std::exp)
  SIMULATED_UNARY(hlog, std::log)
  SIMULATED_UNARY(hsqrt, std::sqrt)
  SIMULATED_UNARY(htanh, std::tanh)
  SIMULATED_UNARY(htan, std::tan)
  SIMULATED_UNARY(hatan, std::atan)
  SIMULATED_UNARY(herf, std::erf)
  SIMULATED_UNARY(hceil, std::ceil)
  SIMULATED_UNARY(hfloor, std::floor)
  SIMULATED_UNARY(htrunc, std::trunc)
  SIMULATED_UNARY(hrint, std::nearbyint)
  SIMULATED_UNARY(__habs, std::fabs)
  SIMULATED_UNARY(hrsqrt, 1.0f / std::sqrt)
#undef SIMULATED_UNARY
  friend Narrow hpow(Narrow a, Narrow b) { return Narrow(std::pow(float(a), float(b))); }
  friend bool __hgt(Narrow a, Narrow b) { return a > b; }
  friend bool __hlt(Narrow a, Narrow b) { return a < b; }
  friend bool __hisnan(Narrow a) { return std::isnan(float(a)); }
};

template <typename T>
struct Two {
  T x, y;
  Two() = default;
  Two(T x, T y) : x(x), y(y) {}
};

}  // namespace simulated

using half = simulated::Narrow<simulated::Dtype::kHalf>;
using __half = half;
using half2 = simulated::Two<half>;
using __half2 = half2;
using nv_bfloat16 = simulated::Narrow<simulated::Dtype::kBfloat>;
using __nv_bfloat16 = nv_bfloat16;
using nv_bfloat162 = simulated::Two<nv_bfloat16>;
using __nv_bfloat162 = nv_bfloat162;

inline float __half2float(half a) { return a; }
inline half __float2half(float a) { return half(a); }
inline half __float2half_rn(float a) { return half(a); }
inline float __bfloat162float(nv_bfloat16 a) { return a; }
inline nv_bfloat16 __float2bfloat16(float a) { return nv_bfloat16(a); }
inline nv_bfloat16 __float2bfloat16_rn(float a) { return nv_bfloat16(a); }
inline half2 make_half2(half x, half y) { return {x, y}; }
inline nv_bfloat162 make_bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }
inline nv_bfloat162 __halves2bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }

#endif  // SIMULATED_HALF_H_
