// What the plug-in's own kernels have in common: the choice of an instruction set, and scratch memory.
#ifndef COLLAGE_NATIVE_KERNEL_H_
#define COLLAGE_NATIVE_KERNEL_H_

#include <tvm/ffi/error.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/sizes.h"

namespace collage {

inline std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// One table of functions per instruction set; null where the compiler has none.
template <class Instructions>
struct Versions {
  const Instructions* avx512;
  const Instructions* avx2;
  const Instructions* plain;
};

// The best version that this machine runs, or the one called `name`.
template <class Instructions>
const Instructions& ChooseFor(const char* kernel, Versions<Instructions> versions,
                              const std::string& name) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512f")) versions.avx512 = nullptr;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) versions.avx2 = nullptr;
#endif
  for (const Instructions* one : {versions.avx512, versions.avx2, versions.plain}) {
    if (one != nullptr && (name.empty() || name == one->name)) return *one;
  }
  TVM_FFI_THROW(ValueError) << kernel << " kernel: this machine has no " << name;
  TVM_FFI_UNREACHABLE();
}

// Memory that all kernels share which run in one thread: it stays in the caches from one kernel to
// the next. Its content is undefined.
class Scratch {
 public:
  float* AtLeast(std::int64_t floats) {
    if (floats > size_) {
      auto bytes = static_cast<std::size_t>(Times(DivideUp(floats, 16), 64));
      data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      size_ = data_ == nullptr ? 0 : floats;
      if (data_ == nullptr) TVM_FFI_THROW(RuntimeError) << "no memory for " << bytes << " bytes";
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace collage

#endif  // COLLAGE_NATIVE_KERNEL_H_
