// What is decided before the first run of a blocked kernel: where its values lie, what each step does in
// the layout of the instruction set, and how its work is divided among threads.
#ifndef COLLAGE_BLOCKED_PLAN_H_
#define COLLAGE_BLOCKED_PLAN_H_

#include <cstdint>

#include "core/arena.h"
#include "kernels/blocked_program.h"
#include "kernels/native_kernel.h"

namespace collage {
namespace blocked {

// How much room values take.
struct Layout {
  std::int64_t lanes, columns;  // of the instruction set

  std::int64_t Groups(const Value& value) const { return DivideUp(value.channels, lanes); }
  std::int64_t ImageFloats(const Value& value) const {
    return Groups(value) * value.pixels() * lanes;
  }
  // Groups that a strip may write or add to beyond the last one are there too.
  std::int64_t PaddedChannels(const Value& value) const {
    return DivideUp(value.channels, kPanel) * kPanel;
  }
  std::int64_t Strips(const Value& value) const {
    return DivideUp(value.channels, lanes * columns);
  }
};

// Returns the arena of the values.
Bytes PlaceValues(const Layout& layout, Program* program);

// After that. The program must not be copied afterwards: steps point into it.
void PrepareSteps(const Layout& layout, int threads, Program* program);

}  // namespace blocked
}  // namespace collage

#endif  // COLLAGE_BLOCKED_PLAN_H_
