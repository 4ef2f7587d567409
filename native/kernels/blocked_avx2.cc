// Convolutions in blocked layout with AVX2 and FMA (built with -mavx2 -mfma; see CMakeLists.txt).
#include "kernels/blocked.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace collage {
namespace blocked {
namespace {

#include "kernels/simd_avx2.h"
#include "kernels/blocked_kernels.h"

}  // namespace

const Instructions* Avx2() { return &kInstructions; }

}  // namespace blocked
}  // namespace collage

#else

namespace collage {
namespace blocked {

const Instructions* Avx2() { return nullptr; }

}  // namespace blocked
}  // namespace collage

#endif
