#include "blob.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <cstring>

namespace collage {
namespace {

namespace ffi = tvm::ffi;

constexpr std::string_view kMagic = "COLLAGE1";
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPrefix = kMagic.size() + sizeof(std::uint64_t);

std::size_t AlignUp(std::size_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

TensorView ParseTensor(const json::Object& entry, const char* data, std::size_t size) {
  auto offset = static_cast<std::size_t>(Entry(entry, "offset").cast<std::int64_t>());
  auto nbytes = static_cast<std::size_t>(Entry(entry, "nbytes").cast<std::int64_t>());
  if (offset > size || nbytes > size - offset) {
    TVM_FFI_THROW(ValueError) << "the blob is truncated: a tensor ends at byte " << offset + nbytes
                              << " of " << size;
  }
  TensorView view{data + offset, nbytes, {}, {}};
  view.dtype = ffi::StringToDLDataType(Entry(entry, "dtype").cast<ffi::String>());
  for (const ffi::Any& extent : Entry(entry, "shape").cast<json::Array>()) {
    view.shape.push_back(extent.cast<std::int64_t>());
  }
  return view;
}

}  // namespace

ffi::Any Entry(const json::Object& object, const char* key) {
  auto found = object.find(ffi::String(key));
  if (found == object.end()) TVM_FFI_THROW(ValueError) << "the blob's header lacks '" << key << "'";
  return (*found).second;
}

std::shared_ptr<const Blob> Blob::Parse(std::string_view bytes) {
  if (bytes.size() < kPrefix || bytes.substr(0, kMagic.size()) != kMagic) {
    TVM_FFI_THROW(ValueError) << "not a kernel blob: it does not start with " << kMagic;
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data() + kMagic.size(), sizeof(length));
  if (length > bytes.size() - kPrefix)
    TVM_FFI_THROW(ValueError) << "the blob's header is truncated";
  auto blob = std::make_shared<Blob>();
  blob->header_ = json::Parse(ffi::String(bytes.data() + kPrefix, length)).cast<json::Object>();
  std::size_t start = AlignUp(kPrefix + length);
  std::size_t size = bytes.size() > start ? bytes.size() - start : 0;
  blob->data_ = Allocate(size);
  if (size > 0) std::memcpy(blob->data_.get(), bytes.data() + start, size);
  for (const ffi::Any& entry : Entry(blob->header_, "tensors").cast<json::Array>()) {
    blob->tensors_.push_back(ParseTensor(entry.cast<json::Object>(), blob->data_.get(), size));
  }
  return blob;
}

std::string Blob::GetString(const char* key, const std::string& otherwise) const {
  if (!header_.count(ffi::String(key))) return otherwise;
  return Entry(header_, key).cast<ffi::String>();
}

std::int64_t Blob::GetInt(const char* key, std::int64_t otherwise) const {
  return header_.count(ffi::String(key)) ? Entry(header_, key).cast<std::int64_t>() : otherwise;
}

std::vector<std::string> Blob::GetStrings(const char* key) const {
  std::vector<std::string> found;
  if (!header_.count(ffi::String(key))) return found;
  for (const ffi::Any& value : Entry(header_, key).cast<json::Array>()) {
    found.push_back(value.cast<ffi::String>());
  }
  return found;
}

std::vector<int> Blob::GetInts(const char* key) const {
  std::vector<int> found;
  if (!header_.count(ffi::String(key))) return found;
  for (const ffi::Any& value : Entry(header_, key).cast<json::Array>()) {
    found.push_back(static_cast<int>(value.cast<std::int64_t>()));
  }
  return found;
}

}  // namespace collage
