// Winograd convolutions with four lanes that every compiler and architecture has.
#include "kernels/winograd.h"

namespace collage {
namespace winograd {
namespace {

#include "kernels/simd_plain.h"
#include "kernels/winograd_kernels.h"

}  // namespace

const Instructions* Plain(int size) { return Find(size); }

}  // namespace winograd
}  // namespace collage
