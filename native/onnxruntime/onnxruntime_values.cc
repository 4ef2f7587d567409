#include "onnxruntime/onnxruntime_values.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "core/sizes.h"

namespace collage {
namespace {

namespace ffi = tvm::ffi;

// ONNXTensorElementDataType of the float8 types: e4m3fn, e4m3fnuz, e5m2, e5m2fnuz.
constexpr int kFirstFloat8 = 17, kLastFloat8 = 20;
constexpr DLDataType kByte = {kDLUInt, 8, 1};

bool IsFloat8(int element) { return element >= kFirstFloat8 && element <= kLastFloat8; }

// The type of a tensor of the caller in ONNX Runtime; bytes are float8 where the model has that.
int ElementFor(DLDataType type, const InputType& input) {
  return IsFloat8(input.element) && IsSame(type, kByte) ? input.element : ElementType(type);
}

OwnedValue Wrapped(const OnnxRuntime& runtime, const ffi::Tensor& tensor, const InputType& input) {
  const DLTensor* view = tensor.GetDLTensorPtr();
  return runtime.Make<ort::CreateTensorWithData, ort::ReleaseValue, ort::Value>(
      runtime.memory(), DataOf(view), ffi::GetDataSize(*view), view->shape,
      static_cast<std::size_t>(view->ndim), ElementFor(view->dtype, input));
}

OwnedValue Strings(const OnnxRuntime& runtime, const ffi::Shape& shape,
                   const ffi::Array<ffi::Any>& texts, const InputType& input) {
  std::vector<std::string> owned;
  std::vector<const char*> pointers;
  owned.reserve(texts.size());
  for (const ffi::Any& text : texts) {
    auto bytes = text.cast<ffi::Bytes>();
    owned.emplace_back(bytes.data(), bytes.size());
    if (owned.back().find('\0') != std::string::npos) {
      TVM_FFI_THROW(ValueError) << "input '" << input.name << "' has a text with a zero byte";
    }
    pointers.push_back(owned.back().c_str());
  }
  OwnedValue value = runtime.Make<ort::CreateTensor, ort::ReleaseValue, ort::Value>(
      runtime.allocator(), shape.data(), shape.size(), ort::kStringElement);
  runtime.Call<ort::FillStringTensor>(value.get(), pointers.data(), pointers.size());
  return value;
}

// A sequence or a map of `parts`.
OwnedValue Composed(const OnnxRuntime& runtime, const std::vector<ModelValue>& parts, int type,
                    const InputType& input) {
  if (parts.empty()) {
    TVM_FFI_THROW(ValueError)
        << "input '" << input.name
        << "' is an empty sequence, which ONNX Runtime's C interface cannot make";
  }
  std::vector<OwnedValue> owned;
  std::vector<const ort::Value*> pointers;
  for (const ModelValue& part : parts) {
    owned.push_back(ToOnnxRuntime(runtime, part, {input.name}));
    pointers.push_back(owned.back().get());
  }
  return runtime.Make<ort::CreateValue, ort::ReleaseValue, ort::Value>(pointers.data(),
                                                                       pointers.size(), type);
}

ModelValue StringsOf(const OnnxRuntime& runtime, const ort::Value* value,
                     const TensorFacts& facts) {
  std::size_t count = static_cast<std::size_t>(ElementsOf(facts.shape, 0, "a shape of text"));
  std::size_t length = 0;
  runtime.Call<ort::GetStringTensorDataLength>(value, &length);
  std::string content(length, '\0');
  std::vector<std::size_t> offsets(count);
  runtime.Call<ort::GetStringTensorContent>(value, static_cast<void*>(content.data()), length,
                                            offsets.data(), count);
  ffi::Array<ffi::Any> texts;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t end = i + 1 < count ? offsets[i + 1] : length;
    texts.push_back(ffi::Bytes(content.data() + offsets[i], end - offsets[i]));
  }
  return ModelValues{ffi::String(kStrings), ffi::Shape(facts.shape), texts};
}

ModelValue TensorFrom(const OnnxRuntime& runtime, OwnedValue value) {
  TensorFacts facts = FactsOf(runtime, value.get());
  if (facts.element == ort::kStringElement) return StringsOf(runtime, value.get(), facts);
  DLDataType type = IsFloat8(facts.element) ? kByte : TensorType(facts.element);
  ort::Value* memory = value.release();  // the tensor owns it
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(
      ReturnedMemory(runtime, memory), ffi::ShapeView(facts.shape.data(), facts.shape.size()), type,
      DLDevice{kDLCPU, 0});
  return tensor;
}

ModelValue Part(const OnnxRuntime& runtime, const ort::Value* value, int position) {
  return FromOnnxRuntime(runtime, runtime.Make<ort::GetValue, ort::ReleaseValue, ort::Value>(
                                      value, position, runtime.allocator()));
}

}  // namespace

