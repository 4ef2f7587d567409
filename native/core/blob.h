// The blob of a kernel: what a backend compiled, as one string of bytes (collage/runtime/blob.py).
//
//   "COLLAGE1" | u64 LE header length | JSON header | zeros up to 64 | tensors, each 64-aligned
//
// header["tensors"] lists dtype, shape, offset (from the start of the tensors, 64-aligned) and nbytes,
// which is what dtype and shape need. Tensors are copied into memory of the blob's own (arena.h), each
// at a cache line's start, so that kernels may use them in place. Whatever is not so is a ffi ValueError:
// kernels check what the format leaves to them (sizes.h).
#ifndef COLLAGE_BLOB_H_
#define COLLAGE_BLOB_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/arena.h"

namespace collage {

namespace json = tvm::ffi::json;

// Entry `key` of the header or of an object inside it; a ffi ValueError where there is none.
tvm::ffi::Any Entry(const json::Object& object, const char* key);

// `value` as a T; a ffi ValueError that names `what` where it is of another type.
template <typename T>
T As(const tvm::ffi::Any& value, const char* what) {
  std::optional<T> found = value.try_cast<T>();
  if (!found) {
    TVM_FFI_THROW(ValueError) << "'" << what << "' in the blob's header has the wrong type, "
                              << value.GetTypeKey();
  }
  return *std::move(found);
}

// Entry `key` as a T.
template <typename T>
T Get(const json::Object& object, const char* key) {
  return As<T>(Entry(object, key), key);
}

// The integers that entry `key` lists.
std::vector<std::int64_t> Integers(const json::Object& object, const char* key);

// The type called `name`; a ffi ValueError unless a tensor of numbers may have it.
DLDataType ParseType(const std::string& name);

// A tensor inside a blob. Valid as long as the blob lives.
struct TensorView {
  const void* data;
  std::size_t nbytes;  // what dtype and shape need
  DLDataType dtype;
  std::vector<std::int64_t> shape;

  bool is_float32() const { return dtype.code == kDLFloat && dtype.bits == 32; }
};

class Blob {
 public:
  // Checks and copies `bytes`. Throws a ffi ValueError when they are no blob.
  static std::shared_ptr<const Blob> Parse(std::string_view bytes);

  const json::Object& header() const { return header_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }

  // Header entries with a default; a value of another type is a ffi ValueError.
  std::string GetString(const char* key, const std::string& otherwise) const;
  std::int64_t GetInt(const char* key, std::int64_t otherwise) const;
  std::vector<std::string> GetStrings(const char* key) const;

  // Whole numbers of 0 or more, none where the key is missing.
  std::vector<int> GetSizes(const char* key) const;

  // Keys and values in turn.
  std::vector<std::pair<std::string, std::string>> GetPairs(const char* key) const;

 private:
  json::Object header_;
  Bytes data_;
  std::vector<TensorView> tensors_;
};

}  // namespace collage

#endif  // COLLAGE_BLOB_H_
