#include "original.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

namespace {

std::vector<OriginalValue> ByPlace(std::vector<OriginalValue> values) {
  std::sort(values.begin(), values.end(),
            [](const OriginalValue& left, const OriginalValue& right) {
              return left.place < right.place;
            });
  return values;
}

json::Array Names(const std::vector<OriginalValue>& values) {
  json::Array names;
  for (const OriginalValue& value : values) names.push_back(ffi::String(value.name));
  return names;
}

// JSON in ASCII: a blob's header has no other letters.
std::string Escaped(const std::string& utf8) {
  std::string text;
  for (std::size_t i = 0; i < utf8.size();) {
    auto byte = static_cast<unsigned char>(utf8[i]);
    std::size_t length = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    if (length == 1) {
      text += utf8[i++];
      continue;
    }
    std::uint32_t code = byte & (0xFFU >> (length + 1));
    for (std::size_t k = 1; k < length && i + k < utf8.size(); ++k) {
      code = code << 6 | (static_cast<unsigned char>(utf8[i + k]) & 0x3FU);
    }
    i += length;
    char escape[16] = {};
    if (code >= 0x10000) {
      std::snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                    0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
      std::snprintf(escape, sizeof(escape), "\\u%04x", code);
    }
    text += escape;
  }
  return text;
}

// A blob without tensors (collage/runtime/blob.py).
std::string Settings(const FallbackInfo& fallback, int threads) {
  json::Object header;
  header.Set(ffi::String("tensors"), json::Array());
  header.Set(ffi::String("threads"), static_cast<std::int64_t>(threads));
  header.Set(ffi::String("alone"), std::int64_t{1});
  if (fallback.framework == "onnxruntime") {
    header.Set(ffi::String("input_names"), Names(ByPlace(fallback.inputs)));
    header.Set(ffi::String("output_names"), Names(fallback.outputs));
  } else {
    json::Array places;
    for (const OriginalValue& output : fallback.outputs) places.push_back(output.place);
    header.Set(ffi::String("inference_precision"), ffi::String(fallback.precision));
    header.Set(ffi::String("outputs"), places);
  }
  std::string text = Escaped(std::string(json::Stringify(header)));
  std::uint64_t length = text.size();
  std::string blob = "COLLAGE1";
  blob.append(reinterpret_cast<const char*>(&length), sizeof(length)).append(text);
  blob.resize((blob.size() + 63) / 64 * 64);
  return blob;
}

const FallbackInfo& Checked(const FallbackInfo& fallback) {
  if (fallback.has_weights_file) {
    throw std::runtime_error(
        "the original model has a file of weights: this program answers compiled and padded shapes "
        "of it only");
  }
  for (const auto* values : {&fallback.inputs, &fallback.outputs}) {
    for (const OriginalValue& value : *values) {
      bool is_tensor = value.type.rfind("tensor(", 0) == 0 && value.type != "tensor(string)";
      if (is_tensor) continue;
      throw std::runtime_error(value.name + " of the original model is a " + value.type +
                               ": this program serves tensors of numbers");
    }
  }
  return fallback;
}

}  // namespace

OriginalModel::OriginalModel(const Folder& folder, const FallbackInfo& fallback, int threads)
    : fallback_(Checked(fallback)), file_(folder.OpenVerified(fallback.file, fallback.digest)) {
  std::string path = "/proc/self/fd/" + std::to_string(file_.get());
  std::string settings = Settings(fallback, threads);
  model_ =
      ffi::Function::GetGlobalRequired("collage.open_original")(
          ffi::String(fallback.framework), ffi::Bytes(settings), ffi::String(path), ffi::String(""))
          .cast<ffi::Function>();
}

std::vector<ffi::Tensor> OriginalModel::Run(
    const std::map<std::string, ffi::Tensor>& inputs) const {
  ffi::Array<ffi::Any> values;
  for (const OriginalValue& input : ByPlace(fallback_.inputs)) {
    auto value = inputs.find(input.name);
    if (value != inputs.end()) {
      values.push_back(value->second);
    } else if (input.has_default) {
      values.push_back(nullptr);
    } else {
      throw std::runtime_error("the original model's input " + input.name + " has no value");
    }
  }
  std::vector<ffi::Tensor> outputs;
  for (const ffi::Any& value : model_(values).cast<ffi::Array<ffi::Any>>()) {
    auto output = value.try_cast<ffi::Tensor>();
    if (!output.has_value()) throw std::runtime_error("an output of the original model is missing");
    outputs.push_back(*output);
  }
  return outputs;
}
