// The entry points of the CUDA driver that Collage and TVM's runtime use. A module's image is a shared
// library of the host, made by the compiler that lies beside this file under the name nvcc.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gpu.h"

using namespace simulated;  // NOLINT: the entry points below are C's

namespace {

// What the compiler adds for every kernel: copies the arguments, and returns what runs the grid.
using Bind = int (*)(void** arguments, const unsigned* grid_and_block, Work* work);

struct Function {
  std::string name;
  Bind bind;
};

struct Config {
  unsigned grid_and_block[6];
  unsigned shared_bytes;
  void* stream;
};

std::size_t SizeOf(const void* image) {
  const auto* header = static_cast<const Elf64_Ehdr*>(image);
  return header->e_shoff + static_cast<std::size_t>(header->e_shnum) * header->e_shentsize;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}

int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, static_cast<std::size_t>(size), "simulated GPU");
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? Capability() / 10 : attribute == 76 ? Capability() % 10 : 0;
  return kSuccess;
}

int cuDeviceGetUuid_v2(char* uuid, int) {
  for (char place = 0; place < 16; ++place) uuid[place] = place;
  return kSuccess;
}

int cuGetErrorName(int, const char** text) {
  *text = "an error of the simulated GPU";
  return kSuccess;
}

int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

int cuModuleLoadData(void** module, const void* image) {
  int file = memfd_create("simulated_module", 0);
  std::size_t size = SizeOf(image);
  if (write(file, image, size) != static_cast<ssize_t>(size)) return 209;
  *module = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (*module == nullptr) std::fprintf(stderr, "simulated GPU: %s\n", dlerror());
  return *module == nullptr ? 209 : kSuccess;  // CUDA_ERROR_NO_BINARY_FOR_GPU
}

int cuModuleUnload(void*) { return kSuccess; }

int cuModuleGetFunction(void** function, void* module, const char* name) {
  void* bind = dlsym(module, (std::string("simulated_bind_") + name).c_str());
  if (bind == nullptr) return 500;  // CUDA_ERROR_NOT_FOUND
  *function = new Function{name, reinterpret_cast<Bind>(bind)};
  return kSuccess;
}

int cuFuncSetAttribute(void*, int, int) { return kSuccess; }

int cuLaunchKernelEx(const Config* config, void* function, void** arguments, void**) {
  if (int error = Lost()) return error;
  auto* kernel = static_cast<Function*>(function);
  Work work;
  if (int error = kernel->bind(arguments, config->grid_and_block, &work)) return Lose(error);
  return Enqueue(config->stream, kernel->name.c_str(), std::move(work));
}

int cuTensorMapEncodeTiled() { return 801; }  // not supported

}  // extern "C"
