// The entry points of the CUDA runtime that Collage and TVM's runtime use, on memory of the host.
//
// Device memory is one range without access rights: host code that reads it ends with a signal, as on a
// machine with a GPU. Kernels and copies run at once, in the calling thread, unless their stream captures.
// SIMULATED_GPU_LOG names a file to which every allocation, launch, copy and capture adds a line.
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gpu.h"

namespace simulated {
namespace {

constexpr std::size_t kMemory = std::size_t{8} << 30, kAlignment = 512;

using Graph = std::vector<std::pair<std::string, Work>>;

struct Stream {
  Graph* captured = nullptr;
  bool broken = false;  // something was called that may not be captured
};

struct Event {
  std::chrono::steady_clock::time_point time;
  void* stream = nullptr;
};

struct Gpu {
  std::recursive_mutex mutex;
  char* memory = static_cast<char*>(
      mmap(nullptr, kMemory, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  std::map<std::size_t, std::size_t> used;  // size by offset
  Stream standard;                          // stream 0
  int capturing = 0, lost = kSuccess, last = kSuccess, open = 0;
};

Gpu& The() {
  static auto* gpu = new Gpu();
  return *gpu;
}

// While it lives, the device's memory can be read and written.
class Opened {
 public:
  Opened() {
    if (The().open++ == 0) mprotect(The().memory, kMemory, PROT_READ | PROT_WRITE);
  }
  ~Opened() {
    if (--The().open == 0) mprotect(The().memory, kMemory, PROT_NONE);
  }
};

sigjmp_buf fault;

void OnFault(int) { siglongjmp(fault, 1); }

// Runs a kernel or a copy. One that touches memory which is none ends there, and false is returned.
bool RunGuarded(const Work& work) {
  struct sigaction guard = {}, before;
  guard.sa_handler = OnFault;
  sigaction(SIGSEGV, &guard, &before);
  bool whole = sigsetjmp(fault, 1) == 0;
  if (whole) {
    if (The().open++ == 0) mprotect(The().memory, kMemory, PROT_READ | PROT_WRITE);
    work();
  }
  if (--The().open == 0) mprotect(The().memory, kMemory, PROT_NONE);
  sigaction(SIGSEGV, &before, nullptr);
  return whole;
}

int Return(int code) {
  if (The().lost != kSuccess) code = The().lost;
  if (code != kSuccess) The().last = code;
  return code;
}

Stream& Of(void* stream) {
  return stream == nullptr ? The().standard : *static_cast<Stream*>(stream);
}

bool AnywhereIn(const char* pointer) {
  return pointer >= The().memory && pointer < The().memory + kMemory;
}

}  // namespace

void Log(const std::string& line) {
  static const char* path = std::getenv("SIMULATED_GPU_LOG");
  if (path == nullptr) return;
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
}

// Calls that wait or allocate spoil a capture.
int NotCaptured(const char* what) {
  if (The().capturing == 0) return kSuccess;
  Log(std::string("spoiled capture: ") + what);
  return kCaptureUnsupported;
}

bool IsDevice(const void* pointer) {
  auto* byte = static_cast<const char*>(pointer);
  if (!AnywhereIn(byte)) return false;
  auto offset = static_cast<std::size_t>(byte - The().memory);
  auto after = The().used.upper_bound(offset);
  if (after == The().used.begin()) return false;
  --after;
  return offset < after->first + after->second;
}

int Lose(int error) {
  The().lost = error;
  return Return(error);
}

int Capability() {
  const char* said = std::getenv("SIMULATED_GPU_CAPABILITY");
  return said == nullptr ? 90 : std::atoi(said);
}

int Lost() { return The().lost; }

int Enqueue(void* stream, const char* name, Work work) {
  std::lock_guard<std::recursive_mutex> lock(The().mutex);
  if (The().lost != kSuccess) return Return(The().lost);
  if (Of(stream).captured != nullptr) {
    Log(std::string("captured ") + name);
    Of(stream).captured->emplace_back(name, std::move(work));
    return kSuccess;
  }
  if (stream == nullptr && The().capturing > 0) return Return(NotCaptured(name));
  Log(std::string("run ") + name);
  return RunGuarded(work) ? Return(kSuccess) : Lose(kIllegalAddress);
}

namespace {

// A copy in the direction that is claimed: 0 host to host, 1 to the device, 2 from it, 3 on it, 4 any.
int Copy(void* to, const void* from, std::size_t size, int kind, void* stream) {
  static const char* const kNames[] = {"copy host", "copy to device", "copy to host",
                                       "copy on device", "copy"};
  bool to_device = kind == 1 || kind == 3, from_device = kind == 2 || kind == 3;
  if (size == 0) return Return(kSuccess);
  if (kind < 4 && (IsDevice(to) != to_device || IsDevice(from) != from_device)) {
    std::fprintf(stderr, "simulated GPU: a copy of kind %d got other pointers\n", kind);
    return Return(kInvalidValue);
  }
  return Enqueue(stream, kNames[kind], [=] { std::memcpy(to, from, size); });
}

}  // namespace
}  // namespace simulated

using namespace simulated;  // NOLINT: the entry points below are C's
using Lock = std::lock_guard<std::recursive_mutex>;

extern "C" {

int cudaMalloc(void** memory, std::size_t size) {
  Lock lock(The().mutex);
  if (int error = NotCaptured("cudaMalloc")) return Return(error);
  std::size_t place = 0, wanted = (size + kAlignment) / kAlignment * kAlignment;
  for (const auto& one : The().used) {
    if (one.first - place >= wanted) break;
    place = one.first + one.second;
  }
  if (place + wanted > kMemory) return Return(kOutOfMemory);
  The().used[place] = wanted;
  *memory = The().memory + place;
  Log("allocate " + std::to_string(size));
  Opened opened;
  std::memset(*memory, 0xFF, size);  // not a number, whatever the type
  return Return(kSuccess);
}

int cudaFree(void* memory) {
  Lock lock(The().mutex);
  if (memory == nullptr) return Return(kSuccess);
  if (int error = NotCaptured("cudaFree")) return Return(error);
  std::size_t freed =
      The().used.erase(static_cast<std::size_t>(static_cast<char*>(memory) - The().memory));
  return Return(freed == 1 ? kSuccess : kInvalidValue);
}

int cudaMallocHost(void** memory, std::size_t size) {
  *memory = std::malloc(size);
  return Return(*memory == nullptr ? kOutOfMemory : kSuccess);
}

int cudaFreeHost(void* memory) {
  std::free(memory);
  return Return(kSuccess);
}

int cudaMemcpy(void* to, const void* from, std::size_t size, int kind) {
  if (int error = NotCaptured("cudaMemcpy")) return Return(error);
  return Copy(to, from, size, kind, nullptr);
}

int cudaMemcpyAsync(void* to, const void* from, std::size_t size, int kind, void* stream) {
  return Copy(to, from, size, kind, stream);
}

int cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t size, void* stream) {
  return Copy(to, from, size, 3, stream);
}

int cudaMemsetAsync(void* memory, int value, std::size_t size, void* stream) {
  if (size > 0 && !IsDevice(memory)) return Return(kInvalidValue);
  return Enqueue(stream, "fill", [=] { std::memset(memory, value, size); });
}

int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = kMemory;
  return Return(kSuccess);
}

int cudaStreamCreateWithFlags(void** stream, unsigned) {
  *stream = new Stream();
  return Return(kSuccess);
}

int cudaStreamCreate(void** stream) { return cudaStreamCreateWithFlags(stream, 0); }

int cudaStreamDestroy(void* stream) {
  delete static_cast<Stream*>(stream);
  return Return(kSuccess);
}

int cudaStreamSynchronize(void* stream) {
  Lock lock(The().mutex);
  return Return(Of(stream).captured != nullptr ? NotCaptured("synchronize") : kSuccess);
}

int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  char text[80];
  std::snprintf(text, sizeof text, "stream %p waits for %p", stream,
                static_cast<Event*>(event)->stream);
  Log(text);
  return Return(kSuccess);
}

