// Loads a bundle without Python, runs an entry, and prints the way of the call, its latency and output checksums.
//
//   serve_bundle [--key PUBLIC.pem]... [--entry NAME] [--shape INPUT=1,3,8]... RUNTIME_FOLDER BUNDLE_FOLDER
//                [INPUT.bin ...]
//
// An input without --shape has the shape of the entry's first function. Other shapes go to the function of these
// shapes, to a padded one, or to the original model, as in Python.
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
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "folder.h"
#include "manifest.h"
#include "original.h"
#include "signature.h"
#include "tensors.h"
#include "ways.h"

namespace ffi = tvm::ffi;

namespace {

constexpr int kCpu = 1;
constexpr int kPooledAllocator = 2;
constexpr int kCalls = 50;

using Outputs = std::vector<ffi::Tensor>;

void Open(const std::string& path) {
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
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

// Options of the command line.
struct Arguments {
  std::vector<std::string> keys;
  std::string entry;
  Shapes shapes;  // of inputs with another shape than the first function's
  std::vector<std::string> paths;
};

ffi::Module StartMachine(const Folder& folder, const Manifest& manifest) {
  ffi::Module library = LoadLibrary(folder.OpenVerified(manifest.executable, manifest.digest));
  auto machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  machine->GetFunction("vm_initialization").value()(kCpu, 0, kPooledAllocator);
  return machine;
}

// The inputs of the entry with the shapes of this call.
std::vector<TensorInfo> InputsOf(const Manifest& manifest, Shapes shapes) {
  std::vector<TensorInfo> inputs = manifest.functions[0].inputs;
  for (TensorInfo& input : inputs) {
    auto shape = shapes.find(input.name);
    if (shape == shapes.end()) continue;
    input.shape = shape->second;
    shapes.erase(shape);
  }
  if (!shapes.empty()) {
    throw std::runtime_error("the entry has no input '" + shapes.begin()->first + "'");
  }
  return inputs;
}

Outputs OutputsOf(const ffi::Any& result, std::size_t count) {
  if (count == 1) return {result.cast<ffi::Tensor>()};
  auto array = result.cast<ffi::Array<ffi::Tensor>>();
  return {array.begin(), array.end()};
}

Outputs RunFunction(const ffi::Function& function, const Way& way,
                    const std::map<std::string, ffi::Tensor>& inputs) {
  std::vector<ffi::Any> tensors;
  for (const TensorInfo& input : way.function->inputs) {
    auto fill = way.fills.find(input.name);
    double value = fill == way.fills.end() ? 0 : fill->second;
    tensors.emplace_back(Padded(inputs.at(input.name), input.shape, value));
  }
  std::vector<ffi::AnyView> arguments(tensors.begin(), tensors.end());
  ffi::Any result;
  function.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
  Outputs outputs = OutputsOf(result, way.function->outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    auto crop = way.crops.find(way.function->outputs[i].name);
    if (crop != way.crops.end()) outputs[i] = Cropped(outputs[i], crop->second);
  }
  return outputs;
}

// Runs the call often; returns the outputs and prints the median latency.
Outputs Time(const std::function<Outputs()>& call) {
  Outputs outputs;
  std::vector<double> milliseconds;
  for (int i = 0; i < kCalls; ++i) {
    auto start = std::chrono::steady_clock::now();
    outputs = call();
    std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    milliseconds.push_back(taken.count());
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + kCalls / 2, milliseconds.end());
  std::printf("%-24s %10.3f ms\n", "median latency", milliseconds[kCalls / 2]);
  return outputs;
}

void RunEntry(const Folder& folder, const Manifest& manifest, const Shapes& shapes,
              std::vector<std::string> files) {
  ffi::Module machine = StartMachine(folder, manifest);
  std::vector<TensorInfo> descriptions = InputsOf(manifest, shapes);
  files.resize(descriptions.size());
  std::map<std::string, ffi::Tensor> inputs;
  Shapes all;
  for (std::size_t i = 0; i < files.size(); ++i) {
    inputs.emplace(descriptions[i].name, MakeInput(descriptions[i], files[i]));
    all[descriptions[i].name] = descriptions[i].shape;
  }
  Way way = ChooseWay(manifest, all);
  std::function<Outputs()> call;
  std::vector<std::string> names;
  if (way.function != nullptr) {
    ffi::Function function = machine->GetFunction(way.function->name).value();
    call = [&, function] { return RunFunction(function, way, inputs); };
    for (const TensorInfo& output : way.function->outputs) names.push_back(output.name);
    std::printf("%-24s %10s %s\n", "way", way.is_padded ? "padded" : "exact",
                way.function->name.c_str());
  } else {
    auto original = std::make_shared<OriginalModel>(folder, *manifest.fallback, manifest.threads);
    call = [&, original] { return original->Run(inputs); };
    for (const OriginalValue& output : manifest.fallback->outputs) names.push_back(output.name);
    std::printf("%-24s %10s %s\n", "way", "fallback", manifest.fallback->framework.c_str());
  }
  Outputs outputs = Time(call);
  for (std::size_t i = 0; i < names.size(); ++i) PrintOutput(names[i], outputs[i]);
}

void Serve(const Arguments& arguments) {
  const std::string& runtime = arguments.paths[0];
  Folder folder(arguments.paths[1]);
  Manifest manifest = ReadManifest(folder, arguments.keys, arguments.entry);
  setenv("ORT_DISABLE_TELEMETRY", "1", 1);  // before any library is opened
  setenv("OMP_WAIT_POLICY", "PASSIVE", 0);
  setenv("TVM_NUM_THREADS", std::to_string(manifest.threads).c_str(), 1);
  CheckMachine(manifest);
  Open(runtime + "/libtvm_runtime.so");
  Open(runtime + "/libcollage_runtime.so");
  ffi::Function::GetGlobalRequired("collage.set_threads")(manifest.threads);
  RunEntry(folder, manifest, arguments.shapes,
           {arguments.paths.begin() + 2, arguments.paths.end()});
}

void AddShape(const std::string& text, Shapes* shapes) {
  std::size_t equals = text.find('=');
  if (equals == std::string::npos) {
    throw std::runtime_error("'" + text + "' is no shape of an input; write it as x=1,3,8");
  }
  (*shapes)[text.substr(0, equals)] = ParseShape(text.substr(equals + 1));
}

// Throws std::runtime_error for a shape that is none.
Arguments ParseArguments(std::vector<std::string> words) {
  Arguments arguments;
  while (words.size() > 1) {
    const std::string& value = words[1];
    if (words[0] == "--key") {
      arguments.keys.push_back(value);
    } else if (words[0] == "--entry") {
      arguments.entry = value;
    } else if (words[0] == "--shape") {
      AddShape(value, &arguments.shapes);
    } else {
      break;
    }
    words.erase(words.begin(), words.begin() + 2);
  }
  arguments.paths = std::move(words);
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Arguments arguments = ParseArguments({argv + 1, argv + argc});
    if (arguments.paths.size() < 2) {
      std::cerr
          << "usage: serve_bundle [--key PUBLIC.pem]... [--entry NAME] [--shape INPUT=1,3,8]... "
             "RUNTIME_FOLDER BUNDLE_FOLDER [INPUT.bin ...]\n";
      return 2;
    }
    for (std::string& key : arguments.keys) key = ReadPublicKey(key);
    Serve(arguments);
  } catch (const std::exception& error) {
    std::cerr << "serve_bundle: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
