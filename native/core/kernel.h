// The interface of a kernel: a Kernel, and a factory registered for the kind of its blobs.
//
//   class MyKernel : public collage::Kernel { ... };
//   static const collage::RegisterKernel kRegistered("mine", [](const collage::KernelSpec& spec) {
//     return std::unique_ptr<collage::Kernel>(new MyKernel(spec));
//   });
//
// A factory runs at initialisation of the executable, with a known thread count. Factories and Run report errors with
// TVM_FFI_THROW; no exception passes through a vendor's C functions.
#ifndef COLLAGE_KERNEL_H_
#define COLLAGE_KERNEL_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/blob.h"

namespace collage {

// A kernel with tensors used in place keeps `blob`; otherwise it is freed after construction.
struct KernelSpec {
  std::shared_ptr<const Blob> blob;
  int threads;  // 1 or more
};

// The kernel of a blob, with the thread count of its header (default: `threads`).
KernelSpec ReadSpec(std::string_view bytes, int threads);

class Kernel {
 public:
  virtual ~Kernel() = default;

  // `args` are inputs, then outputs: contiguous tensors, on the CPU unless OnDevice. The kernel itself
  // checks their number, dtypes and sizes. Calls never overlap on one kernel.
  virtual void Run(DLTensor* const* args, int count) = 0;

  // Whether the arguments are tensors of a GPU.
  virtual bool OnDevice() const { return false; }

  // Whether an output's shape depends on data. The kernel is then called with inputs only, through RunAllocating,
  // and allocates all its outputs.
  virtual bool Allocates() const { return false; }

  virtual std::vector<tvm::ffi::Tensor> RunAllocating(DLTensor* const* inputs, int count) {
    static_cast<void>(inputs);
    static_cast<void>(count);
    TVM_FFI_THROW(RuntimeError) << "this kernel writes into outputs that it is given";
    TVM_FFI_UNREACHABLE();
  }
};

using KernelFactory = std::unique_ptr<Kernel> (*)(const KernelSpec& spec);

// Registers `factory` for blobs of `kind` while the plug-in is loaded.
struct RegisterKernel {
  RegisterKernel(const char* kind, KernelFactory factory);
};

// The factory of `kind`; throws a ffi ValueError with the known kinds.
KernelFactory FindKernelFactory(const std::string& kind);

inline bool IsSame(DLDataType left, DLDataType right) {
  return left.code == right.code && left.bits == right.bits && left.lanes == right.lanes;
}

// The number of elements of a tensor; -1 on overflow of int64.
inline std::int64_t CountOf(const DLTensor& tensor) {
  std::int64_t count = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (__builtin_mul_overflow(count, tensor.shape[i], &count)) return -1;
  }
  return count;
}

// The expected dtype and shape of an argument.
struct Argument {
  std::int64_t elements;
  DLDataType dtype;

  bool Fits(const DLTensor& tensor) const {
    return IsSame(tensor.dtype, dtype) && CountOf(tensor) == elements;
  }
};

// The expectation of {"dtype", "shape"} in a blob's header.
Argument ReadArgument(const json::Object& entry);

constexpr DLDataType kFloat32 = {kDLFloat, 32, 1};

// Throws a ffi ValueError about argument `position` of a kernel of `kind`.
[[noreturn]] void RefuseArgument(const char* kind, std::size_t position, const Argument& expected,
                                 const DLTensor& tensor);

// Throws a ffi ValueError unless the arguments match `expected` in number, dtypes and shapes.
inline void CheckArguments(const char* kind, const std::vector<Argument>& expected,
                           DLTensor* const* args, int count) {
  if (static_cast<std::size_t>(count) != expected.size()) {
    TVM_FFI_THROW(ValueError) << kind << " kernel: expected " << expected.size() << " tensors, got "
                              << count;
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!expected[i].Fits(*args[i])) RefuseArgument(kind, i, expected[i], *args[i]);
  }
}

// First byte of a tensor's data.
inline void* DataOf(const DLTensor* tensor) {
  return static_cast<char*>(tensor->data) + tensor->byte_offset;
}

}  // namespace collage

#endif  // COLLAGE_KERNEL_H_
