// A CPU kernel between kernels of a GPU: its arguments are device tensors, copied to the host and back. Blob:
// tensor 0 is the blob of the kernel (bytes); header entries:
//   kind     its kind
//   inputs   how many there are
// It waits for the device, so a CUDA graph cannot capture it. Its host buffers are reused.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/cuda_runtime.h"
#include "core/kernel.h"
#include "core/sizes.h"

namespace collage {
namespace {

constexpr char kKind[] = "on_host";

class OnHost : public Kernel {
 public:
  explicit OnHost(const KernelSpec& spec) {
    const std::vector<TensorView>& tensors = spec.blob->tensors();
    if (tensors.size() != 1) TVM_FFI_THROW(ValueError) << kKind << " kernel: it holds no kernel";
    inputs_ = static_cast<int>(
        InRange(spec.blob->GetInt("inputs", 0), 0, kMostExtent, "on_host kernel: 'inputs'"));
    std::string kind = spec.blob->GetString("kind", "");
    // One inside another, and so on, would each be made by the one around it.
    if (kind == kKind)
      TVM_FFI_THROW(ValueError) << kKind << " kernel: it holds one of its own kind";
    std::string_view bytes(static_cast<const char*>(tensors[0].data), tensors[0].nbytes);
    kernel_ = FindKernelFactory(kind)(ReadSpec(bytes, spec.threads));
    if (kernel_->OnDevice())
      TVM_FFI_THROW(ValueError) << kKind << " kernel: " << kind << " needs a GPU";
    if (kernel_->Allocates()) {
      TVM_FFI_THROW(ValueError) << kKind << " kernel: an output's shape depends on data";
    }
  }

  bool OnDevice() const override { return true; }

  void Run(DLTensor* const* args, int count) override {
    if (count <= inputs_) {
      TVM_FFI_THROW(ValueError) << kKind << " kernel: " << count << " tensors, not more than "
                                << inputs_;
    }
    cuda::Stream stream = cuda::CurrentStream(args[inputs_]->device);
    Reserve(args, count);
    for (int i = 0; i < inputs_; ++i) {
      cuda::Copy(host_[i].data, DataOf(args[i]), cuda::SizeOf(args[i]), cuda::kDeviceToHost,
                 stream);
    }
    cuda::Wait(stream);
    kernel_->Run(pointers_.data(), count);
    for (int i = inputs_; i < count; ++i) {
      cuda::Copy(DataOf(args[i]), host_[i].data, cuda::SizeOf(args[i]), cuda::kHostToDevice,
                 stream);
    }
    cuda::Wait(stream);
  }

 private:
  // Makes a buffer on the host for every tensor, once. Later tensors must fit into these.
  void Reserve(DLTensor* const* args, int count) {
    if (!pointers_.empty()) return CheckArguments(kKind, expected_, args, count);
    for (int i = 0; i < count; ++i) {
      buffers_.push_back(cuda::AllocateHost(cuda::SizeOf(args[i])));
      host_.push_back(*args[i]);
      host_.back().data = buffers_.back().get();
      host_.back().byte_offset = 0;
      host_.back().device = {kDLCPU, 0};
      shapes_.emplace_back(args[i]->shape, args[i]->shape + args[i]->ndim);
      expected_.push_back({CountOf(*args[i]), args[i]->dtype});
    }
    for (int i = 0; i < count; ++i) {
      host_[i].shape = shapes_[i].data();
      host_[i].strides = nullptr;
      pointers_.push_back(&host_[i]);
    }
  }

  std::unique_ptr<Kernel> kernel_;
  int inputs_ = 0;
  std::vector<Argument> expected_;
  std::vector<cuda::HostMemory> buffers_;
  std::vector<DLTensor> host_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<DLTensor*> pointers_;
};

const RegisterKernel kRegistered(kKind, [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new OnHost(spec));
});

}  // namespace
}  // namespace collage
