// The blob of a compiled kernel, one string of bytes (collage/runtime/blob.py).
//
//   "COLLAGE1" | u64 LE header length | JSON header | zeros up to 64 | tensors, each 64-aligned
//
// header["tensors"] lists dtype, shape, offset (from the start of the tensors, 64-aligned) and nbytes,
// the size of dtype and shape. Tensors are copied into memory of the blob (arena.h), aligned to cache lines, so
// kernels may use them in place. Blobs of an executable with several functions are linked to the weights that they
// share (linked_bytes.h); a tensor that is such a weight has one copy for all of them. Any violation is a ffi
// ValueError; kernels check their own header entries (sizes.h).
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
#include "core/linked_bytes.h"

namespace collage {

namespace json = tvm::ffi::json;

// Entry `key` of the header or of an object inside it; a ffi ValueError if it is missing.
tvm::ffi::Any Entry(const json::Object& object, const char* key);

// `value` as a T; a ffi ValueError with `what` if it has another type.
template <typename T>
T As(const tvm::ffi::Any& value, const char* what) {
  std::optional<T> converted = value.try_cast<T>();
  if (!converted) {
    TVM_FFI_THROW(ValueError) << "'" << what << "' in the blob's header has the wrong type, "
                              << value.GetTypeKey();
  }
  return *std::move(converted);
}

// Entry `key` as a T.
template <typename T>
T Get(const json::Object& object, const char* key) {
  return As<T>(Entry(object, key), key);
}

// The integers of entry `key`.
std::vector<std::int64_t> Integers(const json::Object& object, const char* key);

// The numeric dtype called `name`; a ffi ValueError for other names.
DLDataType ParseType(const std::string& name);

// A tensor inside a blob; valid for the lifetime of the blob.
struct TensorView {
  const void* data;
  std::size_t nbytes;  // what dtype and shape need
  DLDataType dtype;
  std::vector<std::int64_t> shape;

  bool is_float32() const { return dtype.code == kDLFloat && dtype.bits == 32; }
};

class Blob {
 public:
  // Checks and copies `bytes`. Throws a ffi ValueError for an invalid blob.
  static std::shared_ptr<const Blob> Parse(std::string_view bytes);

  const json::Object& header() const { return header_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  std::size_t size() const { return size_; }  // of all tensors, in bytes

  // The shared weight at these bytes of a tensor; null if they are of this blob only.
  const SharedWeight* FindShared(std::string_view bytes) const;

  bool has_shared() const { return !shared_.empty(); }

  // Gives the pages of all shared weights back, for a kernel that has what it needs.
  void ReleasePages() const;

  // Header entries with a default; a value of another type is a ffi ValueError.
  std::string GetString(const char* key, const std::string& otherwise) const;
  std::int64_t GetInt(const char* key, std::int64_t otherwise) const;
  std::vector<std::string> GetStrings(const char* key) const;

  // Non-negative integers; empty if the key is missing.
  std::vector<int> GetSizes(const char* key) const;

  // Keys and values in turn.
  std::vector<std::pair<std::string, std::string>> GetPairs(const char* key) const;

 private:
  struct Shared {
    const char* place;  // where kernels read it
    SharedWeight weight;
  };

  void Fill(const LinkedBytes& source, std::size_t start, std::size_t size);

  json::Object header_;
  Bytes data_;
  std::size_t size_ = 0;
  std::vector<TensorView> tensors_;
  std::vector<Shared> shared_;
  std::vector<std::shared_ptr<const char>> copies_;  // of tensors that are shared weights
};

}  // namespace collage

#endif  // COLLAGE_BLOB_H_