TensorFacts FactsOf(const OnnxRuntime& runtime, const ort::Value* value) {
  auto info =
      runtime.Make<ort::GetTensorTypeAndShape, ort::ReleaseTensorInfo, ort::TensorInfo>(value);
  TensorFacts facts;
  std::size_t rank = 0;
  runtime.Call<ort::GetDimensionsCount>(info.get(), &rank);
  runtime.Call<ort::GetTensorElementType>(info.get(), &facts.element);
  facts.shape.resize(rank);
  runtime.Call<ort::GetDimensions>(info.get(), facts.shape.data(), rank);
  return facts;
}

OwnedValue ToOnnxRuntime(const OnnxRuntime& runtime, const ModelValue& value,
                         const InputType& input) {
  auto tagged = value.try_cast<ffi::Array<ffi::Any>>();
  if (!tagged) return Wrapped(runtime, TensorOf(value, input.name), input);
  std::string tag = tagged->empty() ? "" : std::string((*tagged)[0].cast<ffi::String>());
  if (tag == kStrings && tagged->size() == 3) {
    return Strings(runtime, (*tagged)[1].cast<ffi::Shape>(),
                   (*tagged)[2].cast<ffi::Array<ffi::Any>>(), input);
  }
  if (tag == kSequence && tagged->size() == 2) {
    auto elements = (*tagged)[1].cast<ffi::Array<ffi::Any>>();
    return Composed(runtime, {elements.begin(), elements.end()}, ort::kSequenceType, input);
  }
  if (tag == kMap && tagged->size() == 3) {
    return Composed(runtime, {(*tagged)[1], (*tagged)[2]}, ort::kMapType, input);
  }
  TVM_FFI_THROW(TypeError) << "input '" << input.name << "' is no value of a model";
  TVM_FFI_UNREACHABLE();
}

ModelValue FromOnnxRuntime(const OnnxRuntime& runtime, OwnedValue value) {
  int has_value = 1;
  if (value != nullptr) runtime.Call<ort::HasValue>(value.get(), &has_value);
  if (value == nullptr || has_value == 0) return nullptr;
  int type = 0;
  runtime.Call<ort::GetValueType>(value.get(), &type);
  if (type == ort::kTensorType) return TensorFrom(runtime, std::move(value));
  if (type == ort::kMapType) {
    return ModelValues{ffi::String(kMap), Part(runtime, value.get(), 0),
                       Part(runtime, value.get(), 1)};
  }
  if (type != ort::kSequenceType) {
    TVM_FFI_THROW(TypeError) << "onnxruntime returned a value that is no tensor, sequence or map";
  }
  std::size_t count = 0;
  runtime.Call<ort::GetValueCount>(value.get(), &count);
  ffi::Array<ffi::Any> elements;
  for (std::size_t i = 0; i < count; ++i) {
    elements.push_back(Part(runtime, value.get(), static_cast<int>(i)));
  }
  return ModelValues{ffi::String(kSequence), elements};
}

}  // namespace collage
