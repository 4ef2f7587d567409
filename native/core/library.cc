#include "core/library.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

#include <cctype>
#include <cstdlib>
#include <map>
#include <mutex>

namespace collage {
namespace {

struct Libraries {
  std::mutex mutex;
  std::map<std::string, std::string> paths;
  std::map<std::string, void*> handles;
};

Libraries& All() {
  static auto* libraries = new Libraries();
  return *libraries;
}

std::string EnvironmentName(const std::string& name) {
  std::string variable = "COLLAGE_LIB_";
  for (char letter : name) {
    bool plain = std::isalnum(static_cast<unsigned char>(letter)) != 0;
    variable += plain ? static_cast<char>(std::toupper(static_cast<unsigned char>(letter))) : '_';
  }
  return variable;
}

// The pip requirement that brings a library: what this build was tested with.
std::string Package(const std::string& name) {
  static const std::map<std::string, std::string> kPackages = {
      {"onnxruntime", "onnxruntime>=1.31,<1.32"},
      {"openvino", "openvino>=2026.4,<2026.5"},
      {"onednn", "onednn-cpu-gomp==2023.2.0"},
      {"cublaslt", "nvidia-cublas>=13"},
      {"cudart", "nvidia-cuda-runtime>=13"},
      {"cudnn", "nvidia-cudnn-cu13>=9"},
      {"cublas", "nvidia-cublas>=13"},
      {"curand", "nvidia-curand>=10"},
      {"nvinfer", "tensorrt-cu13-libs>=10"},
      {"nvonnxparser", "tensorrt-cu13-libs>=10"},
      {"nvrtc", "nvidia-cuda-nvrtc>=13"},
  };
  auto package = kPackages.find(name);
  return package == kPackages.end() ? std::string()
                                    : "run `pip install '" + package->second + "'`, or ";
}

}  // namespace

void SetLibrary(const std::string& name, const std::string& path) {
  std::lock_guard<std::mutex> lock(All().mutex);
  All().paths[name] = path;
}

void RefusePaths(const std::vector<std::pair<std::string, std::string>>& options,
                 const char* what) {
  for (const auto& [key, value] : options) {
    std::string small = key;
    for (char& letter : small)
      letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    for (const char* part : {"path", "folder", "filename", "file_name", "_dir", "_lib", "plugin"}) {
      if (small.find(part) == std::string::npos) continue;
      TVM_FFI_THROW(ValueError) << "'" << what << "' in the blob's header sets '" << key
                                << "': a kernel may not name files";
    }
  }
}

bool HasLibrary(const std::string& name) {
  std::lock_guard<std::mutex> lock(All().mutex);
  return std::getenv(EnvironmentName(name).c_str()) != nullptr || !All().paths[name].empty();
}

void* OpenLibrary(const std::string& name, bool global) {
  std::lock_guard<std::mutex> lock(All().mutex);
  std::string key = name + (global ? "+global" : "");
  auto opened = All().handles.find(key);
  if (opened != All().handles.end()) return opened->second;
  std::string variable = EnvironmentName(name);
  std::string path = All().paths[name];
  if (const char* value = std::getenv(variable.c_str())) path = value;
  if (path.empty()) {
    TVM_FFI_THROW(RuntimeError) << "the library '" << name
                                << "' is not installed: " << Package(name) << "set " << variable
                                << " to its path";
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (handle == nullptr) {
    TVM_FFI_THROW(RuntimeError) << "the library '" << name << "' cannot be opened: " << dlerror()
                                << "; " << Package(name) << "set " << variable << " to its path";
  }
  All().handles[key] = handle;
  return handle;
}

void* FindSymbol(void* library, const std::string& library_name, const char* symbol) {
  void* address = dlsym(library, symbol);
  if (address == nullptr) {
    TVM_FFI_THROW(RuntimeError) << "the library '" << library_name << "' has no function " << symbol
                                << ": its version does not fit; " << Package(library_name)
                                << "point to another one";
  }
  return address;
}

}  // namespace collage
