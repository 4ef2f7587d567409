// Winograd convolutions with AVX-512 (built with -mavx512f; see CMakeLists.txt).
#include "kernels/winograd.h"

#if defined(__AVX512F__)
#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 warns of its own _mm512_undefined_ps
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace collage {
namespace winograd {
namespace {

#include "kernels/simd_avx512.h"
#include "kernels/winograd_kernels.h"

}  // namespace

const Instructions* Avx512(int size) { return Find(size); }

}  // namespace winograd
}  // namespace collage

#else

namespace collage {
namespace winograd {

const Instructions* Avx512(int) { return nullptr; }

}  // namespace winograd
}  // namespace collage

#endif
