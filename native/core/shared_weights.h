// Weights that kernels of several functions have in common. The executable holds each once, in the table
// `collage_weights` (collage/assemble/shared_weights.py), and the kernels' blobs refer to it by its SHA-256:
//
//   "COLLAGEW" | u64 count | count entries | weights, each 64-aligned
//   entry: digest of 32 bytes | u64 offset from the table's start | u64 size
//
// Numbers are little-endian. The table consists of pages of the file, so memory is used only for weights that are
// read: `ReleasePages` gives the pages back, and a later read gets them again. All libraries in the process are
// searched, because a kernel does not know which one holds it; weights of one digest are equal in all of them.
#ifndef COLLAGE_SHARED_WEIGHTS_H_
#define COLLAGE_SHARED_WEIGHTS_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

namespace collage {

using Digest = std::array<char, 32>;

class WeightTable;

// One weight of a table; the table's library stays loaded as long.
class SharedWeight {
 public:
  SharedWeight(std::shared_ptr<const WeightTable> table, std::string_view bytes)
      : table_(std::move(table)), bytes_(bytes) {}

  // In pages of the file. Equal weights of one table have one address.
  const char* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

  // A copy in memory like a blob's, the same for all holders.
  std::shared_ptr<const char> Copy() const;

  void ReleasePages() const;

 private:
  std::shared_ptr<const WeightTable> table_;
  std::string_view bytes_;
};

// Throws a ffi ValueError if no library in the process has the weight.
SharedWeight FindSharedWeight(const Digest& digest);

}  // namespace collage

#endif  // COLLAGE_SHARED_WEIGHTS_H_
