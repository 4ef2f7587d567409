// Memory of a program's values: arguments of the kernel, packed weights, or one arena. Values with disjoint
// lifetimes share memory of the arena.
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

// Page-aligned memory of at least one byte. Large blocks request huge pages: fewer address translations for weights
// and activations. Throws a ffi RuntimeError if memory runs out.
Bytes Allocate(std::size_t size);

// Gives memory that the allocator keeps back to the system, after a construction that freed `size` bytes or more.
void ReturnFreeMemory(std::size_t size);

// Adjacent blocks with one lifetime: many small blocks share huge pages.
class Pool {
 public:
  Pool() = default;
  // The total may exceed `expected` bytes.
  explicit Pool(std::size_t expected) : expected_(expected) {}

  // Memory aligned to a cache line.
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

  // Extends the lifetime of the buffer to call `call`; calls are in ascending order.
  void Use(int number, int call) { buffers_[static_cast<std::size_t>(number)].last = call; }

  // Places all buffers of the arena and returns its size. Greedy, largest first: each buffer at the lowest offset
  // without an overlap in both memory and lifetime.
  std::size_t Place();

 private:
  int Add(const Buffer& buffer);

  std::vector<Buffer> buffers_;
};

}  // namespace collage

#endif  // COLLAGE_ARENA_H_
