// Kernels that a backend compiled to machine code. Blob: tensor 0 is an ELF shared library (bytes),
// the others are its constants; header entries:
//   libraries  [name, ...]: opened before it, so that it finds their symbols (see library.h)
//
// The library exports
//   extern "C" int collage_kernel(const void* const* inputs, const void* const* constants,
//                                 void* const* outputs);
// and returns 0 when it succeeded. Header entry "inputs" is the number of inputs.
#include <memory>
#include <string>
#include <vector>

#include "kernel.h"
#include "library.h"
#include "loaded_image.h"

namespace collage {
namespace {

class SharedLibraryKernel : public Kernel {
 public:
  explicit SharedLibraryKernel(const KernelSpec& spec) : blob_(spec.blob) {
    const std::vector<TensorView>& tensors = blob_->tensors();
    if (tensors.empty()) TVM_FFI_THROW(ValueError) << "the blob holds no shared library";
    inputs_ = blob_->GetInt("inputs", -1);
    if (inputs_ < 0) TVM_FFI_THROW(ValueError) << "the blob's header lacks 'inputs'";
    for (const std::string& name : blob_->GetStrings("libraries")) OpenLibrary(name, true);
    image_ = std::make_unique<LoadedImage>(tensors[0], "shared_library");
    run_ = FindSymbolAs<Function>(image_->handle(), "shared_library kernel", "collage_kernel");
    for (std::size_t i = 1; i < tensors.size(); ++i) constants_.push_back(tensors[i].data);
  }

  void Run(DLTensor* const* args, int count) final {
    if (count < inputs_) {
      TVM_FFI_THROW(ValueError) << "shared_library kernel: expected at least " << inputs_
                                << " tensors, got " << count;
    }
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
  std::vector<const void*> constants_;
  std::vector<void*> data_;
};

const RegisterKernel kRegistered("shared_library", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new SharedLibraryKernel(spec));
});

}  // namespace
}  // namespace collage
