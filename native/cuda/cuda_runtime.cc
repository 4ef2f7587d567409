// The CUDA runtime, and the copies at the borders of an executable for a GPU:
//   collage.copy_to_device(host, device), collage.copy_to_host(device, host)
// on the current stream. The host's memory may be read or written by others as soon as they return.
//   collage.touch(device, device)
// queues the least work that there is, on the second tensor: what is left of a chain of them are launches.
#include "cuda/cuda_runtime.h"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include "core/kernel.h"
#include "core/library.h"

namespace collage {
namespace cuda {
namespace {

constexpr char kRuntime[] = "cudart";

// The functions, looked up once.
struct Runtime {
  void* library = OpenLibrary(kRuntime);
  Malloc allocate = FindSymbolAs<Malloc>(library, kRuntime, "cudaMalloc");
  Release release = FindSymbolAs<Release>(library, kRuntime, "cudaFree");
  Malloc allocate_host = FindSymbolAs<Malloc>(library, kRuntime, "cudaMallocHost");
  Release release_host = FindSymbolAs<Release>(library, kRuntime, "cudaFreeHost");
  MemcpyAsync copy = FindSymbolAs<MemcpyAsync>(library, kRuntime, "cudaMemcpyAsync");
  MemsetAsync fill = FindSymbolAs<MemsetAsync>(library, kRuntime, "cudaMemsetAsync");
  Synchronize wait = FindSymbolAs<Synchronize>(library, kRuntime, "cudaStreamSynchronize");
  StreamCreate create_stream = FindSymbolAs<StreamCreate>(library, kRuntime, "cudaStreamCreate");
  StreamDestroy destroy_stream =
      FindSymbolAs<StreamDestroy>(library, kRuntime, "cudaStreamDestroy");
  EventCreate create_event =
      FindSymbolAs<EventCreate>(library, kRuntime, "cudaEventCreateWithFlags");
  EventRecord record = FindSymbolAs<EventRecord>(library, kRuntime, "cudaEventRecord");
  StreamWaitEvent wait_event =
      FindSymbolAs<StreamWaitEvent>(library, kRuntime, "cudaStreamWaitEvent");
  ErrorString text = FindSymbolAs<ErrorString>(library, kRuntime, "cudaGetErrorString");

  static const Runtime& Get() {
    static const auto* runtime = new Runtime();
    return *runtime;
  }
};

void CopyTensor(const DLTensor* from, const DLTensor* to, int kind) {
  const DLTensor* device = kind == kHostToDevice ? to : from;
  CheckOnDevice(device, "copy");
  if (SizeOf(from) != SizeOf(to)) TVM_FFI_THROW(ValueError) << "copy: the tensors differ in size";
  Stream stream = CurrentStream(device->device);
  Copy(DataOf(to), DataOf(from), SizeOf(from), kind, stream);
  Wait(stream);
}

void Touch(const DLTensor* to) {
  CheckOnDevice(to, "touch");
  Check(Runtime::Get().fill(DataOf(to), 0, 4, CurrentStream(to->device)), "a touch");
}

}  // namespace

void Check(int status, const char* what) {
  if (status == kSuccess) return;
  TVM_FFI_THROW(RuntimeError) << "CUDA, " << what << ": " << Runtime::Get().text(status) << " ("
                              << status << ")";
}

Stream CurrentStream(const DLDevice& device) {
  return TVMFFIEnvGetStream(device.device_type, device.device_id);
}

void CheckOnDevice(const DLTensor* tensor, const char* kernel) {
  if (tensor->device.device_type == kDLCUDA) return;
  TVM_FFI_THROW(ValueError) << kernel << " kernel: its tensors must be on a GPU";
}

void Copy(void* to, const void* from, std::size_t size, int kind, Stream stream) {
  Check(Runtime::Get().copy(to, from, size, kind, stream), "a copy");
}

void Wait(Stream stream) { Check(Runtime::Get().wait(stream), "waiting for the stream"); }

void FreeStream::operator()(void* stream) const { Runtime::Get().destroy_stream(stream); }

OwnStream MakeStream() {
  Stream stream = nullptr;
  Check(Runtime::Get().create_stream(&stream), "a stream");
  return OwnStream(stream);
}

void Order(Stream first, Stream then) {
  thread_local Event event = [] {
    Event created = nullptr;
    Check(Runtime::Get().create_event(&created, kNoTiming), "an event");
    return created;
  }();
  Check(Runtime::Get().record(event, first), "an event");
  Check(Runtime::Get().wait_event(then, event, 0), "an event");
}

std::size_t SizeOf(const DLTensor* tensor) {
  std::size_t count = 1;
  for (int i = 0; i < tensor->ndim; ++i) count *= static_cast<std::size_t>(tensor->shape[i]);
  return (count * tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
}

void Free::operator()(void* memory) const { Runtime::Get().release(memory); }

Memory Allocate(std::size_t size) {
  void* memory = nullptr;
  Check(Runtime::Get().allocate(&memory, size), "device memory");
  return Memory(memory);
}

void FreeHost::operator()(void* memory) const { Runtime::Get().release_host(memory); }

HostMemory AllocateHost(std::size_t size) {
  void* memory = nullptr;
  Check(Runtime::Get().allocate_host(&memory, size == 0 ? 1 : size), "host memory");
  return HostMemory(memory);
}

std::vector<Memory> Upload(const std::vector<TensorView>& tensors) {
  std::vector<Memory> uploaded;
  for (const TensorView& tensor : tensors) {
    uploaded.push_back(Allocate(tensor.nbytes));
    Copy(uploaded.back().get(), tensor.data, tensor.nbytes, kHostToDevice, nullptr);
  }
  if (!tensors.empty()) Wait(nullptr);
  return uploaded;
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("collage.copy_to_device",
           [](DLTensor* from, DLTensor* to) { CopyTensor(from, to, kHostToDevice); })
      .def("collage.touch", [](DLTensor*, DLTensor* to) { Touch(to); })
      .def("collage.copy_to_host",
           [](DLTensor* from, DLTensor* to) { CopyTensor(from, to, kDeviceToHost); });
}

}  // namespace
}  // namespace cuda
}  // namespace collage
