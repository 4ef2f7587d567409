#include "control_flow/body.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>

#include <cstring>
#include <string>

#include "core/host_tensor.h"
#include "core/loaded_image.h"
#include "core/sizes.h"

namespace collage::control_flow {
namespace {

namespace ffi = tvm::ffi;

constexpr char kKind[] = "control_flow";
constexpr int kPooledAllocator = 2;  // TVM's number of it

struct BorrowedMemory {
  void* data;

  void AllocData(DLTensor* tensor) { tensor->data = data; }
  void FreeData(DLTensor*) {}
};

ffi::Function Required(const ffi::Module& module, const std::string& name) {
  ffi::Optional<ffi::Function> function = module->GetFunction(name, true);
  if (!function.has_value()) {
    TVM_FFI_THROW(ValueError) << kKind << " kernel: the body's executable has no function " << name;
  }
  return function.value();
}

// Loads an executable and starts its virtual machine. It is never closed: results may need its code.
ffi::Function OpenFunction(const TensorView& image, const std::string& name) {
  auto* library = new LoadedImage(image, kKind);
  static const ffi::Function load =
      ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.so");
  auto* module = new ffi::Module(load(library->path(), "so").cast<ffi::Module>());
  auto machine = Required(*module, "vm_load_executable")().cast<ffi::Module>();
  Required(machine, "vm_initialization")(static_cast<int>(kDLCPU), 0, kPooledAllocator);
  return Required(machine, name);
}

Value ToValue(const ffi::Any& entry, const char* what) {
  json::Array pair = As<json::Array>(entry, what);
  if (pair.size() != 2) TVM_FFI_THROW(ValueError) << "'" << what << "' is no pair of numbers";
  std::int64_t kind = InRange(As<std::int64_t>(pair[0], what), 0, 3, "a value's kind");
  std::int64_t number =
      InRange(As<std::int64_t>(pair[1], what), 0, kMostExtent, "a value's number");
  return {static_cast<ValueKind>(kind), static_cast<std::size_t>(number)};
}

void CheckNumber(const Value& value, std::size_t count, const char* what) {
  if (value.number >= count) {
    TVM_FFI_THROW(ValueError) << kKind << " kernel: '" << what << "' names value " << value.number
                              << " of " << count;
  }
}

std::size_t CountOfKind(ValueKind kind, const Counts& counts, std::size_t outputs) {
  switch (kind) {
    case ValueKind::kArgument:
      return counts.arguments;
    case ValueKind::kConstant:
      return counts.constants;
    case ValueKind::kOwn:
      return counts.own;
    case ValueKind::kOutput:
      return outputs;
  }
  return 0;
}

std::vector<Value> ReadValues(const json::Object& entry, const char* key, const Counts& counts,
                              std::size_t outputs) {
  std::vector<Value> values;
  for (const ffi::Any& pair : Get<json::Array>(entry, key)) {
    values.push_back(ToValue(pair, key));
    CheckNumber(values.back(), CountOfKind(values.back().kind, counts, outputs), key);
  }
  return values;
}

}  // namespace

ffi::Tensor Allocate(const std::vector<std::int64_t>& shape, DLDataType dtype) {
  return MakeTensor(ffi::ShapeView(shape.data(), shape.size()), dtype);
}

ffi::Tensor CopyOf(const void* bytes, const std::vector<std::int64_t>& shape, DLDataType dtype) {
  ffi::Tensor copy = Allocate(shape, dtype);
  std::memcpy(copy.data_ptr(), bytes, ffi::GetDataSize(*copy.GetDLTensorPtr()));
  return copy;
}

ffi::Tensor Borrow(const DLTensor& tensor) {
  ffi::ShapeView shape(tensor.shape, static_cast<std::size_t>(tensor.ndim));
  return ffi::Tensor::FromNDAlloc(BorrowedMemory{DataOf(&tensor)}, shape, tensor.dtype,
                                  tensor.device);
}

Tensors ReadConstants(const Blob& blob) {
  std::vector<int> images = blob.GetSizes("images");
  Tensors constants;
  for (std::size_t i = 0; i < blob.tensors().size(); ++i) {
    const TensorView& view = blob.tensors()[i];
    bool is_image = false;
    for (int image : images) is_image = is_image || static_cast<std::size_t>(image) == i;
    std::vector<std::int64_t> shape = is_image ? std::vector<std::int64_t>{0} : view.shape;
    constants.push_back(CopyOf(view.data, shape, view.dtype));
  }
  return constants;
}

Value ReadValue(const json::Object& header, const char* key, std::size_t arguments,
                std::size_t constants) {
  Value value = ToValue(Entry(header, key), key);
  CheckNumber(value, CountOfKind(value.kind, {arguments, constants, 0}, 0), key);
  return value;
}

const ffi::Tensor& Select(const Value& value, const Tensors& arguments, const Tensors& constants) {
  return value.kind == ValueKind::kArgument ? arguments[value.number] : constants[value.number];
}

void CopyInto(const ffi::Tensor& result, const DLTensor& output) {
  const DLTensor& from = *result.GetDLTensorPtr();
  std::size_t size = ffi::GetDataSize(output);
  if (!IsSame(from.dtype, output.dtype) || ffi::GetDataSize(from) != size) {
    TVM_FFI_THROW(ValueError) << kKind << " kernel: a result of the body has " << CountOf(from)
                              << " numbers for an output of " << CountOf(output);
  }
  if (size > 0) std::memcpy(DataOf(&output), DataOf(&from), size);
}

std::int64_t IntegerOf(const DLTensor& tensor, const char* what) {
  if (!IsSame(tensor.dtype, {kDLInt, 64, 1}) || CountOf(tensor) != 1) {
    TVM_FFI_THROW(ValueError) << kKind << " kernel: " << what << " must be one int64";
  }
  std::int64_t value = 0;
  std::memcpy(&value, DataOf(&tensor), sizeof(value));
  return value;
}

bool TruthOf(const DLTensor& tensor, const char* what) {
  if (tensor.dtype.bits != 8 || tensor.dtype.lanes != 1 || CountOf(tensor) != 1) {
    TVM_FFI_THROW(ValueError) << kKind << " kernel: " << what << " must be one bool";
  }
  return *static_cast<const char*>(DataOf(&tensor)) != 0;
}

Body::Body(const Blob& blob, const json::Object& entry, const Counts& counts) {
  outputs_ = static_cast<std::size_t>(
      InRange(Get<std::int64_t>(entry, "outputs"), 0, kMostExtent, "a body's 'outputs'"));
  inputs_ = ReadValues(entry, "inputs", counts, 0);
  results_ = ReadValues(entry, "results", counts, outputs_);
  std::int64_t image = InRange(Get<std::int64_t>(entry, "image"), -1,
                               static_cast<std::int64_t>(blob.tensors().size()) - 1, "'image'");
  if (image < 0) {
    if (outputs_ > 0) TVM_FFI_THROW(ValueError) << "a body without executable has outputs";
    return;
  }
  function_ = OpenFunction(blob.tensors()[static_cast<std::size_t>(image)],
                           Get<ffi::String>(entry, "function"));
}

Tensors Body::Call(const Tensors& own, const Tensors& arguments, const Tensors& constants) const {
  auto select = [&](const Value& value) -> const ffi::Tensor& {
    return value.kind == ValueKind::kOwn ? own[value.number] : Select(value, arguments, constants);
  };
  Tensors outputs;
  if (outputs_ > 0) {
    std::vector<ffi::AnyView> parameters;
    parameters.reserve(inputs_.size());
    for (const Value& value : inputs_) parameters.emplace_back(select(value));
    ffi::Any returned;
    function_.CallPacked(parameters.data(), static_cast<int>(parameters.size()), &returned);
    if (outputs_ == 1) {
      outputs.push_back(returned.cast<ffi::Tensor>());
    } else {
      for (const ffi::Tensor& output : returned.cast<ffi::Array<ffi::Tensor>>()) {
        outputs.push_back(output);
      }
    }
    if (outputs.size() != outputs_) {
      TVM_FFI_THROW(ValueError) << kKind << " kernel: the body returned " << outputs.size()
                                << " tensors, not " << outputs_;
    }
  }
  Tensors results;
  results.reserve(results_.size());
  for (const Value& value : results_) {
    results.push_back(value.kind == ValueKind::kOutput ? outputs[value.number] : select(value));
  }
  return results;
}

}  // namespace collage::control_flow
