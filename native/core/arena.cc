#include "core/arena.h"

#include <malloc.h>
#include <sys/mman.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdlib>

#include "core/sizes.h"

namespace collage {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kLargePage = std::size_t{2} << 20;

std::size_t RoundUp(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

}  // namespace

void FreeMemory::operator()(void* memory) const { std::free(memory); }

Bytes Allocate(std::size_t size) {
  void* memory = nullptr;
  bool large = size >= kLargePage;
  if (posix_memalign(&memory, large ? kLargePage : kPage, RoundUp(size + 1, kPage)) != 0) {
    TVM_FFI_THROW(RuntimeError) << "no memory for " << size << " bytes";
  }
#ifdef MADV_HUGEPAGE
  // The rest behind the last large page stays in small ones. A refusal costs speed only.
  if (large) madvise(memory, size / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
  return Bytes(static_cast<char*>(memory));
}

void ReturnFreeMemory(std::size_t size) {
#ifdef __GLIBC__
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  if (size >= kLarge) malloc_trim(0);
#else
  static_cast<void>(size);
#endif
}

char* Pool::Take(std::size_t size) {
  std::size_t rounded = RoundUp(std::max<std::size_t>(size, 1), kAlignment);
  if (rounded > left_) {
    left_ = std::max(rounded, chunks_.empty() ? expected_ : expected_ / 8);
    chunks_.push_back(Allocate(left_));
    next_ = chunks_.back().get();
  }
  left_ -= rounded;
  next_ += rounded;
  return next_ - rounded;
}

int Buffers::AddArgument(int argument) {
  Buffer buffer;
  buffer.argument = argument;
  return Add(buffer);
}

int Buffers::AddOwn(char* memory) {
  Buffer buffer;
  buffer.own = memory;
  return Add(buffer);
}

int Buffers::AddToArena(std::size_t size, int first_call) {
  Buffer buffer;
  if (size > kMostBytes) RefuseSize();
  buffer.size = RoundUp(size, kAlignment);
  buffer.first = first_call;
  return Add(buffer);
}

int Buffers::Add(const Buffer& buffer) {
  buffers_.push_back(buffer);
  return static_cast<int>(buffers_.size()) - 1;
}

std::size_t Buffers::Place() {
  std::vector<Buffer*> waiting, placed;  // placed: ascending by place
  for (Buffer& buffer : buffers_) {
    if (buffer.in_arena() && buffer.last >= 0) waiting.push_back(&buffer);
  }
  std::stable_sort(waiting.begin(), waiting.end(), [](const Buffer* left, const Buffer* right) {
    return left->size > right->size;
  });
  std::size_t total = 0;
  for (Buffer* buffer : waiting) {
    for (const Buffer* right : placed) {
      bool together = right->first <= buffer->last && buffer->first <= right->last;
      bool before = buffer->place + buffer->size <= right->place;
      if (together && !before) buffer->place = std::max(buffer->place, right->place + right->size);
      if (buffer->place > kMostBytes) RefuseSize();
    }
    auto after = std::find_if(placed.begin(), placed.end(),
                              [&](const Buffer* right) { return right->place > buffer->place; });
    placed.insert(after, buffer);
    total = std::max(total, buffer->place + buffer->size);
  }
  return total;
}

}  // namespace collage
