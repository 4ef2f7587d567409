#include "tensors.h"

#include <tvm/ffi/dtype.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <stdexcept>

namespace ffi = tvm::ffi;

namespace {

using Shape = std::vector<std::int64_t>;

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

Shape ShapeOf(const ffi::Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }

std::size_t ElementBytes(DLDataType dtype) { return (dtype.bits * dtype.lanes + 7) / 8; }

template <typename T>
void FillWith(void* data, std::size_t bytes, double value) {
  std::fill_n(static_cast<T*>(data), bytes / sizeof(T), static_cast<T>(value));
}

void Fill(const ffi::Tensor& tensor, double value) {
  void* data = tensor.data_ptr();
  std::size_t bytes = ffi::GetDataSize(*tensor.GetDLTensorPtr());
  DLDataType dtype = tensor.dtype();
  bool is_signed = dtype.code == kDLInt;
  if (value == 0) {
    std::memset(data, 0, bytes);
  } else if (dtype.code == kDLFloat && dtype.bits == 32) {
    FillWith<float>(data, bytes, value);
  } else if (dtype.code == kDLFloat && dtype.bits == 64) {
    FillWith<double>(data, bytes, value);
  } else if (dtype.code == kDLFloat || dtype.code == kDLBfloat) {
    throw std::runtime_error("this program pads inputs of 16 bits with 0 only");
  } else if (dtype.bits == 64) {
    is_signed ? FillWith<std::int64_t>(data, bytes, value)
              : FillWith<std::uint64_t>(data, bytes, value);
  } else if (dtype.bits == 32) {
    is_signed ? FillWith<std::int32_t>(data, bytes, value)
              : FillWith<std::uint32_t>(data, bytes, value);
  } else if (dtype.bits == 16) {
    is_signed ? FillWith<std::int16_t>(data, bytes, value)
              : FillWith<std::uint16_t>(data, bytes, value);
  } else {
    is_signed ? FillWith<std::int8_t>(data, bytes, value)
              : FillWith<std::uint8_t>(data, bytes, value);
  }
}

// Copies the box of the shape `box` at the beginning of both tensors.
void CopyBox(const ffi::Tensor& from, const ffi::Tensor& to, const Shape& box) {
  Shape source = ShapeOf(from), target = ShapeOf(to);
  if (std::count(box.begin(), box.end(), 0) != 0) return;
  std::size_t element = ElementBytes(from.dtype());
  std::size_t row = element * static_cast<std::size_t>(box.empty() ? 1 : box.back());
  Shape place(box.size(), 0);
  for (;;) {
    std::size_t first = 0, second = 0;
    for (std::size_t axis = 0; axis < box.size(); ++axis) {
      first =
          first * static_cast<std::size_t>(source[axis]) + static_cast<std::size_t>(place[axis]);
      second =
          second * static_cast<std::size_t>(target[axis]) + static_cast<std::size_t>(place[axis]);
    }
    std::memcpy(static_cast<char*>(to.data_ptr()) + second * element,
                static_cast<const char*>(from.data_ptr()) + first * element, row);
    std::size_t axis = box.empty() ? 0 : box.size() - 1;  // the last axis is the row
    while (axis > 0 && ++place[axis - 1] == box[axis - 1]) place[--axis] = 0;
    if (axis == 0) return;
  }
}

}  // namespace

ffi::Tensor MakeTensor(const Shape& shape, DLDataType dtype) {
  return ffi::Tensor::FromNDAlloc(AlignedMemory(), ffi::Shape(shape), dtype, DLDevice{kDLCPU, 0});
}

ffi::Tensor MakeInput(const TensorInfo& description, const std::string& file) {
  DLDataType dtype = ffi::StringToDLDataType(description.dtype);
  ffi::Tensor tensor = MakeTensor(description.shape, dtype);
  std::size_t size = ffi::GetDataSize(*tensor.GetDLTensorPtr());
  if (!file.empty()) {
    std::string bytes = ReadFile(file);
    if (bytes.size() != size) {
      throw std::runtime_error(file + " has " + std::to_string(bytes.size()) + " bytes, expected " +
                               std::to_string(size));
    }
    std::memcpy(tensor.data_ptr(), bytes.data(), size);
  } else {
    Fill(tensor, dtype.code == kDLFloat && dtype.bits == 32 ? 0.5 : 0);
  }
  return tensor;
}

ffi::Tensor Padded(const ffi::Tensor& tensor, const Shape& shape, double value) {
  Shape box = ShapeOf(tensor);
  if (box == shape) return tensor;
  ffi::Tensor padded = MakeTensor(shape, tensor.dtype());
  Fill(padded, value);
  CopyBox(tensor, padded, box);
  return padded;
}

ffi::Tensor Cropped(const ffi::Tensor& tensor, const std::map<std::size_t, std::int64_t>& extents) {
  Shape shape = ShapeOf(tensor);
  Shape box = shape;
  for (const auto& [axis, extent] : extents) {
    if (axis >= box.size() || extent < 0 || extent > box[axis]) {
      throw std::runtime_error("the manifest crops an output to a shape that it does not have");
    }
    box[axis] = extent;
  }
  if (box == shape) return tensor;
  ffi::Tensor cropped = MakeTensor(box, tensor.dtype());
  CopyBox(tensor, cropped, box);
  return cropped;
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
