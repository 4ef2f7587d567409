#include "core/original_model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "core/arena.h"
#include "core/thread_pool.h"

namespace collage {
namespace {

namespace ffi = tvm::ffi;

std::map<std::string, OpenModel>& Frameworks() {
  static auto* frameworks = new std::map<std::string, OpenModel>();
  return *frameworks;
}

OpenModel FindFramework(const std::string& name) {
  auto framework = Frameworks().find(name);
  if (framework == Frameworks().end()) {
    TVM_FFI_THROW(ValueError) << "this plug-in runs no original models in '" << name << "'";
  }
  return framework->second;
}

// A file in memory, without a copy. Frameworks parse it once, so its pages stay clean.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status{};
    bool readable = file >= 0 && fstat(file, &status) == 0 && status.st_size > 0;
    if (readable) {
      size_ = static_cast<std::size_t>(status.st_size);
      data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    if (file >= 0) close(file);
    if (data_ == MAP_FAILED) TVM_FFI_THROW(RuntimeError) << path << " cannot be read";
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() { munmap(data_, size_); }

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = MAP_FAILED;
  std::size_t size_ = 0;
};

ffi::Function OpenOriginal(const ffi::String& framework, const ffi::Bytes& settings,
                           const ffi::String& path, const ffi::String& weights_folder) {
  OpenModel open = FindFramework(framework);
  KernelSpec spec = ReadSpec({settings.data(), settings.size()}, DefaultThreads());
  MappedFile file(path);
  std::shared_ptr<OriginalModel> model = open(spec, {file.bytes(), weights_folder});
  ReturnFreeMemory(file.bytes().size());
  return ffi::Function::FromTyped(
      [model](const ModelValues& inputs) { return model->Run(inputs); });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def("collage.open_original", OpenOriginal);
}

}  // namespace

RegisterFramework::RegisterFramework(const char* name, OpenModel open) {
  Frameworks()[name] = open;
}

ffi::Tensor TensorOf(const ModelValue& value, const std::string& input) {
  auto tensor = value.try_cast<ffi::Tensor>();
  if (!tensor) TVM_FFI_THROW(TypeError) << "input '" << input << "' is not a tensor";
  const DLTensor& view = *tensor->GetDLTensorPtr();
  DLDeviceType device = view.device.device_type;
  if (device != kDLCPU && device != kDLCUDAHost) {
    TVM_FFI_THROW(ValueError) << "input '" << input << "' is not on the host";
  }
  if (!ffi::IsContiguous(view)) {
    TVM_FFI_THROW(ValueError) << "input '" << input << "' is not contiguous: copy it first";
  }
  return *std::move(tensor);
}

}  // namespace collage
