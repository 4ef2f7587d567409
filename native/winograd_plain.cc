// Winograd convolutions with four lanes that every compiler and architecture has.
#include "winograd.h"

namespace collage {
namespace winograd {
namespace {

#include "simd_plain.h"
#include "winograd_kernels.h"

}  // namespace

const Instructions* Plain(int size) { return Find(size); }

}  // namespace winograd
}  // namespace collage
