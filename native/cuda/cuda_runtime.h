// The CUDA runtime, opened at run time: functions for kernels on a GPU.
#ifndef COLLAGE_CUDA_RUNTIME_H_
#define COLLAGE_CUDA_RUNTIME_H_

#include <dlpack/dlpack.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/blob.h"
#include "cuda/cudart_api.h"

namespace collage {
namespace cuda {

// Throws a ffi RuntimeError with `what` unless `status` is success.
void Check(int status, const char* what);

// The caller's stream for kernels of the device.
Stream CurrentStream(const DLDevice& device);

// Throws a ffi ValueError unless the tensor is on a GPU.
void CheckOnDevice(const DLTensor* tensor, const char* kernel);

// Queued on `stream`; `kind` is kHostToDevice or kDeviceToHost.
void Copy(void* to, const void* from, std::size_t size, int kind, Stream stream);

// Waits for all queued work.
void Wait(Stream stream);

struct FreeStream {
  void operator()(void* stream) const;
};
using OwnStream = std::unique_ptr<void, FreeStream>;

// A stream ordered with the null stream by CUDA, like one stream.
OwnStream MakeStream();

// Later work on `then` waits for the queued work on `first`.
void Order(Stream first, Stream then);

std::size_t SizeOf(const DLTensor* tensor);

struct Free {
  void operator()(void* memory) const;
};
using Memory = std::unique_ptr<void, Free>;

// Device memory. Throws a ffi RuntimeError if it runs out.
Memory Allocate(std::size_t size);

struct FreeHost {
  void operator()(void* memory) const;
};
using HostMemory = std::unique_ptr<void, FreeHost>;

// Pinned host memory.
HostMemory AllocateHost(std::size_t size);

// Copies of constants on the device.
std::vector<Memory> Upload(const std::vector<TensorView>& tensors);

}  // namespace cuda
}  // namespace collage

#endif  // COLLAGE_CUDA_RUNTIME_H_
