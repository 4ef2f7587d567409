// Winograd convolutions with AVX2 and FMA (built with -mavx2 -mfma; see CMakeLists.txt).
#include "kernels/winograd.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace collage {
namespace winograd {
namespace {

#include "kernels/simd_avx2.h"
#include "kernels/winograd_kernels.h"

}  // namespace

const Instructions* Avx2(int size) { return Find(size); }

}  // namespace winograd
}  // namespace collage

#else

namespace collage {
namespace winograd {

const Instructions* Avx2(int) { return nullptr; }

}  // namespace winograd
}  // namespace collage

#endif
