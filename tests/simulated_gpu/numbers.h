// Numbers of 16 and 32 bits in memory of the simulated GPU.
#ifndef SIMULATED_NUMBERS_H_
#define SIMULATED_NUMBERS_H_

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace simulated {

enum class Dtype { kFloat, kHalf, kBfloat };

inline float Load(const void* from, Dtype type, std::int64_t place) {
  if (type == Dtype::kFloat) return static_cast<const float*>(from)[place];
  std::uint32_t bits = static_cast<const std::uint16_t*>(from)[place];
  float value;
  if (type == Dtype::kBfloat) {
    bits <<= 16;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  int exponent = bits >> 10 & 31;
  float fraction = static_cast<float>(bits & 1023);
  value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? INFINITY : NAN;
  return bits >> 15 ? -value : value;
}

// The nearest number of TF32, which has 10 bits of fraction; ties to even.
inline float RoundToTf32(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits >> 23 & 255) != 255) bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
  std::memcpy(&value, &bits, 4);
  return value;
}

// NVIDIA_TF32_OVERRIDE=0 keeps all of NVIDIA's libraries from TF32, whatever they are asked for.
inline bool IsTf32Allowed() {
  const char* override = std::getenv("NVIDIA_TF32_OVERRIDE");
  return override == nullptr || std::strcmp(override, "0") != 0;
}

// To nearest, ties to even.
inline void Store(void* to, Dtype type, std::int64_t place, float value) {
  if (type == Dtype::kFloat) {
    static_cast<float*>(to)[place] = value;
    return;
  }
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  auto& stored = static_cast<std::uint16_t*>(to)[place];
  if (type == Dtype::kBfloat) {
    stored = static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    return;
  }
  std::uint32_t sign = bits >> 16 & 0x8000;
  float size = std::fabs(value);
  if (!(size < 65520)) {
    stored = static_cast<std::uint16_t>(sign | (std::isnan(value) ? 0x7E00 : 0x7C00));
    return;
  }
  int exponent = size < std::ldexp(1.0f, -14) ? -14 : std::ilogb(size);
  auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  stored = static_cast<std::uint16_t>(sign |
                                      (steps + (static_cast<std::uint32_t>(exponent + 14) << 10)));
}

}  // namespace simulated

#endif  // SIMULATED_NUMBERS_H_