int cudaDeviceSynchronize() { return Return(NotCaptured("cudaDeviceSynchronize")); }

int cudaStreamBeginCapture(void* stream, int) {
  Lock lock(The().mutex);
  if (stream == nullptr || Of(stream).captured != nullptr) return Return(kCaptureUnsupported);
  Of(stream).captured = new Graph();
  The().capturing++;
  Log("begin capture");
  return Return(kSuccess);
}

int cudaStreamEndCapture(void* stream, void** graph) {
  Lock lock(The().mutex);
  *graph = Of(stream).captured;
  if (*graph == nullptr) return Return(kInvalidValue);
  Of(stream).captured = nullptr;
  The().capturing--;
  Log("end capture");
  return Return(kSuccess);
}

int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  *executable = new Graph(*static_cast<Graph*>(graph));
  return Return(kSuccess);
}

int cudaGraphLaunch(void* executable, void* stream) {
  Lock lock(The().mutex);
  Log("launch graph of " + std::to_string(static_cast<Graph*>(executable)->size()));
  for (const auto& node : *static_cast<Graph*>(executable)) {
    if (int error = Enqueue(stream, node.first.c_str(), node.second)) return error;
  }
  return Return(kSuccess);
}

int cudaGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return Return(kSuccess);
}

int cudaGraphExecDestroy(void* executable) { return cudaGraphDestroy(executable); }

