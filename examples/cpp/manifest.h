// The manifest of a bundle: bounded, and checked field by field before anything of the bundle is opened.
#ifndef SERVE_BUNDLE_MANIFEST_H_
#define SERVE_BUNDLE_MANIFEST_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

constexpr char kManifestName[] = "manifest.json";
constexpr std::size_t kMaxManifest = 8 << 20;

struct TensorInfo {
  std::string name, dtype;
  std::vector<std::int64_t> shape;  // of inputs
};

// A function of the executable, for one combination of shapes.
struct FunctionInfo {
  std::string name;
  std::vector<TensorInfo> inputs, outputs;
};

// An axis of an output that follows a padded one: its extent is ceil(extent / divisor) + offset.
struct Crop {
  std::string output;
  std::size_t axis = 0;
  std::int64_t divisor = 1, offset = 0;
};

// An axis of an input that may be padded at its end with `value`.
struct PaddedAxis {
  std::string input;
  std::size_t axis = 0;
  double value = 0;
  std::vector<Crop> crops;
};

// An input or an output of the original model; `place` is its position among the framework's.
struct OriginalValue {
  std::string name, type;
  std::int64_t place = 0;
  bool has_default = false;
};

// The original model, which answers other shapes.
struct FallbackInfo {
  std::string framework, precision, file, digest;
  bool has_weights_file = false;
  std::vector<OriginalValue> inputs, outputs;
};

struct Manifest {
  std::string executable, digest;  // the shared library, and its SHA-256 in hex
  int threads = 1;
  std::vector<FunctionInfo> functions;   // of the entry, one for each shape set
  std::vector<PaddedAxis> padding;       // of the entry
  std::optional<FallbackInfo> fallback;  // of the entry
  std::vector<std::string> cpu_features;
  std::string cpu_model;
  std::map<std::string, std::string> libraries;  // name to version
};

// All of these throw std::runtime_error that names the field. An empty `entry` is that of the first function.
Manifest ParseManifest(const std::string& text, const std::string& entry);
tvm::ffi::json::Object ParseObject(const std::string& text, const std::string& what);

template <typename T>
T Get(const tvm::ffi::json::Object& object, const std::string& key) {
  auto found = object.find(tvm::ffi::String(key));
  if (found == object.end()) throw std::runtime_error("the field '" + key + "' is missing");
  auto value = (*found).second.template try_cast<T>();
  if (!value.has_value()) throw std::runtime_error("the field '" + key + "' is of another type");
  return *value;
}

std::string GetText(const tvm::ffi::json::Object& object, const std::string& key);

// Refuses a processor that lacks a feature, and vendor libraries of another version where they tell it.
void CheckMachine(const Manifest& manifest);

#endif  // SERVE_BUNDLE_MANIFEST_H_
