// Where the bytes of a program lie: arguments of the kernel, packed weights, or one arena in which
// values that do not live at the same time share a place.
#ifndef COLLAGE_ARENA_H_
#define COLLAGE_ARENA_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace collage {

struct FreeMemory {
  void operator()(void* memory) const;
};
using Bytes = std::unique_ptr<char, FreeMemory>;

// Page-aligned memory of at least one byte; what fills large pages is asked to lie in some: weights
// and activations are then read through fewer translations. Throws a ffi RuntimeError when there is
// none.
Bytes Allocate(std::size_t size);

// Pieces side by side that are freed together: many small ones share large pages.
class Pool {
 public:
  Pool() = default;
  // More than `expected` bytes in all may be taken.
  explicit Pool(std::size_t expected) : expected_(expected) {}

  // Memory at a cache line's start.
  char* Take(std::size_t size);

 private:
  std::size_t expected_ = 0, left_ = 0;
  char* next_ = nullptr;
  std::vector<Bytes> chunks_;
};

struct Buffer {
  std::size_t size = 0;
  int argument = -1;         // of the kernel, or -1
  char* own = nullptr;       // a weight's memory, or null
  int first = 0, last = -1;  // calls that use it, when it is in the arena
  std::size_t place = 0;     // in the arena

  bool in_arena() const { return argument < 0 && own == nullptr; }
};

// All buffers of a program, by number.
class Buffers {
 public:
  int AddArgument(int argument);
  int AddOwn(char* memory);
  int AddToArena(std::size_t size, int first_call);

  const Buffer& operator[](int number) const { return buffers_[static_cast<std::size_t>(number)]; }

  // Tells that call `call` uses the buffer; calls come in ascending order.
  void Use(int number, int call) { buffers_[static_cast<std::size_t>(number)].last = call; }

  // Places everything that lies in the arena and returns the arena's size. Greedy, largest first:
  // each buffer at the lowest place where no buffer that lives at the same time lies.
  std::size_t Place();

 private:
  int Add(const Buffer& buffer);

  std::vector<Buffer> buffers_;
};

}  // namespace collage

#endif  // COLLAGE_ARENA_H_