int cudaEventCreate(void** event) {
  *event = new Event();
  return Return(kSuccess);
}

int cudaEventCreateWithFlags(void** event, unsigned) { return cudaEventCreate(event); }

int cudaEventDestroy(void* event) {
  delete static_cast<Event*>(event);
  return Return(kSuccess);
}

int cudaEventRecord(void* event, void* stream) {
  static_cast<Event*>(event)->stream = stream;
  static_cast<Event*>(event)->time = std::chrono::steady_clock::now();
  return Return(kSuccess);
}

int cudaEventSynchronize(void*) { return Return(kSuccess); }

int cudaEventElapsedTime(float* milliseconds, void* first, void* last) {
  auto passed = static_cast<Event*>(last)->time - static_cast<Event*>(first)->time;
  *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
  return Return(kSuccess);
}

int cudaGetDevice(int* device) {
  *device = 0;
  return Return(kSuccess);
}

int cudaSetDevice(int device) { return Return(device == 0 ? kSuccess : 101); }

int cudaGetDeviceCount(int* count) {
  *count = 1;
  return Return(kSuccess);
}

int cudaDeviceGetAttribute(int* value, int attribute, int) {
  static const std::map<int, int> kValues = {{1, 1024},
                                             {2, 1024},
                                             {3, 1024},
                                             {4, 64},
                                             {5, 2147483647},
                                             {6, 65535},
                                             {7, 65535},
                                             {8, 49152},
                                             {10, 32},
                                             {12, 65536},
                                             {13, 1000000},
                                             {16, 4},
                                             {36, 1000000},
                                             {37, 256},
                                             {38, 1 << 20},
                                             {75, Capability() / 10},
                                             {76, Capability() % 10},
                                             {97, 232448}};
  auto found = kValues.find(attribute);
  *value = found == kValues.end() ? 0 : found->second;
  return Return(kSuccess);
}

int cudaGetDeviceProperties(char* properties, int) {
  std::strcpy(properties, "simulated GPU");  // the name is the first member
  return Return(kSuccess);
}

int cudaDeviceGetPCIBusId(char* text, int size, int) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:00:00.0");
  return Return(kSuccess);
}

int cudaGetLastError() {
  int last = The().last;
  The().last = kSuccess;
  return The().lost != kSuccess ? The().lost : last;
}

int cudaPeekAtLastError() { return The().lost != kSuccess ? The().lost : The().last; }

const char* cudaGetErrorString(int error) {
  switch (error) {
    case kSuccess:
      return "no error";
    case kInvalidValue:
      return "invalid argument";
    case kOutOfMemory:
      return "out of memory";
    case kIllegalAddress:
      return "an illegal memory access was encountered";
    case kCaptureUnsupported:
      return "operation not permitted when stream is capturing";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorName(int error) { return cudaGetErrorString(error); }

}  // extern "C"
