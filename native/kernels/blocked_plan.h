// Preparation of a blocked kernel before its first run: memory of its values, the steps in the layout of the instruction
// set, and the division of work among threads.
#ifndef COLLAGE_BLOCKED_PLAN_H_
#define COLLAGE_BLOCKED_PLAN_H_

#include <cstdint>

#include "core/arena.h"
#include "kernels/blocked_program.h"
#include "kernels/native_kernel.h"

namespace collage {
namespace blocked {

// Sizes of values in blocked layout.
struct Layout {
  std::int64_t lanes, columns;  // of the instruction set

  std::int64_t Groups(const Value& value) const { return DivideUp(value.channels, lanes); }
  std::int64_t ImageFloats(const Value& value) const {
    return Groups(value) * value.pixels() * lanes;
  }
  // Includes padding groups: a strip may write beyond the last group.
  std::int64_t PaddedChannels(const Value& value) const {
    return DivideUp(value.channels, kPanel) * kPanel;
  }
  std::int64_t Strips(const Value& value) const {
    return DivideUp(value.channels, lanes * columns);
  }
};

// Returns the arena of the values.
Bytes PlaceValues(const Layout& layout, Program* program);

// Call it after PlaceValues. The program must not be copied afterwards: steps point into it.
void PrepareSteps(const Layout& layout, int threads, Program* program);

}  // namespace blocked
}  // namespace collage

#endif  // COLLAGE_BLOCKED_PLAN_H_
