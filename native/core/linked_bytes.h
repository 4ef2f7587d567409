// The bytes of a blob as the executable holds them: all of them, or linked to shared weights.
//
//   "COLLAGEL" | u64 count | count links | the other bytes of the blob
//   link: digest of 32 bytes | u64 offset in the blob | u64 size; ascending, without overlaps
//
// Numbers are little-endian.
#ifndef COLLAGE_LINKED_BYTES_H_
#define COLLAGE_LINKED_BYTES_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/shared_weights.h"

namespace collage {

// A weight in the bytes [offset, offset + weight.size()) of a blob.
struct Link {
  std::size_t offset;
  SharedWeight weight;
};

class LinkedBytes {
 public:
  // `bytes` outlive the object. Throws a ffi ValueError for damaged links.
  explicit LinkedBytes(std::string_view bytes);

  std::size_t size() const { return size_; }
  const std::vector<Link>& links() const { return links_; }

  // Copies the bytes from `offset` on, without those of weights: their places in `target` stay as they are.
  void CopyOthers(std::size_t offset, std::size_t count, char* target) const;

 private:
  struct Piece {
    std::size_t offset;  // in the blob
    std::string_view bytes;
  };

  std::size_t size_ = 0;
  std::vector<Link> links_;
  std::vector<Piece> others_;
};

}  // namespace collage

#endif  // COLLAGE_LINKED_BYTES_H_
