// The module that holds one kernel inside a TVM executable, and the plug-in's global functions.
//
// A module is (kind, symbol, blob). The executable stores these three; loading needs no Python. The kernel is built at
// the first lookup of its function, by the initialisation of the Relax VM: thread count and library paths are set by
// then. Every lookup builds a separate kernel, so virtual machines can run in several threads. A kernel with "alone" in
// its header (it is a whole model) is built once, for the virtual machine and for direct callers.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/index_checks.h"
#include "core/kernel.h"
#include "core/library.h"
#include "core/sizes.h"
#include "core/thread_pool.h"

namespace collage {
namespace {

namespace ffi = tvm::ffi;

constexpr int kMaxArguments = 256;

// Returns one tensor as it is, several as an array: the Relax VM's form of a tuple.
void ReturnTensors(const std::vector<ffi::Tensor>& tensors, ffi::Any* result) {
  if (tensors.size() == 1) {
    *result = tensors[0];
  } else {
    *result = ffi::Array<ffi::Any>(tensors.begin(), tensors.end());
  }
}

bool IsAt(const DLTensor& tensor, bool on_device) {
  DLDeviceType type = tensor.device.device_type;
  return on_device ? type == kDLCUDA : type == kDLCPU || type == kDLCUDAHost;
}

void RunPacked(Kernel& kernel, bool on_device, const std::string& symbol,
               const std::vector<IndexCheck>& checks, ffi::PackedArgs args, ffi::Any* result) {
  DLTensor* tensors[kMaxArguments];
  if (args.size() > kMaxArguments) TVM_FFI_THROW(ValueError) << symbol << ": too many arguments";
  for (int i = 0; i < args.size(); ++i) {
    auto tensor = args[i].try_cast<DLTensor*>();
    if (!tensor) TVM_FFI_THROW(TypeError) << symbol << ": argument " << i << " is not a tensor";
    tensors[i] = *tensor;
    if (!IsAt(*tensors[i], on_device)) {
      TVM_FFI_THROW(ValueError) << symbol << ": the kernel's tensors must be on "
                                << (on_device ? "a GPU" : "the CPU") << "; tensor " << i
                                << " is not";
    }
    if (!ffi::IsContiguous(*tensors[i])) {
      TVM_FFI_THROW(ValueError) << symbol << ": tensor " << i
                                << " is not contiguous: copy it first";
    }
  }
  CheckIndices(checks, tensors, args.size());
  if (kernel.Allocates()) {
    ReturnTensors(kernel.RunAllocating(tensors, args.size()), result);
  } else {
    kernel.Run(tensors, args.size());
  }
}

class KernelModule : public ffi::ModuleObj {
 public:
  KernelModule(std::string kind, std::string symbol, ffi::Bytes blob)
      : kind_(std::move(kind)), symbol_(std::move(symbol)), blob_(std::move(blob)) {}

  const char* kind() const final { return "collage_kernel"; }

  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }

  bool ImplementsFunction(const ffi::String& name) final { return name == symbol_; }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    if (name != symbol_) return std::nullopt;
    std::shared_ptr<Kernel> kernel = Build();
    bool on_device = kernel->OnDevice();
    return ffi::Function::FromPacked([kernel, on_device, symbol = symbol_, checks = Checks()](
                                         ffi::PackedArgs args, ffi::Any* result) {
      RunPacked(*kernel, on_device, symbol, checks, args, result);
    });
  }

  ffi::Bytes SaveToBytes() const final {
    std::string bytes;
    for (const std::string& part : {kind_, symbol_}) {
      std::uint64_t size = part.size();
      bytes.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(part);
    }
    return ffi::Bytes(bytes.append(blob_.data(), blob_.size()));
  }

  static ffi::Module LoadFromBytes(const ffi::Bytes& bytes) {
    std::string_view remaining(bytes.data(), bytes.size());
    std::string kind = TakeString(&remaining);
    std::string symbol = TakeString(&remaining);
    return Create(kind, symbol, ffi::Bytes(remaining.data(), remaining.size()));
  }

  static ffi::Module Create(const std::string& kind, const std::string& symbol, ffi::Bytes blob) {
    return ffi::Module(ffi::make_object<KernelModule>(kind, symbol, std::move(blob)));
  }

 private:
  std::shared_ptr<Kernel> Build() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::shared_ptr<Kernel> kernel = alone_.lock()) return kernel;
    KernelSpec spec = ReadSpec({blob_.data(), blob_.size()}, DefaultThreads());
    std::shared_ptr<Kernel> kernel = FindKernelFactory(kind_)(spec);
    if (spec.blob->GetInt("alone", 0) != 0) alone_ = kernel;
    checks_ = ReadIndexChecks(*spec.blob);
    spec.blob->ReleasePages();
    std::size_t size = spec.blob->size();
    spec.blob.reset();
    ReturnFreeMemory(size);
    return kernel;
  }

  std::vector<IndexCheck> Checks() {
    std::lock_guard<std::mutex> lock(mutex_);
    return checks_;
  }

  static std::string TakeString(std::string_view* remaining) {
    std::uint64_t size = 0;
    if (remaining->size() < sizeof(size))
      TVM_FFI_THROW(ValueError) << "a saved kernel is truncated";
    std::memcpy(&size, remaining->data(), sizeof(size));
    remaining->remove_prefix(sizeof(size));
    if (remaining->size() < size) TVM_FFI_THROW(ValueError) << "a saved kernel is truncated";
    std::string text(remaining->substr(0, size));
    remaining->remove_prefix(size);
    return text;
  }

  std::string kind_;
  std::string symbol_;
  ffi::Bytes blob_;
  std::mutex mutex_;
  std::weak_ptr<Kernel> alone_;
  std::vector<IndexCheck> checks_;  // of the blob, as soon as a kernel is built
};

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("collage.create_module",
           [](const ffi::String& kind, const ffi::String& symbol, ffi::Bytes blob) {
             FindKernelFactory(kind);
             return KernelModule::Create(kind, symbol, std::move(blob));
           })
      .def("ffi.Module.load_from_bytes.collage_kernel", KernelModule::LoadFromBytes)
      .def("collage.set_library",
           [](const ffi::String& name, const ffi::String& path) { SetLibrary(name, path); })
      .def("collage.set_threads",
           [](std::int64_t threads) {
             SetDefaultThreads(static_cast<int>(InRange(threads, 1, kMostThreads, "threads")));
           })
      .def("collage.wake_threads", WakeThreads);
}

}  // namespace
}  // namespace collage
