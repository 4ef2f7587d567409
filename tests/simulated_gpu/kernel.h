// CUDA C++ on the host: every thread of a block is a fiber, so that barriers and shuffles work.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __align__(n) alignas(n)

struct uint3 {
  unsigned x, y, z;
};

namespace simulated {

constexpr int kWarp = 32;
constexpr std::size_t kStack = 256 << 10;

// Entered once as a context; later switches are jumps, which ask nothing of the kernel.
struct Fiber {
  ucontext_t context;
  jmp_buf place;
  uint3 thread;
  bool started = false;
  bool done = false;
  bool waits = false;       // at a barrier of the block
  std::uint64_t shown = 0;  // to the other threads of its warp, in a shuffle
};

struct Block {
  uint3 grid, block, index;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::size_t current = 0;
  jmp_buf scheduler;
  std::function<void()> body;

  Fiber& fiber() { return *fibers[current]; }
};

inline Block* block = nullptr;

inline void Yield() {
  if (_setjmp(block->fiber().place) == 0) _longjmp(block->scheduler, 1);
}

inline void Continue() {
  if (_setjmp(block->scheduler) != 0) return;
  if (block->fiber().started) _longjmp(block->fiber().place, 1);
  block->fiber().started = true;
  setcontext(&block->fiber().context);
}

inline void Enter() {
  block->body();
  block->fiber().done = true;
  Yield();
}

inline char* Stack(std::size_t which) {
  static std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() <= which) stacks.emplace_back(new char[kStack]);
  return stacks[which].get();
}

inline void RunBlock(Block& one) {
  block = &one;
  one.fibers.clear();
  for (unsigned z = 0; z < one.block.z; ++z)
    for (unsigned y = 0; y < one.block.y; ++y)
      for (unsigned x = 0; x < one.block.x; ++x) {
        auto fiber = std::make_unique<Fiber>();
        fiber->thread = {x, y, z};
        getcontext(&fiber->context);
        fiber->context.uc_stack.ss_sp = Stack(one.fibers.size());
        fiber->context.uc_stack.ss_size = kStack;
        fiber->context.uc_link = nullptr;
        makecontext(&fiber->context, Enter, 0);
        one.fibers.push_back(std::move(fiber));
      }
  // Rounds: in each, every thread runs to where it gives way. When all wait at a barrier, it opens.
  for (bool alive = true; alive;) {
    bool ran = false;
    alive = false;
    for (one.current = 0; one.current < one.fibers.size(); ++one.current) {
      if (one.fiber().done || one.fiber().waits) continue;
      Continue();
      ran = true;
    }
    for (auto& fiber : one.fibers) {
      alive = alive || !fiber->done;
      if (!ran) fiber->waits = false;
    }
  }
}

template <typename... A>
void RunGrid(void (*kernel)(A...), const unsigned* extents, std::tuple<A...> arguments) {
  Block one;
  one.grid = {extents[0], extents[1], extents[2]};
  one.block = {extents[3], extents[4], extents[5]};
  one.body = [&] { std::apply(kernel, arguments); };
  for (unsigned z = 0; z < one.grid.z; ++z)
    for (unsigned y = 0; y < one.grid.y; ++y)
      for (unsigned x = 0; x < one.grid.x; ++x) {
        one.index = {x, y, z};
        RunBlock(one);
      }
}

template <typename T>
bool Fine(const T& argument) {
  if constexpr (std::is_pointer_v<T>) return IsDevice(argument);
  return true;
}

template <typename... A, std::size_t... I>
int Bind(void (*kernel)(A...), void** given, const unsigned* extents, Work* work,
         std::index_sequence<I...>) {
  std::tuple<A...> arguments(*static_cast<std::decay_t<A>*>(given[I])...);
  if (!(Fine(std::get<I>(arguments)) && ...)) return kIllegalAddress;
  std::vector<unsigned> copy(extents, extents + 6);
  *work = [=] { RunGrid(kernel, copy.data(), arguments); };
  return kSuccess;
}

template <typename... A>
int Bind(void (*kernel)(A...), void** given, const unsigned* extents, Work* work) {
  return Bind(kernel, given, extents, work, std::index_sequence_for<A...>());
}

template <typename... A, typename Grid, typename... G>
void Launch(void (*kernel)(A...), const char* name, Grid grid, Grid block, void* stream,
            G... given) {
  std::tuple<A...> arguments(given...);
  bool fine = std::apply([](const auto&... each) { return (Fine(each) && ...); }, arguments);
  if (!fine) {
    Lose(kIllegalAddress);
    return;
  }
  std::vector<unsigned> extents{grid.x, grid.y, grid.z, block.x, block.y, block.z};
  Enqueue(stream, name, [=] { RunGrid(kernel, extents.data(), arguments); });
}

// Every thread of the block takes part in these, as TVM's kernels do it: a round is a barrier.
template <typename T>
T Exchange(T value, std::size_t lane) {
  Fiber& own = block->fiber();
  std::memcpy(&own.shown, &value, sizeof(T));
  Yield();
  std::size_t first = block->current / kWarp * kWarp;
  std::size_t other = std::min(first + lane, block->fibers.size() - 1);
  T found;
  std::memcpy(&found, &block->fibers[other]->shown, sizeof(T));
  Yield();
  return found;
}

}  // namespace simulated

#include "half.h"

#define threadIdx (simulated::block->fiber().thread)
#define blockIdx (simulated::block->index)
#define blockDim (simulated::block->block)
#define gridDim (simulated::block->grid)

inline void __syncthreads() {
  simulated::block->fiber().waits = true;
  simulated::Yield();
}
inline void __syncwarp(unsigned = 0) { simulated::Yield(); }
inline unsigned __activemask() { return 0xffffffffu; }

template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned step, int = 32) {
  std::size_t lane = simulated::block->current % simulated::kWarp, other = lane + step;
  return simulated::Exchange(value, other < simulated::kWarp ? other : lane);
}

template <typename T>
T __shfl_sync(unsigned, T value, int lane, int = 32) {
  return simulated::Exchange(value, static_cast<std::size_t>(lane));
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  std::size_t lane = simulated::block->current % simulated::kWarp;
  return simulated::Exchange(value, lane ^ static_cast<std::size_t>(mask));
}

using std::max;
using std::min;
inline float max(float a, double b) { return std::fmax(a, static_cast<float>(b)); }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
using uchar = unsigned char;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

// What a source that launches its kernels itself needs of the runtime.
using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = simulated::kSuccess;
extern "C" int cudaGetLastError();
extern "C" const char* cudaGetErrorString(int error);

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x, unsigned y, unsigned z) : x(x), y(y), z(z) {}
};
