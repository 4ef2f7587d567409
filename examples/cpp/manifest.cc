#include "manifest.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "folder.h"

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

namespace {

constexpr int kSchemaVersion = 3;
constexpr int kMaxDepth = 64, kMaxThreads = 4096;
constexpr std::int64_t kMaxRank = 64;
constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 46;
const std::set<std::string> kDtypes = {"bool",    "int8",    "int16",  "int32",  "int64",
                                       "uint8",   "uint16",  "uint32", "uint64", "bfloat16",
                                       "float16", "float32", "float64"};

// Brackets outside of strings: the parser calls itself for each.
void CheckDepth(const std::string& text, const std::string& what) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) throw std::runtime_error(what + " is nested too deeply");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

std::vector<std::int64_t> Shape(const json::Object& tensor, const std::string& name) {
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 8;
  for (const ffi::Any& one : Get<json::Array>(tensor, "shape")) {
    auto extent = one.try_cast<std::int64_t>();
    if (!extent.has_value() || *extent < 0 || *extent > kMaxTensorBytes) {
      throw std::runtime_error("the field 'shape' of " + name + " holds no size");
    }
    if (bytes > kMaxTensorBytes / std::max<std::int64_t>(*extent, 1)) {
      throw std::runtime_error("the field 'shape' of " + name + " is too large");
    }
    bytes *= std::max<std::int64_t>(*extent, 1);
    shape.push_back(*extent);
  }
  return shape;
}

