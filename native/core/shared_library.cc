// Kernels compiled to machine code by a backend. Blob: tensor 0 is an ELF shared library (bytes), the other tensors are
// its constants; header entries:
//   libraries  [name, ...]: opened before it, so that it finds their symbols (see library.h)
//
// The library exports
//   extern "C" int collage_kernel(const void* const* inputs, const void* const* constants,
//                                 void* const* outputs);
// and returns 0 when it succeeded. Header entries:
//   inputs     how many there are
//   arguments  [{"dtype", "shape"}, ...]: inputs, then outputs; the code reads and writes as many numbers
// The code is trusted like the surrounding executable; its arguments are checked.
#include <memory>
#include <string>
#include <vector>

#include "core/kernel.h"
#include "core/library.h"
#include "core/loaded_image.h"
#include "core/sizes.h"

namespace collage {
namespace {

class SharedLibraryKernel : public Kernel {
 public:
  explicit SharedLibraryKernel(const KernelSpec& spec) : blob_(spec.blob) {
    const std::vector<TensorView>& tensors = blob_->tensors();
    if (tensors.empty()) TVM_FFI_THROW(ValueError) << "the blob holds no shared library";
    for (const tvm::ffi::Any& one : Get<json::Array>(blob_->header(), "arguments")) {
      expected_.push_back(ReadArgument(As<json::Object>(one, "arguments")));
    }
    inputs_ =
        InRange(Get<std::int64_t>(blob_->header(), "inputs"), 0,
                static_cast<std::int64_t>(expected_.size()), "shared_library kernel: 'inputs'");
    for (const std::string& name : blob_->GetStrings("libraries")) OpenLibrary(name, true);
    image_ = std::make_unique<LoadedImage>(tensors[0], "shared_library");
    run_ = FindSymbolAs<Function>(image_->handle(), "shared_library kernel", "collage_kernel");
    for (std::size_t i = 1; i < tensors.size(); ++i) constants_.push_back(tensors[i].data);
  }

  void Run(DLTensor* const* args, int count) final {
    CheckArguments("shared_library", expected_, args, count);
    data_.resize(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) data_[i] = DataOf(args[i]);
    int status = run_(data_.data(), constants_.data(), data_.data() + inputs_);
    if (status != 0) TVM_FFI_THROW(RuntimeError) << "shared_library kernel: returned " << status;
  }

 private:
  using Function = int (*)(const void* const*, const void* const*, void* const*);

  std::shared_ptr<const Blob> blob_;  // owns the constants
  std::unique_ptr<LoadedImage> image_;
  Function run_ = nullptr;
  std::int64_t inputs_ = 0;
  std::vector<Argument> expected_;
  std::vector<const void*> constants_;
  std::vector<void*> data_;
};

const RegisterKernel kRegistered("shared_library", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new SharedLibraryKernel(spec));
});

}  // namespace
}  // namespace collage
