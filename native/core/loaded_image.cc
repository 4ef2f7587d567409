#include "core/loaded_image.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace collage {

LoadedImage::LoadedImage(const TensorView& image, const char* kernel)
    : kernel_(kernel), file_(memfd_create("collage_kernel", MFD_CLOEXEC)) {
  if (file_ < 0) Fail("memfd_create failed", std::strerror(errno));
  const char* data = static_cast<const char*>(image.data);
  for (std::size_t done = 0; done < image.nbytes;) {
    ssize_t written = write(file_, data + done, image.nbytes - done);
    if (written < 0) Fail("the library could not be written to memory", std::strerror(errno));
    done += static_cast<std::size_t>(written);
  }
  handle_ = dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) Fail("the library cannot be loaded", dlerror());
}

void LoadedImage::Close() {
  if (handle_ != nullptr) dlclose(handle_);
  if (file_ >= 0) close(file_);
}

void LoadedImage::Fail(const char* what, const char* reason) {
  std::string text = reason;
  Close();
  TVM_FFI_THROW(RuntimeError) << kernel_ << " kernel: " << what << ": " << text;
  TVM_FFI_UNREACHABLE();
}

}  // namespace collage
