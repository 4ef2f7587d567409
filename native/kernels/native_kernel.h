// Common parts of the plug-in's own kernels: the choice of an instruction set, and scratch memory.
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
struct IsaTable {
  const Instructions* avx512;
  const Instructions* avx2;
  const Instructions* plain;
};

// The best instruction set of this machine, or the one called `name`.
template <class Instructions>
const Instructions& ChooseFor(const char* kernel, IsaTable<Instructions> table,
                              const std::string& name) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512f")) table.avx512 = nullptr;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) table.avx2 = nullptr;
#endif
  for (const Instructions* instructions : {table.avx512, table.avx2, table.plain}) {
    if (instructions != nullptr && (name.empty() || name == instructions->name))
      return *instructions;
  }
  TVM_FFI_THROW(ValueError) << kernel << " kernel: this machine has no " << name;
  TVM_FFI_UNREACHABLE();
}

// Scratch memory of all kernels in one thread: it remains in the caches from one kernel to the next. Its
// content is undefined.
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
