#include "core/index_checks.h"

#include <tvm/ffi/error.h>

#include "core/kernel.h"

namespace collage {
namespace {

template <typename T>
void CheckElements(const IndexCheck& check, const DLTensor& tensor) {
  const T* index = static_cast<const T*>(DataOf(&tensor));
  std::int64_t count = CountOf(tensor);
  std::size_t column = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t size = check.sizes[column];
    if (++column == check.sizes.size()) column = 0;
    if (index[i] < -size || index[i] >= size) {
      TVM_FFI_THROW(IndexError) << "an index is out of range: the axis has " << size << " elements";
    }
  }
}

}  // namespace

std::vector<IndexCheck> ReadIndexChecks(const Blob& blob) {
  std::vector<int> flat = blob.GetSizes("index_checks");
  std::vector<IndexCheck> checks;
  for (std::size_t at = 0; at < flat.size();) {
    if (flat.size() - at < 2) TVM_FFI_THROW(ValueError) << "the blob's index checks are truncated";
    std::size_t position = static_cast<std::size_t>(flat[at]);
    std::size_t sizes = static_cast<std::size_t>(flat[at + 1]);
    at += 2;
    if (sizes == 0 || sizes > flat.size() - at) {
      TVM_FFI_THROW(ValueError) << "the blob's index checks are truncated";
    }
    checks.push_back({position, {flat.data() + at, flat.data() + at + sizes}});
    at += sizes;
  }
  return checks;
}

void CheckIndices(const std::vector<IndexCheck>& checks, DLTensor* const* inputs, int count) {
  for (const IndexCheck& check : checks) {
    if (check.position >= static_cast<std::size_t>(count)) {
      TVM_FFI_THROW(ValueError) << "there is no input " << check.position << " to check";
    }
    const DLTensor& tensor = *inputs[check.position];
    if (IsSame(tensor.dtype, {kDLInt, 64, 1})) {
      CheckElements<std::int64_t>(check, tensor);
    } else if (IsSame(tensor.dtype, {kDLInt, 32, 1})) {
      CheckElements<std::int32_t>(check, tensor);
    } else {
      TVM_FFI_THROW(TypeError) << "indices must be int32 or int64";
    }
  }
}

}  // namespace collage
