// If with partitioned branches. Header entries:
//   arguments  number of inputs of the kernel
//   condition  the value that selects the branch
//   bodies     the branches: then, else; see body.h
//   outputs    position of each output's result in a branch
//   images     numbers of the tensors with executables
#include <memory>
#include <vector>

#include "control_flow/body.h"
#include "core/kernel.h"
#include "core/sizes.h"

namespace collage::control_flow {
namespace {

namespace ffi = tvm::ffi;

class Branch : public Kernel {
 public:
  explicit Branch(const KernelSpec& spec) : constants_(ReadConstants(*spec.blob)) {
    const Blob& blob = *spec.blob;
    arguments_ = static_cast<std::size_t>(
        InRange(blob.GetInt("arguments", 0), 0, kMostExtent, "branch kernel: 'arguments'"));
    condition_ = ReadValue(blob.header(), "condition", arguments_, constants_.size());
    Counts counts{arguments_, constants_.size(), 0};
    for (const ffi::Any& entry : Get<json::Array>(blob.header(), "bodies")) {
      bodies_.emplace_back(blob, As<json::Object>(entry, "bodies"), counts);
    }
    if (bodies_.size() != 2) TVM_FFI_THROW(ValueError) << "branch kernel: not two branches";
    for (int output : blob.GetSizes("outputs")) {
      outputs_.push_back(static_cast<std::size_t>(output));
      for (const Body& body : bodies_) {
        if (outputs_.back() >= body.results()) {
          TVM_FFI_THROW(ValueError) << "branch kernel: a branch has no result " << output;
        }
      }
    }
  }

  void Run(DLTensor* const* args, int count) override {
    if (static_cast<std::size_t>(count) != arguments_ + outputs_.size()) {
      TVM_FFI_THROW(ValueError) << "branch kernel: expected " << arguments_ + outputs_.size()
                                << " tensors, got " << count;
    }
    Tensors arguments;
    for (std::size_t i = 0; i < arguments_; ++i) arguments.push_back(Borrow(*args[i]));
    const ffi::Tensor& condition = Select(condition_, arguments, constants_);
    bool is_true = TruthOf(*condition.GetDLTensorPtr(), "the condition");
    Tensors results = bodies_[is_true ? 0 : 1].Call({}, arguments, constants_);
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      CopyInto(results[outputs_[i]], *args[arguments_ + i]);
    }
  }

 private:
  const Tensors constants_;
  std::size_t arguments_ = 0;
  Value condition_{};
  std::vector<Body> bodies_;
  std::vector<std::size_t> outputs_;
};

const RegisterKernel kRegistered("branch", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new Branch(spec));
});

}  // namespace
}  // namespace collage::control_flow
