// Tensors on the host: inputs from files, padding, cropping, and checksums.
#ifndef SERVE_BUNDLE_TENSORS_H_
#define SERVE_BUNDLE_TENSORS_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "manifest.h"

tvm::ffi::Tensor MakeTensor(const std::vector<std::int64_t>& shape, DLDataType dtype);

// The elements in `file`, or a constant where it is "".
tvm::ffi::Tensor MakeInput(const TensorInfo& description, const std::string& file);

// A tensor of a larger shape with `tensor` at its beginning and `value` elsewhere.
tvm::ffi::Tensor Padded(const tvm::ffi::Tensor& tensor, const std::vector<std::int64_t>& shape,
                        double value);

// The beginning of the tensor, of these extents by axis.
tvm::ffi::Tensor Cropped(const tvm::ffi::Tensor& tensor,
                         const std::map<std::size_t, std::int64_t>& extents);

void PrintOutput(const std::string& name, const tvm::ffi::Tensor& tensor);

#endif  // SERVE_BUNDLE_TENSORS_H_
