// A new tensor in memory of the host, aligned like a kernel's.
#ifndef COLLAGE_HOST_TENSOR_H_
#define COLLAGE_HOST_TENSOR_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdlib>

namespace collage {

struct AlignedMemory {
  void AllocData(DLTensor* tensor) {
    std::size_t size = (tvm::ffi::GetDataSize(*tensor) / 64 + 1) * 64;
    tensor->data = std::aligned_alloc(64, size);
    if (tensor->data == nullptr) {
      TVM_FFI_THROW(RuntimeError) << "no memory for " << size << " bytes";
    }
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

// Its elements are not initialised.
inline tvm::ffi::Tensor MakeTensor(tvm::ffi::ShapeView shape, DLDataType type) {
  return tvm::ffi::Tensor::FromNDAlloc(AlignedMemory(), shape, type, DLDevice{kDLCPU, 0});
}

}  // namespace collage

#endif  // COLLAGE_HOST_TENSOR_H_