std::vector<TensorInfo> Tensors(const json::Object& function, const std::string& key, bool shapes) {
  std::vector<TensorInfo> tensors;
  for (const ffi::Any& one : Get<json::Array>(function, key)) {
    auto raw = one.try_cast<json::Object>();
    if (!raw.has_value()) throw std::runtime_error("the field '" + key + "' is of another type");
    TensorInfo tensor{GetText(*raw, "name"), GetText(*raw, "dtype"), {}};
    if (kDtypes.count(tensor.dtype) == 0) {
      throw std::runtime_error("the dtype '" + tensor.dtype + "' of " + tensor.name +
                               " is unknown");
    }
    if (shapes) tensor.shape = Shape(*raw, tensor.name);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::set<std::string> ProcessorFlags() {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    return flags;
  }
  return {};
}

// "" where the library does not tell: oneDNN's own version is not that of its package.
std::string LibraryVersion(const std::string& name, const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  if (name == "onnxruntime") {
    struct Base {
      const void* (*get_api)(std::uint32_t);
      const char* (*version)();
    };
    auto base = reinterpret_cast<const Base* (*)()>(dlsym(library, "OrtGetApiBase"));
    return base == nullptr ? "unknown" : base()->version();
  }
  if (name == "openvino") {
    struct Version {
      const char *build, *description;
    } version{};
    auto get = reinterpret_cast<int (*)(Version*)>(dlsym(library, "ov_get_openvino_version"));
    auto free = reinterpret_cast<void (*)(Version*)>(dlsym(library, "ov_version_free"));
    if (get == nullptr || free == nullptr || get(&version) != 0) return "unknown";
    std::string found(version.build);
    free(&version);
    return found.substr(0, found.find('-'));
  }
  return "";
}

std::string EntryOf(const json::Object& function) {
  bool is_named = function.count(ffi::String("entry")) != 0;
  return is_named ? GetText(function, "entry") : "main";
}

std::vector<json::Object> Objects(const json::Object& object, const std::string& key) {
  std::vector<json::Object> objects;
  for (const ffi::Any& value : Get<json::Array>(object, key)) {
    auto item = value.try_cast<json::Object>();
    if (!item.has_value()) {
      throw std::runtime_error("the field '" + key + "' is of another type");
    }
    objects.push_back(*item);
  }
  return objects;
}

// The functions of the entry, or of the first function's where it is empty.
std::vector<FunctionInfo> Functions(const json::Object& manifest, std::string* entry) {
  std::vector<FunctionInfo> functions;
  std::string entries;
  for (const json::Object& function : Objects(manifest, "functions")) {
    std::string name = EntryOf(function);
    if (entry->empty()) *entry = name;
    entries += " " + name;
    if (name != *entry) continue;
    functions.push_back({GetText(function, "function"), Tensors(function, "inputs", true),
                         Tensors(function, "outputs", false)});
  }
  if (entries.empty()) throw std::runtime_error("the bundle has no functions");
  if (functions.empty()) {
    throw std::runtime_error("the bundle has no entry '" + *entry + "', only" + entries);
  }
  return functions;
}

std::size_t Axis(const json::Object& object) {
  auto axis = Get<std::int64_t>(object, "axis");
  if (axis < 0 || axis >= kMaxRank) throw std::runtime_error("the field 'axis' is wrong");
  return static_cast<std::size_t>(axis);
}

Crop ParseCrop(const json::Object& raw) {
  Crop crop{GetText(raw, "output"), Axis(raw), Get<std::int64_t>(raw, "divisor"),
            Get<std::int64_t>(raw, "offset")};
  if (crop.divisor < 1 || crop.divisor > kMaxTensorBytes || std::abs(crop.offset) > kMaxTensorBytes)
    throw std::runtime_error("a crop of output " + crop.output + " is wrong");
  return crop;
}

std::vector<PaddedAxis> Padding(const json::Object& manifest, const std::string& entry) {
  std::vector<PaddedAxis> axes;
  if (manifest.count(ffi::String("padding")) == 0) return axes;
  auto padding = Get<json::Object>(manifest, "padding");
  if (padding.count(ffi::String(entry)) == 0) return axes;
  for (const json::Object& raw : Objects(padding, entry)) {
    PaddedAxis axis{GetText(raw, "input"), Axis(raw), Get<double>(raw, "value"), {}};
    for (const json::Object& crop : Objects(raw, "crops")) axis.crops.push_back(ParseCrop(crop));
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<OriginalValue> OriginalValues(const json::Object& fallback, const std::string& key) {
  std::vector<OriginalValue> values;
  for (const json::Object& raw : Objects(fallback, key)) {
    values.push_back({GetText(raw, "name"), GetText(raw, "type"), Get<std::int64_t>(raw, "place"),
                      Get<bool>(raw, "has_default")});
  }
  return values;
}

std::optional<FallbackInfo> Fallback(const json::Object& manifest, const std::string& entry) {
  if (manifest.count(ffi::String("fallbacks")) == 0) return std::nullopt;
  for (const json::Object& raw : Objects(manifest, "fallbacks")) {
    if (GetText(raw, "entry") != entry) continue;
    FallbackInfo fallback;
    fallback.framework = GetText(raw, "framework");
    fallback.precision = GetText(raw, "precision");
    fallback.file = GetText(raw, "file");
    if (!IsFileName(fallback.file)) {
      throw std::runtime_error("'" + fallback.file + "' is no name of a bundle's file");
    }
    fallback.digest = GetText(Get<json::Object>(manifest, "files"), fallback.file);
    fallback.has_weights_file = !GetText(raw, "weights").empty();
    fallback.inputs = OriginalValues(raw, "inputs");
    fallback.outputs = OriginalValues(raw, "outputs");
    return fallback;
  }
  return std::nullopt;
}

}  // namespace

json::Object ParseObject(const std::string& text, const std::string& what) {
  CheckDepth(text, what);
  ffi::String reason;
  auto parsed = json::Parse(ffi::String(text), &reason).try_cast<json::Object>();
  if (!parsed.has_value()) {
    throw std::runtime_error(what + " is no JSON object " + std::string(reason));
  }
  return *parsed;
}

std::string GetText(const json::Object& object, const std::string& key) {
  return std::string(Get<ffi::String>(object, key));
}

Manifest ParseManifest(const std::string& text, const std::string& entry) {
  json::Object raw = ParseObject(text, kManifestName);
  if (auto version = Get<std::int64_t>(raw, "schema_version"); version != kSchemaVersion) {
    throw std::runtime_error("the bundle has schema version " + std::to_string(version) +
                             "; this program reads " + std::to_string(kSchemaVersion));
  }
  Manifest made;
  made.executable = GetText(raw, "executable");
  if (!IsFileName(made.executable)) {
    throw std::runtime_error("'" + made.executable + "' is no name of a bundle's file");
  }
  made.digest = GetText(Get<json::Object>(raw, "files"), made.executable);
  auto threads = Get<std::int64_t>(raw, "threads");
  if (threads < 1 || threads > kMaxThreads) {
    throw std::runtime_error("the field 'threads' is wrong");
  }
  made.threads = static_cast<int>(threads);
  if (raw.count(ffi::String("device")) != 0 && GetText(raw, "device") != "cpu") {
    throw std::runtime_error("the bundle is for a GPU; this program serves those for a CPU");
  }
  std::string chosen = entry;
  made.functions = Functions(raw, &chosen);
  made.padding = Padding(raw, chosen);
  made.fallback = Fallback(raw, chosen);
  auto cpu = Get<json::Object>(raw, "cpu");
  made.cpu_model = GetText(cpu, "model");
  for (const ffi::Any& one : Get<json::Array>(cpu, "features")) {
    made.cpu_features.emplace_back(one.cast<ffi::String>());
  }
  for (const auto& [name, library] : Get<json::Object>(raw, "libraries")) {
    made.libraries[std::string(name.cast<ffi::String>())] =
        GetText(library.cast<json::Object>(), "version");
  }
  return made;
}

void CheckMachine(const Manifest& manifest) {
  std::set<std::string> flags = ProcessorFlags();
  std::string missing;
  for (const std::string& feature : manifest.cpu_features) {
    if (flags.count(feature) == 0) missing += " " + feature;
  }
  if (!missing.empty()) {
    throw std::runtime_error("this processor lacks" + missing +
                             "; the bundle was made for a machine like " + manifest.cpu_model);
  }
  for (const auto& [name, version] : manifest.libraries) {
    std::string variable = "COLLAGE_LIB_" + name;
    for (char& c : variable) {
      auto letter = static_cast<unsigned char>(c);
      c = std::isalnum(letter) ? static_cast<char>(std::toupper(letter)) : '_';
    }
    const char* path = std::getenv(variable.c_str());
    if (path == nullptr) continue;  // whoever needs it says what to install
    std::string found = LibraryVersion(name, path);
    if (!found.empty() && found != version) {
      throw std::runtime_error("the library " + name + " has version " + found + ", but " +
                               version + " was measured: install that, or set " + variable);
    }
  }
}
