#include "onednn/onednn_packed_weights.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "core/arena.h"

namespace collage::onednn {
namespace {

struct Entry {
  const char* weight;
  std::size_t offset;
  Desc source, layout;
  std::weak_ptr<char> memory;
};

struct Entries {
  std::mutex mutex;
  std::vector<Entry> entries;
};

Entries& All() {
  static auto* entries = new Entries();
  return *entries;
}

}  // namespace

std::shared_ptr<char> FindPacked(const OneDnn& api, const Packing& packing) {
  std::lock_guard<std::mutex> lock(All().mutex);
  for (const Entry& entry : All().entries) {
    if (entry.weight != packing.weight.data() || entry.offset != packing.offset) continue;
    if (!api.Same(entry.source, packing.source) || !api.Same(entry.layout, packing.layout)) {
      continue;
    }
    if (std::shared_ptr<char> memory = entry.memory.lock()) return memory;
  }
  return nullptr;
}

// The weight belongs to the memory: while the memory is there, no other weight is at its address.
std::shared_ptr<char> AllocatePacked(const OneDnn& api, const Packing& packing) {
  Bytes bytes = Allocate(api.SizeOf(packing.layout));
  return {bytes.release(), [weight = packing.weight](char* data) { FreeMemory()(data); }};
}

void KeepPacked(const Packing& packing, const std::shared_ptr<char>& memory) {
  std::lock_guard<std::mutex> lock(All().mutex);
  std::vector<Entry>& entries = All().entries;
  entries.erase(std::remove_if(entries.begin(), entries.end(),
                               [](const Entry& entry) { return entry.memory.expired(); }),
                entries.end());
  entries.push_back(
      {packing.weight.data(), packing.offset, packing.source, packing.layout, memory});
}

}  // namespace collage::onednn
