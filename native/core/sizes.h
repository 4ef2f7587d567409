// Checks of a blob's numbers before use: ranges, and arithmetic without overflow.
//
// A blob is part of an executable, so an attacker with write access to it could run code anyway. A damaged or wrong
// blob is an error with the name of its field, never a crash. Kernels check all numbers at construction; their inner
// loops check nothing.
#ifndef COLLAGE_SIZES_H_
#define COLLAGE_SIZES_H_

#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace collage {

// Libraries and kernels count extents in `int`.
constexpr std::int64_t kMostExtent = std::numeric_limits<int>::max();

// Larger than any size on a real machine; sums of a few are far from an overflow.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 47;

constexpr std::int64_t kMostThreads = 4096;

// Throws a ffi ValueError about a number that is too large.
[[noreturn]] inline void RefuseSize() {
  TVM_FFI_THROW(ValueError) << "a kernel blob names sizes whose product or sum is no 64-bit number";
  TVM_FFI_UNREACHABLE();
}

// a * b * ..., or a ffi ValueError.
inline std::int64_t Times(std::int64_t product) { return product; }

template <class... Factors>
std::int64_t Times(std::int64_t a, std::int64_t b, Factors... factors) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) RefuseSize();
  return Times(product, factors...);
}

// a + b + ..., or a ffi ValueError.
inline std::int64_t Plus(std::int64_t sum) { return sum; }

template <class... Terms>
std::int64_t Plus(std::int64_t a, std::int64_t b, Terms... terms) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) RefuseSize();
  return Plus(sum, terms...);
}

// `value`, or a ffi ValueError unless least <= value <= most. `what` says which field of which kernel.
inline std::int64_t InRange(std::int64_t value, std::int64_t least, std::int64_t most,
                            std::string_view what) {
  if (value < least || value > most) {
    TVM_FFI_THROW(ValueError) << what << " is " << value << ", not " << least << " to " << most;
  }
  return value;
}

// Number of elements of a shape whose extents are `least` or more.
inline std::int64_t ElementsOf(const std::vector<std::int64_t>& shape, std::int64_t least,
                               std::string_view what) {
  std::int64_t elements = 1;
  for (std::int64_t extent : shape) {
    elements = Times(elements, InRange(extent, least, kMostBytes, what));
  }
  return elements;
}

// `bytes` as a size, or a ffi ValueError where no machine has as many.
inline std::size_t BytesOf(std::int64_t bytes, std::string_view what) {
  return static_cast<std::size_t>(InRange(bytes, 0, kMostBytes, what));
}

}  // namespace collage

#endif  // COLLAGE_SIZES_H_
