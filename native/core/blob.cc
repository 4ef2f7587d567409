#include "core/blob.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>

#include "core/sizes.h"

namespace collage {
namespace {

namespace ffi = tvm::ffi;

constexpr std::string_view kMagic = "COLLAGE1";
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPrefix = kMagic.size() + sizeof(std::uint64_t);

// The JSON parser calls itself for each level. Headers have five or six.
constexpr int kMostLevels = 64;

std::size_t AlignUp(std::size_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

// Throws a ffi ValueError where lists and objects lie in each other more than kMostLevels deep.
void CheckDepth(std::string_view text) {
  int level = 0;
  bool inside = false;  // a string
  for (std::size_t i = 0; i < text.size(); ++i) {
    char letter = text[i];
    if (inside) {
      if (letter == '\\') ++i;
      if (letter == '"') inside = false;
      continue;
    }
    if (letter == '"') inside = true;
    if (letter == '[' || letter == '{') ++level;
    if (letter == ']' || letter == '}') --level;
    if (level > kMostLevels) {
      TVM_FFI_THROW(ValueError) << "the blob's header is nested more than " << kMostLevels
                                << " deep";
    }
  }
}

json::Object ParseHeader(std::string_view text) {
  CheckDepth(text);
  // Written so, and what is quoted from it in an error can be shown.
  if (std::any_of(text.begin(), text.end(),
                  [](char letter) { return letter < ' ' || letter > '~'; })) {
    TVM_FFI_THROW(ValueError) << "the blob's header is no JSON in printable ASCII";
  }
  ffi::String reason;
  json::Value header = json::Parse(ffi::String(text.data(), text.size()), &reason);
  if (!reason.empty()) {
    TVM_FFI_THROW(ValueError) << "the blob's header is no JSON: " << std::string(reason);
  }
  return As<json::Object>(header, "the header");
}

TensorView ParseTensor(const json::Object& entry, const char* data, std::size_t size) {
  std::size_t offset = BytesOf(Get<std::int64_t>(entry, "offset"), "a tensor's 'offset'");
  std::size_t nbytes = BytesOf(Get<std::int64_t>(entry, "nbytes"), "a tensor's 'nbytes'");
  if (offset > size || nbytes > size - offset) {
    TVM_FFI_THROW(ValueError) << "the blob is truncated: a tensor ends at byte " << offset + nbytes
                              << " of " << size;
  }
  if (offset % kAlignment != 0) {
    TVM_FFI_THROW(ValueError) << "a tensor's 'offset' is " << offset << ", no multiple of "
                              << kAlignment;
  }
  TensorView view{data + offset, nbytes, ParseType(Get<ffi::String>(entry, "dtype")),
                  Integers(entry, "shape")};
  std::int64_t needed = Times(ElementsOf(view.shape, 0, "an extent of a tensor's 'shape'"),
                              (view.dtype.bits + 7) / 8);
  if (nbytes != BytesOf(needed, "a tensor's size")) {
    TVM_FFI_THROW(ValueError) << "a tensor's 'nbytes' is " << nbytes
                              << "; its shape and dtype need " << needed;
  }
  return view;
}

}  // namespace

ffi::Any Entry(const json::Object& object, const char* key) {
  auto found = object.find(ffi::String(key));
  if (found == object.end()) TVM_FFI_THROW(ValueError) << "the blob's header lacks '" << key << "'";
  return (*found).second;
}

DLDataType ParseType(const std::string& name) {
  DLDataType type{};
  try {
    type = ffi::StringToDLDataType(name);
  } catch (const std::exception&) {
    TVM_FFI_THROW(ValueError) << "the blob names a tensor of dtype '" << name << "'";
  }
  if (type.bits == 0 || type.lanes != 1 || type.code == kDLOpaqueHandle) {
    TVM_FFI_THROW(ValueError) << "the blob names a tensor of dtype '" << name << "'";
  }
  return type;
}

std::vector<std::int64_t> Integers(const json::Object& object, const char* key) {
  std::vector<std::int64_t> found;
  for (const ffi::Any& one : Get<json::Array>(object, key)) {
    found.push_back(As<std::int64_t>(one, key));
  }
  return found;
}

std::shared_ptr<const Blob> Blob::Parse(std::string_view bytes) {
  LinkedBytes source(bytes);
  char prefix[kPrefix] = {};
  source.CopyOthers(0, kPrefix, prefix);
  if (source.size() < kPrefix || std::string_view(prefix, kMagic.size()) != kMagic) {
    TVM_FFI_THROW(ValueError) << "not a kernel blob: it does not start with " << kMagic;
  }
  std::uint64_t length = 0;
  std::memcpy(&length, prefix + kMagic.size(), sizeof(length));
  if (length > source.size() - kPrefix)
    TVM_FFI_THROW(ValueError) << "the blob's header is truncated";
  std::string header(length, '\0');
  source.CopyOthers(kPrefix, length, header.data());
  auto blob = std::make_shared<Blob>();
  blob->header_ = ParseHeader(header);
  std::size_t start = AlignUp(kPrefix + length);
  std::size_t size = source.size() > start ? source.size() - start : 0;
  blob->data_ = Allocate(size);
  blob->size_ = size;
  for (const ffi::Any& entry : Get<json::Array>(blob->header_, "tensors")) {
    blob->tensors_.push_back(
        ParseTensor(As<json::Object>(entry, "tensors"), blob->data_.get(), size));
  }
  blob->Fill(source, start, size);
  return blob;
}

// Memory that is only reserved takes no pages, so a tensor with a common copy costs nothing here.
void Blob::Fill(const LinkedBytes& source, std::size_t start, std::size_t size) {
  source.CopyOthers(start, size, data_.get());
  for (const Link& link : source.links()) {
    if (link.offset < start) {
      TVM_FFI_THROW(ValueError) << "a kernel's links to weights are damaged";
    }
    char* place = data_.get() + (link.offset - start);
    auto tensor = std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorView& view) {
      return view.data == place && view.nbytes == link.weight.size();
    });
    if (tensor == tensors_.end()) {
      std::memcpy(place, link.weight.data(), link.weight.size());
      shared_.push_back({place, link.weight});
      continue;
    }
    copies_.push_back(link.weight.Copy());
    tensor->data = copies_.back().get();
    shared_.push_back({copies_.back().get(), link.weight});
  }
}

