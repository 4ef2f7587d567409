#include "onnxruntime/initializers.h"

#include <optional>

namespace collage {
namespace {

// Numbers of fields in onnx.proto.
constexpr std::uint64_t kModelGraph = 7, kGraphInitializer = 5;
constexpr std::uint64_t kTensorDims = 1, kTensorType = 2, kTensorName = 8, kTensorRawData = 9;

constexpr int kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5;

struct Field {
  std::uint64_t number = 0;
  int kind = kVarint;
  std::uint64_t value = 0;  // of a varint
  std::string_view bytes;   // of a length-delimited field
};

// https://protobuf.dev/programming-guides/encoding/
class Message {
 public:
  explicit Message(std::string_view bytes) : bytes_(bytes) {}

  // The next field; none at the end, or where the bytes are no field.
  std::optional<Field> Next() {
    if (bytes_.empty()) return std::nullopt;
    Field field;
    std::optional<std::uint64_t> tag = Varint();
    if (!tag) return std::nullopt;
    field.number = *tag >> 3;
    field.kind = static_cast<int>(*tag & 7);
    if (field.kind == kVarint) {
      std::optional<std::uint64_t> value = Varint();
      if (!value) return std::nullopt;
      field.value = *value;
      return field;
    }
    std::optional<std::uint64_t> size = Size(field.kind);
    if (!size || *size > bytes_.size()) return std::nullopt;
    field.bytes = bytes_.substr(0, *size);
    bytes_.remove_prefix(*size);
    return field;
  }

  std::optional<std::uint64_t> Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  bool empty() const { return bytes_.empty(); }

 private:
  std::optional<std::uint64_t> Size(int kind) {
    if (kind == kLengthDelimited) return Varint();
    if (kind == kFixed64) return 8;
    if (kind == kFixed32) return 4;
    return std::nullopt;
  }

  std::string_view bytes_;
};

void ReadDims(const Field& field, std::vector<std::int64_t>* shape) {
  if (field.kind == kVarint) {
    shape->push_back(static_cast<std::int64_t>(field.value));
    return;
  }
  Message packed(field.bytes);
  while (!packed.empty()) {
    std::optional<std::uint64_t> extent = packed.Varint();
    if (!extent) return;
    shape->push_back(static_cast<std::int64_t>(*extent));
  }
}

Initializer ReadInitializer(std::string_view bytes) {
  Initializer initializer;
  Message message(bytes);
  while (std::optional<Field> field = message.Next()) {
    if (field->number == kTensorDims) ReadDims(*field, &initializer.shape);
    if (field->number == kTensorType) initializer.element = static_cast<int>(field->value);
    if (field->number == kTensorName) initializer.name = field->bytes;
    if (field->number == kTensorRawData) initializer.data = field->bytes;
  }
  return initializer;
}

}  // namespace

std::vector<Initializer> ReadInitializers(std::string_view model) {
  std::vector<Initializer> initializers;
  Message message(model);
  while (std::optional<Field> part = message.Next()) {
    if (part->number != kModelGraph) continue;
    Message graph(part->bytes);
    while (std::optional<Field> field = graph.Next()) {
      if (field->number != kGraphInitializer) continue;
      Initializer initializer = ReadInitializer(field->bytes);
      if (!initializer.data.empty()) initializers.push_back(std::move(initializer));
    }
  }
  return initializers;
}

}  // namespace collage
