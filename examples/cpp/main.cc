// Loads a bundle without Python, runs its first function, or an entry's, and prints latency and output
// checksums.
//
//   serve_bundle [--key PUBLIC.pem]... [--entry NAME] RUNTIME_FOLDER BUNDLE_FOLDER [INPUT.bin ...]
//
// RUNTIME_FOLDER holds libtvm_runtime.so and libcollage_runtime.so (collage/runtime/lib). Vendor
// libraries are named by the environment: COLLAGE_LIB_ONNXRUNTIME, COLLAGE_LIB_OPENVINO,
// COLLAGE_LIB_ONEDNN. Each INPUT.bin holds one input's elements, in the order of the manifest;
// without files, inputs are filled with a constant.
//
// With keys, one of them must have signed the bundle, which is verified before anything of it is parsed.
// Then the manifest's fields, the processor and the versions of the libraries are checked, and the
// executable is loaded from the very bytes whose digest was compared.
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "folder.h"
#include "manifest.h"
#include "signature.h"

namespace ffi = tvm::ffi;

namespace {

constexpr int kCpu = 1;
constexpr int kPooledAllocator = 2;
constexpr int kCalls = 50;

struct AlignedMemory {
  void AllocData(DLTensor* tensor) {
    std::size_t size = (ffi::GetDataSize(*tensor) + 63) / 64 * 64;
    tensor->data = std::aligned_alloc(64, std::max<std::size_t>(size, 64));
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

void Open(const std::string& path) {
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
}

ffi::Tensor MakeInput(const TensorInfo& description, const std::string& file) {
  DLDataType dtype = ffi::StringToDLDataType(description.dtype);
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(AlignedMemory(), ffi::Shape(description.shape),
                                                dtype, DLDevice{kDLCPU, 0});
  std::size_t size = ffi::GetDataSize(*tensor.GetDLTensorPtr());
  if (!file.empty()) {
    std::string bytes = ReadFile(file);
    if (bytes.size() != size) {
      throw std::runtime_error(file + " has " + std::to_string(bytes.size()) + " bytes, expected " +
                               std::to_string(size));
    }
    std::memcpy(tensor.data_ptr(), bytes.data(), size);
  } else if (dtype.code == kDLFloat && dtype.bits == 32) {
    float* data = static_cast<float*>(tensor.data_ptr());
    std::fill(data, data + size / sizeof(float), 0.5F);
  } else {
    std::memset(tensor.data_ptr(), 0, size);
  }
  return tensor;
}

void PrintOutput(const std::string& name, const ffi::Tensor& tensor) {
  std::size_t size = ffi::GetDataSize(*tensor.GetDLTensorPtr());
  double sum = 0;
  DLDataType dtype = tensor.dtype();
  if (dtype.code == kDLFloat && dtype.bits == 32) {
    const float* data = static_cast<const float*>(tensor.data_ptr());
    for (std::size_t i = 0; i < size / sizeof(float); ++i) sum += data[i];
  } else {
    const unsigned char* data = static_cast<const unsigned char*>(tensor.data_ptr());
    for (std::size_t i = 0; i < size; ++i) sum += data[i];
  }
  std::printf("%-24s %10zu bytes  checksum %.6g\n", name.c_str(), size, sum);
}

Manifest ReadManifest(const Folder& folder, const std::vector<std::string>& keys,
                      const std::string& entry) {
  if (!keys.empty()) return ParseManifest(VerifiedManifest(folder, keys), entry);
  std::cerr << "serve_bundle: nobody was asked who made the bundle: no --key\n";
  return ParseManifest(folder.Read(kManifestName, kMaxManifest), entry);
}

// What TVM's own loader does for a file, for an open descriptor. It stays open: the dynamic loader knows
// libraries by their paths, and another file must not get this one.
ffi::Module LoadLibrary(Descriptor file) {
  static std::vector<Descriptor> open;
  open.push_back(std::move(file));
  std::string path = "/proc/self/fd/" + std::to_string(open.back().get());
  return ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.so")(path, "so")
      .cast<ffi::Module>();
}

void Serve(const std::string& runtime, const std::string& bundle,
           const std::vector<std::string>& keys, const std::string& entry,
           std::vector<std::string> files) {
  Folder folder(bundle);
  Manifest manifest = ReadManifest(folder, keys, entry);
  Descriptor executable = folder.OpenVerified(manifest.executable, manifest.digest);
  setenv("ORT_DISABLE_TELEMETRY", "1", 1);  // before any library is opened
  setenv("OMP_WAIT_POLICY", "PASSIVE", 0);
  setenv("TVM_NUM_THREADS", std::to_string(manifest.threads).c_str(), 1);
  CheckMachine(manifest);
  Open(runtime + "/libtvm_runtime.so");
  Open(runtime + "/libcollage_runtime.so");
  ffi::Function::GetGlobalRequired("collage.set_threads")(manifest.threads);

  ffi::Module library = LoadLibrary(std::move(executable));
  auto machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  machine->GetFunction("vm_initialization").value()(kCpu, 0, kPooledAllocator);

  files.resize(manifest.inputs.size());
  std::vector<ffi::Any> tensors;
  for (std::size_t i = 0; i < files.size(); ++i) {
    tensors.push_back(MakeInput(manifest.inputs[i], files[i]));
  }
  std::vector<ffi::AnyView> arguments(tensors.begin(), tensors.end());
  ffi::Function function = machine->GetFunction(manifest.function).value();
  ffi::Any result;
  std::vector<double> milliseconds;
  for (int call = 0; call < kCalls; ++call) {
    auto start = std::chrono::steady_clock::now();
    function.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
    std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    milliseconds.push_back(taken.count());
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + kCalls / 2, milliseconds.end());
  std::printf("%-24s %10.3f ms\n", "median latency", milliseconds[kCalls / 2]);
  for (std::size_t i = 0; i < manifest.outputs.size(); ++i) {
    bool single = manifest.outputs.size() == 1;
    PrintOutput(manifest.outputs[i].name,
                single ? result.cast<ffi::Tensor>() : result.cast<ffi::Array<ffi::Tensor>>()[i]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc), keys;
  std::string entry;
  while (words.size() > 1 && (words[0] == "--key" || words[0] == "--entry")) {
    if (words[0] == "--key") {
      keys.push_back(words[1]);
    } else {
      entry = words[1];
    }
    words.erase(words.begin(), words.begin() + 2);
  }
  if (words.size() < 2) {
    std::cerr
        << "usage: serve_bundle [--key PUBLIC.pem]... [--entry NAME] RUNTIME_FOLDER BUNDLE_FOLDER "
           "[INPUT.bin ...]\n";
    return 2;
  }
  try {
    for (std::string& key : keys) key = ReadPublicKey(key);
    Serve(words[0], words[1], keys, entry,
          std::vector<std::string>(words.begin() + 2, words.end()));
  } catch (const std::exception& error) {
    std::cerr << "serve_bundle: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
