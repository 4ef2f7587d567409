// Kernels for a GPU that nvcc compiled to a shared library (CUTLASS). Blob: tensor 0 is the library (bytes),
// the others are its constants; header entries:
//   symbol   of a tvm-ffi function that takes device tensors: inputs, constants, outputs
//   inputs   how many there are
//   scratch  bytes of device memory that it gets as a tensor after the constants; 0 for none
// The first call uploads the constants and allocates; later calls allocate nothing, so they can be captured.
#include <dlfcn.h>
#include <tvm/ffi/any.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_runtime.h"
#include "core/kernel.h"
#include "core/library.h"
#include "core/loaded_image.h"
#include "core/sizes.h"

namespace collage {
namespace {

namespace ffi = tvm::ffi;

constexpr char kKind[] = "cuda_library";

class CudaLibrary : public Kernel {
 public:
  explicit CudaLibrary(const KernelSpec& spec) : blob_(spec.blob) {
    const std::vector<TensorView>& tensors = blob_->tensors();
    if (tensors.empty()) TVM_FFI_THROW(ValueError) << "the blob holds no shared library";
    constants_.assign(tensors.begin() + 1, tensors.end());
    inputs_ = static_cast<int>(
        InRange(blob_->GetInt("inputs", 0), 0, kMostExtent, "cuda_library kernel: 'inputs'"));
    scratch_bytes_ =
        InRange(blob_->GetInt("scratch", 0), 0, kMostBytes, "cuda_library kernel: 'scratch'");
    OpenLibrary("cudart", true);
    // Never closed: a CUDA graph may hold its kernels longer than this object lives.
    auto* image = new LoadedImage(tensors[0], kKind);
    run_ = FindSymbolAs<TVMFFISafeCallType>(image->handle(), kKind,
                                            blob_->GetString("symbol", "").c_str());
  }

  bool OnDevice() const override { return true; }

  void Run(DLTensor* const* args, int count) override {
    if (count <= inputs_) {
      TVM_FFI_THROW(ValueError) << kKind << " kernel: " << count << " tensors, not more than "
                                << inputs_;
    }
    if (uploaded_.size() != constants_.size()) uploaded_ = cuda::Upload(constants_);
    std::vector<DLTensor> constants(constants_.size());
    std::vector<ffi::AnyView> all(args, args + inputs_);
    for (std::size_t i = 0; i < constants.size(); ++i) {
      TensorView& constant = constants_[i];
      constants[i] = {uploaded_[i].get(),
                      args[inputs_]->device,
                      static_cast<int>(constant.shape.size()),
                      constant.dtype,
                      constant.shape.data(),
                      nullptr,
                      0};
      all.emplace_back(&constants[i]);
    }
    DLTensor scratch = {
        nullptr, args[inputs_]->device, 1, {kDLUInt, 8, 1}, &scratch_bytes_, nullptr, 0};
    if (scratch_bytes_ > 0) {
      if (!scratch_) scratch_ = cuda::Allocate(static_cast<std::size_t>(scratch_bytes_));
      scratch.data = scratch_.get();
      all.emplace_back(&scratch);
    }
    all.insert(all.end(), args + inputs_, args + count);
    ffi::Any result;
    TVM_FFI_CHECK_SAFE_CALL(run_(nullptr, reinterpret_cast<const TVMFFIAny*>(all.data()),
                                 static_cast<int>(all.size()),
                                 reinterpret_cast<TVMFFIAny*>(&result)));
  }

 private:
  std::shared_ptr<const Blob> blob_;
  std::vector<TensorView> constants_;
  TVMFFISafeCallType run_ = nullptr;
  int inputs_ = 0;
  std::int64_t scratch_bytes_ = 0;
  std::vector<cuda::Memory> uploaded_;
  cuda::Memory scratch_;
};

const RegisterKernel kRegistered(kKind, [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new CudaLibrary(spec));
});

}  // namespace
}  // namespace collage
