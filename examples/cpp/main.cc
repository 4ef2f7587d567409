// Loads a bundle without Python, runs its first function, and prints latency and output checksums.
//
//   serve_bundle RUNTIME_FOLDER BUNDLE_FOLDER [INPUT.bin ...]
//
// RUNTIME_FOLDER holds libtvm_runtime.so and libcollage_runtime.so (collage/runtime/lib). Vendor
// libraries are named by the environment: COLLAGE_LIB_ONNXRUNTIME, COLLAGE_LIB_OPENVINO,
// COLLAGE_LIB_ONEDNN. Each INPUT.bin holds one input's elements, in the order of the manifest;
// without files, inputs are filled with a constant.
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

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

namespace {

constexpr int kCpu = 1;
constexpr int kPooledAllocator = 2;
constexpr int kCalls = 50;

struct AlignedMemory {
  void AllocData(DLTensor* tensor) {
    std::size_t size = (ffi::GetDataSize(*tensor) + 63) / 64 * 64;
    tensor->data = std::aligned_alloc(64, std::max<std::size_t>(size, 64));
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

template <typename T>
T Get(const json::Object& object, const char* key) {
  return object.at(ffi::String(key)).cast<T>();
}

ffi::Tensor MakeInput(const json::Object& description, const std::string& file) {
  std::vector<std::int64_t> shape;
  for (const ffi::Any& extent : Get<json::Array>(description, "shape")) {
    shape.push_back(extent.cast<std::int64_t>());
  }
  DLDataType dtype = ffi::StringToDLDataType(Get<ffi::String>(description, "dtype"));
  ffi::Tensor tensor =
      ffi::Tensor::FromNDAlloc(AlignedMemory(), ffi::Shape(shape), dtype, DLDevice{kDLCPU, 0});
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

void Serve(const std::string& runtime, const std::string& bundle, std::vector<std::string> files) {
  json::Object manifest =
      json::Parse(ffi::String(ReadFile(bundle + "/manifest.json"))).cast<json::Object>();
  auto threads = Get<std::int64_t>(manifest, "threads");
  setenv("OMP_WAIT_POLICY", "PASSIVE", 0);
  setenv("TVM_NUM_THREADS", std::to_string(threads).c_str(), 1);
  Open(runtime + "/libtvm_runtime.so");
  Open(runtime + "/libcollage_runtime.so");
  ffi::Function::GetGlobalRequired("collage.set_threads")(threads);

  std::string executable = std::string(Get<ffi::String>(manifest, "executable"));
  ffi::Module library = ffi::Module::LoadFromFile(bundle + "/" + executable);
  auto machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  machine->GetFunction("vm_initialization").value()(kCpu, 0, kPooledAllocator);

  auto signature = Get<json::Array>(manifest, "functions")[0].cast<json::Object>();
  auto inputs = Get<json::Array>(signature, "inputs");
  files.resize(inputs.size());
  std::vector<ffi::Any> tensors;
  for (std::size_t i = 0; i < files.size(); ++i) {
    tensors.push_back(MakeInput(inputs[i].cast<json::Object>(), files[i]));
  }
  std::vector<ffi::AnyView> arguments(tensors.begin(), tensors.end());
  ffi::Function function = machine->GetFunction(Get<ffi::String>(signature, "function")).value();
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
  auto outputs = Get<json::Array>(signature, "outputs");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::string name = Get<ffi::String>(outputs[i].cast<json::Object>(), "name");
    bool single = outputs.size() == 1;
    PrintOutput(name,
                single ? result.cast<ffi::Tensor>() : result.cast<ffi::Array<ffi::Tensor>>()[i]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: serve_bundle RUNTIME_FOLDER BUNDLE_FOLDER [INPUT.bin ...]\n";
    return 2;
  }
  try {
    Serve(argv[1], argv[2], std::vector<std::string>(argv + 3, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "serve_bundle: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
