// The body of a control-flow operator (If, Loop, Scan): an executable of its own inside the operator's blob.
//
// The body was partitioned like any other function, so its executable is a shared library with a Relax virtual
// machine. The operator's kernel calls it once per turn or branch. Header entry of a body:
//   image     number of the blob's tensor with the executable; -1 for a body without operators
//   function  name of the executable's function
//   inputs    a value for each parameter of the function
//   results   a value for each result of the body
//   outputs   number of results of the function
// A value is a pair [kind, number], see ValueKind.
#ifndef COLLAGE_CONTROL_FLOW_BODY_H_
#define COLLAGE_CONTROL_FLOW_BODY_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/blob.h"
#include "core/kernel.h"

namespace collage::control_flow {

using Tensors = std::vector<tvm::ffi::Tensor>;

enum class ValueKind {
  kArgument = 0,  // an input of the operator's kernel
  kConstant = 1,  // a tensor of the blob
  kOwn = 2,       // an input of the body: iteration, condition, state, slice
  kOutput = 3,    // a result of the body's executable
};

struct Value {
  ValueKind kind;
  std::size_t number;
};

// Aligned memory of a new tensor on the host.
tvm::ffi::Tensor Allocate(const std::vector<std::int64_t>& shape, DLDataType dtype);

// A copy of `bytes` in aligned memory.
tvm::ffi::Tensor CopyOf(const void* bytes, const std::vector<std::int64_t>& shape,
                        DLDataType dtype);

// `tensor` without ownership: it must outlive the result.
tvm::ffi::Tensor Borrow(const DLTensor& tensor);

// The blob's tensors as constants; those of executables are null.
Tensors ReadConstants(const Blob& blob);

// The value in header entry `key`; its number must be below `arguments` or the number of constants.
Value ReadValue(const json::Object& header, const char* key, std::size_t arguments,
                std::size_t constants);

// A value of the kernel: an argument or a constant.
const tvm::ffi::Tensor& Select(const Value& value, const Tensors& arguments,
                               const Tensors& constants);

// Copies a result into an output; a ffi ValueError unless dtype and number of bytes agree.
void CopyInto(const tvm::ffi::Tensor& result, const DLTensor& output);

// The first number of a tensor of one int64 or one bool.
std::int64_t IntegerOf(const DLTensor& tensor, const char* what);
bool TruthOf(const DLTensor& tensor, const char* what);

// Counts of the values that a body may name.
struct Counts {
  std::size_t arguments, constants, own;
};

class Body {
 public:
  Body(const Blob& blob, const json::Object& entry, const Counts& counts);

  std::size_t results() const { return results_.size(); }

  // Computes the body's results. `own` are its inputs in this turn.
  Tensors Call(const Tensors& own, const Tensors& arguments, const Tensors& constants) const;

 private:
  std::vector<Value> inputs_, results_;
  std::size_t outputs_ = 0;
  tvm::ffi::Function function_{nullptr};
};

}  // namespace collage::control_flow

#endif  // COLLAGE_CONTROL_FLOW_BODY_H_
