// What a backend implements: a Kernel, and a factory registered under the kind of its blobs.
//
//   class MyKernel : public collage::Kernel { ... };
//   static const collage::RegisterKernel kRegistered("mine", [](const collage::KernelSpec& spec) {
//     return std::unique_ptr<collage::Kernel>(new MyKernel(spec));
//   });
//
// A factory runs when the executable is initialised (its thread count is known by then). Factories
// and Run report errors with TVM_FFI_THROW; nothing is thrown through a vendor's C functions.
#ifndef COLLAGE_KERNEL_H_
#define COLLAGE_KERNEL_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <memory>
#include <string>
#include <vector>

#include "blob.h"

namespace collage {

// Keep `blob` when the kernel uses its tensors in place; else it is freed after construction.
struct KernelSpec {
  std::shared_ptr<const Blob> blob;
  int threads;
};

class Kernel {
 public:
  virtual ~Kernel() = default;

  // `args` are inputs, then outputs: contiguous CPU tensors. Calls never overlap on one kernel.
  virtual void Run(DLTensor* const* args, int count) = 0;

  // True where an output's shape depends on data. The kernel is then called with inputs only, through
  // RunAllocating, and makes all its outputs.
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

// Threads of kernels whose blob does not say how many, and of the libraries' pools.
int DefaultThreads();

// The factory of `kind`; throws a ffi ValueError that lists the known kinds.
KernelFactory FindKernelFactory(const std::string& kind);

// First byte of a tensor's data.
inline void* DataOf(const DLTensor* tensor) {
  return static_cast<char*>(tensor->data) + tensor->byte_offset;
}

}  // namespace collage

#endif  // COLLAGE_KERNEL_H_
