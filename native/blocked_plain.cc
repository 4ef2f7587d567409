// Convolutions in blocked layout with four lanes that every compiler and architecture has.
#include "blocked.h"

namespace collage {
namespace blocked {
namespace {

#include "simd_plain.h"
#include "blocked_kernels.h"

}  // namespace

const Instructions* Plain() { return &kInstructions; }

}  // namespace blocked
}  // namespace collage