const SharedWeight* Blob::FindShared(std::string_view bytes) const {
  for (const Shared& shared : shared_) {
    if (shared.place == bytes.data() && shared.weight.size() == bytes.size()) return &shared.weight;
  }
  return nullptr;
}

void Blob::ReleasePages() const {
  for (const Shared& shared : shared_) shared.weight.ReleasePages();
}

std::string Blob::GetString(const char* key, const std::string& otherwise) const {
  if (!header_.count(ffi::String(key))) return otherwise;
  return Get<ffi::String>(header_, key);
}

std::int64_t Blob::GetInt(const char* key, std::int64_t otherwise) const {
  return header_.count(ffi::String(key)) ? Get<std::int64_t>(header_, key) : otherwise;
}

std::vector<std::string> Blob::GetStrings(const char* key) const {
  std::vector<std::string> found;
  if (!header_.count(ffi::String(key))) return found;
  for (const ffi::Any& value : Get<json::Array>(header_, key)) {
    found.push_back(As<ffi::String>(value, key));
  }
  return found;
}

std::vector<int> Blob::GetSizes(const char* key) const {
  std::vector<int> found;
  if (!header_.count(ffi::String(key))) return found;
  for (const ffi::Any& value : Get<json::Array>(header_, key)) {
    std::int64_t size = As<std::int64_t>(value, key);
    if (size < 0 || size > std::numeric_limits<int>::max()) {
      TVM_FFI_THROW(ValueError) << "'" << key << "' in the blob's header holds " << size;
    }
    found.push_back(static_cast<int>(size));
  }
  return found;
}

std::vector<std::pair<std::string, std::string>> Blob::GetPairs(const char* key) const {
  std::vector<std::string> texts = GetStrings(key);
  if (texts.size() % 2 != 0) {
    TVM_FFI_THROW(ValueError) << "'" << key << "' in the blob's header lists " << texts.size()
                              << " texts, no pairs";
  }
  std::vector<std::pair<std::string, std::string>> found;
  for (std::size_t i = 0; i < texts.size(); i += 2) found.emplace_back(texts[i], texts[i + 1]);
  return found;
}

}  // namespace collage
