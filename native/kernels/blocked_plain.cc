// Convolutions in blocked layout with four lanes that every compiler and architecture has.
#include "kernels/blocked.h"

namespace collage {
namespace blocked {
namespace {

#include "kernels/simd_plain.h"
#include "kernels/blocked_kernels.h"

}  // namespace

const Instructions* Plain() { return &kInstructions; }

}  // namespace blocked
}  // namespace collage
