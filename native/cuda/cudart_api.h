// The part of the CUDA runtime's C interface that cuda_runtime.cc uses, declared here so that the plug-in
// builds without CUDA headers. tests/backends/nvidia/cudnn_check.cc compiles it against the real ones.
#ifndef COLLAGE_CUDART_API_H_
#define COLLAGE_CUDART_API_H_

#include <cstddef>

namespace collage {
namespace cuda {

using Stream = void*;
using Event = void*;

constexpr int kSuccess = 0;
constexpr unsigned kNoTiming = 2;                    // of an event
constexpr int kHostToDevice = 1, kDeviceToHost = 2;  // cudaMemcpyKind

using Malloc = int (*)(void**, std::size_t);
using Release = int (*)(void*);
using MemcpyAsync = int (*)(void*, const void*, std::size_t, int kind, Stream);
using MemsetAsync = int (*)(void*, int value, std::size_t, Stream);
using Synchronize = int (*)(Stream);
using StreamCreate = int (*)(Stream*);
using StreamDestroy = int (*)(Stream);
using EventCreate = int (*)(Event*, unsigned flags);
using EventRecord = int (*)(Event, Stream);
using StreamWaitEvent = int (*)(Stream, Event, unsigned flags);
using ErrorString = const char* (*)(int);

}  // namespace cuda
}  // namespace collage

#endif  // COLLAGE_CUDART_API_H_
