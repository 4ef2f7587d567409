// Checks of the inputs that are indices, before a kernel runs: its toolchain does not check them. Header entry of a blob:
//   index_checks  [position, count, size, ..., ...]: an input, and the sizes of the axes that its elements index in turn
#ifndef COLLAGE_INDEX_CHECKS_H_
#define COLLAGE_INDEX_CHECKS_H_

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/blob.h"

namespace collage {

struct IndexCheck {
  std::size_t position;
  std::vector<std::int64_t> sizes;
};

// The checks of a blob; a ffi ValueError for an invalid entry.
std::vector<IndexCheck> ReadIndexChecks(const Blob& blob);

// Throws a ffi IndexError unless -size <= index < size for all elements of the checked inputs.
void CheckIndices(const std::vector<IndexCheck>& checks, DLTensor* const* inputs, int count);

}  // namespace collage

#endif  // COLLAGE_INDEX_CHECKS_H_
