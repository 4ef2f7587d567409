// The blob of a kernel: what a backend compiled, as one string of bytes (collage/runtime/blob.py).
//
//   "COLLAGE1" | u64 LE header length | JSON header | zeros up to 64 | tensors, each 64-aligned
//
// header["tensors"] lists dtype, shape, offset (from the start of the tensors) and nbytes. Tensors
// are copied into memory of the blob's own (arena.h), each at a cache line's start, so that kernels
// may use them in place.
#ifndef COLLAGE_BLOB_H_
#define COLLAGE_BLOB_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/extra/json.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arena.h"

namespace collage {

namespace json = tvm::ffi::json;

// Entry `key` of the header or of an object inside it; a ffi ValueError where there is none.
tvm::ffi::Any Entry(const json::Object& object, const char* key);

// A tensor inside a blob. Valid as long as the blob lives.
struct TensorView {
  const void* data;
  std::size_t nbytes;
  DLDataType dtype;
  std::vector<std::int64_t> shape;
};

class Blob {
 public:
  // Checks and copies `bytes`. Throws a ffi ValueError when they are no blob.
  static std::shared_ptr<const Blob> Parse(std::string_view bytes);

  const json::Object& header() const { return header_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }

  // Header entries with a default; a value of another type is a ffi TypeError.
  std::string GetString(const char* key, const std::string& otherwise) const;
  std::int64_t GetInt(const char* key, std::int64_t otherwise) const;
  std::vector<std::string> GetStrings(const char* key) const;
  std::vector<int> GetInts(const char* key) const;

 private:
  json::Object header_;
  Bytes data_;
  std::vector<TensorView> tensors_;
};

}  // namespace collage

#endif  // COLLAGE_BLOB_H_
