// Common parts of wrappers around a vendor's C library: functions by name, owned objects, numbers of float types.
#ifndef COLLAGE_VENDOR_H_
#define COLLAGE_VENDOR_H_

#include <tvm/ffi/error.h>

#include <memory>
#include <string>

#include "core/library.h"

namespace collage {
namespace vendor {

// A library of library.h by its name.
class Api {
 public:
  template <typename T>
  T Find(const char* symbol) const {
    return FindSymbolAs<T>(library_, name_, symbol);
  }

 protected:
  explicit Api(const char* name) : name_(name), library_(OpenLibrary(name)) {}

 private:
  const char* name_;
  void* library_;
};

struct Destroy {
  int (*function)(void*) = nullptr;
  void operator()(void* object) const { function(object); }
};

// A descriptor, layout or preference.
using Object = std::unique_ptr<void, Destroy>;

struct FloatTypes {
  int float32, float16, bfloat16;
};

// The library's number for a dtype; throws a ffi ValueError that names `kernel` for other dtypes.
inline int TypeOf(const std::string& dtype, const FloatTypes& numbers, const char* kernel) {
  if (dtype == "float32") return numbers.float32;
  if (dtype == "float16") return numbers.float16;
  if (dtype == "bfloat16") return numbers.bfloat16;
  TVM_FFI_THROW(ValueError) << kernel << " kernel: dtype " << dtype;
  TVM_FFI_UNREACHABLE();
}

}  // namespace vendor
}  // namespace collage

#endif  // COLLAGE_VENDOR_H_
