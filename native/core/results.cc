// Results of a function for a caller outside of the virtual machine.
//
//   collage.copy_results(function, places)
//
// `places` has one entry per output: a tensor for a copy of the output, or null. The call returns null if all outputs are
// copied; else an array of the remaining ones, each in memory without other users. A function may return an input, a
// constant of the model, or the same memory twice: these are copied. A constant is detected in the second call (its
// result has the address of the first call's result); until then every output is copied. Callers must not overlap calls.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/host_tensor.h"

namespace collage {
namespace {

namespace ffi = tvm::ffi;
using Places = ffi::Array<ffi::Optional<ffi::Tensor>>;

struct Range {
  std::uintptr_t first = 0, end = 0;

  bool Meets(const Range& other) const { return first < other.end && other.first < end; }
};

const char* Data(const DLTensor& tensor) {
  return static_cast<const char*>(tensor.data) + tensor.byte_offset;
}

Range Memory(const DLTensor& tensor) {
  auto first = reinterpret_cast<std::uintptr_t>(Data(tensor));
  return {first, first + ffi::GetDataSize(tensor)};
}

void CheckOnHost(const DLTensor& tensor) {
  if (tensor.device.device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "a function for the host returns a tensor of another device";
  }
  if (!ffi::IsContiguous(tensor)) TVM_FFI_THROW(ValueError) << "an output is not contiguous";
}

ffi::Tensor Copied(const ffi::Tensor& tensor) {
  const DLTensor& from = *tensor.GetDLTensorPtr();
  ffi::Tensor copy = MakeTensor(tensor.shape(), from.dtype);
  std::memcpy(copy.data_ptr(), Data(from), ffi::GetDataSize(from));
  return copy;
}

class Results {
 public:
  Results(ffi::Function function, const Places& places) : function_(std::move(function)) {
    for (const ffi::Optional<ffi::Tensor>& place : places) outputs_.emplace_back(place);
  }

  void Call(ffi::PackedArgs args, ffi::Any* returned) {
    others_.clear();
    ranges_.clear();
    ffi::Any result;
    function_.CallPacked(args.data(), args.size(), &result);
    if (outputs_.size() == 1) {
      Take(0, result.cast<ffi::Tensor>(), args);
    } else {
      auto results = result.cast<ffi::Array<ffi::Tensor>>();
      if (results.size() != outputs_.size()) {
        TVM_FFI_THROW(ValueError) << "a function returns " << results.size() << " outputs, not "
                                  << outputs_.size();
      }
      for (std::size_t i = 0; i < outputs_.size(); ++i) {
        Take(i, results[static_cast<std::int64_t>(i)], args);
      }
    }
    if (others_.empty()) return;
    *returned = ffi::Array<ffi::Tensor>(others_.begin(), others_.end());
    others_.clear();  // the caller alone holds them
  }

 private:
  struct Output {
    explicit Output(ffi::Optional<ffi::Tensor> destination) : place(std::move(destination)) {}

    ffi::Optional<ffi::Tensor> place;
    ffi::Optional<ffi::Tensor> first;  // the first call's, until the second call
    bool called = false, constant = false;
  };

  void Take(std::size_t number, const ffi::Tensor& result, ffi::PackedArgs args) {
    const DLTensor& from = *result.GetDLTensorPtr();
    CheckOnHost(from);
    Output& output = outputs_[number];
    if (!output.place.has_value()) {
      others_.push_back(IsOwn(&output, result, args) ? result : Copied(result));
      return;
    }
    const DLTensor& to = *output.place.value().GetDLTensorPtr();
    std::size_t size = ffi::GetDataSize(to);
    if (ffi::GetDataSize(from) != size || from.dtype.code != to.dtype.code ||
        from.dtype.bits != to.dtype.bits) {
      TVM_FFI_THROW(ValueError) << "output " << number << " is not what the signature says";
    }
    std::memcpy(to.data, Data(from), size);
  }

  // Tells whether the result's memory is nobody else's.
  bool IsOwn(Output* output, const ffi::Tensor& result, ffi::PackedArgs args) {
    Range memory = Memory(*result.GetDLTensorPtr());
    bool own = !output->constant;
    if (!output->called) {
      output->called = true;
      output->first = result;
      own = false;
    } else if (output->first.has_value()) {
      output->constant = memory.Meets(Memory(*output->first.value().GetDLTensorPtr()));
      output->first = std::nullopt;
      own = !output->constant;
    }
    for (int i = 0; own && i < args.size(); ++i) {
      own = !memory.Meets(Memory(*args[i].cast<ffi::Tensor>().GetDLTensorPtr()));
    }
    for (const Range& other : ranges_) own = own && !memory.Meets(other);
    ranges_.push_back(memory);
    return own;
  }

  ffi::Function function_;
  std::vector<Output> outputs_;
  std::vector<ffi::Tensor> others_;  // of the call under way
  std::vector<Range> ranges_;        // of its results so far
};

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def(
      "collage.copy_results", [](ffi::Function function, const Places& places) {
        auto results = std::make_shared<Results>(std::move(function), places);
        return ffi::Function::FromPacked(
            [results](ffi::PackedArgs args, ffi::Any* returned) { results->Call(args, returned); });
      });
}

}  // namespace
}  // namespace collage
