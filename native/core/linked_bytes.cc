#include "core/linked_bytes.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/sizes.h"

namespace collage {
namespace {

constexpr std::string_view kMagic = "COLLAGEL";
constexpr std::size_t kPrefix = kMagic.size() + sizeof(std::uint64_t);
constexpr std::size_t kLink = sizeof(Digest) + 2 * sizeof(std::uint64_t);

[[noreturn]] void Refuse() {
  TVM_FFI_THROW(ValueError) << "a kernel's links to weights are damaged";
  TVM_FFI_UNREACHABLE();
}

std::size_t ReadSize(const char* place) {
  std::uint64_t number = 0;
  std::memcpy(&number, place, sizeof(number));
  if (number > static_cast<std::uint64_t>(kMostBytes)) Refuse();
  return static_cast<std::size_t>(number);
}

}  // namespace

LinkedBytes::LinkedBytes(std::string_view bytes) : size_(bytes.size()) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    others_.push_back({0, bytes});
    return;
  }
  if (bytes.size() < kPrefix) Refuse();
  std::size_t count = ReadSize(bytes.data() + kMagic.size());
  if (count > (bytes.size() - kPrefix) / kLink) Refuse();
  std::string_view others = bytes.substr(kPrefix + count * kLink);
  std::size_t place = 0;
  for (const char* link = bytes.data() + kPrefix; count-- > 0; link += kLink) {
    Digest digest{};
    std::memcpy(digest.data(), link, digest.size());
    std::size_t offset = ReadSize(link + digest.size());
    std::size_t length = ReadSize(link + digest.size() + sizeof(std::uint64_t));
    if (offset < place || offset - place > others.size()) Refuse();
    SharedWeight weight = FindSharedWeight(digest);
    if (weight.size() != length) Refuse();
    others_.push_back({place, others.substr(0, offset - place)});
    others.remove_prefix(offset - place);
    links_.push_back({offset, std::move(weight)});
    place = offset + length;
  }
  others_.push_back({place, others});
  size_ = place + others.size();
}

void LinkedBytes::CopyOthers(std::size_t offset, std::size_t count, char* target) const {
  for (const Piece& piece : others_) {
    std::size_t first = std::max(offset, piece.offset);
    std::size_t last = std::min(offset + count, piece.offset + piece.bytes.size());
    if (first >= last) continue;
    std::memcpy(target + (first - offset), piece.bytes.data() + (first - piece.offset),
                last - first);
  }
}

}  // namespace collage
