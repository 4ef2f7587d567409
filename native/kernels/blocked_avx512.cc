// Convolutions in blocked layout with AVX-512 (built with -mavx512f; see CMakeLists.txt).
#include "kernels/blocked.h"

#if defined(__AVX512F__)
#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 warns of its own _mm512_undefined_ps
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace collage {
namespace blocked {
namespace {

#include "kernels/simd_avx512.h"
#include "kernels/blocked_kernels.h"

}  // namespace

const Instructions* Avx512() { return &kInstructions; }

}  // namespace blocked
}  // namespace collage

#else

namespace collage {
namespace blocked {

const Instructions* Avx512() { return nullptr; }

}  // namespace blocked
}  // namespace collage

#endif
