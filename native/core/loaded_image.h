// A shared library loaded from memory: the machine code of a backend's kernel.
#ifndef COLLAGE_LOADED_IMAGE_H_
#define COLLAGE_LOADED_IMAGE_H_

#include <string>

#include "core/blob.h"

namespace collage {

// The file remains open for the lifetime of the library: dlopen identifies libraries by path, and the path is the
// file's descriptor number.
class LoadedImage {
 public:
  // Throws a ffi RuntimeError when the image cannot be loaded; `kernel` is its kind.
  LoadedImage(const TensorView& image, const char* kernel);
  LoadedImage(const LoadedImage&) = delete;
  LoadedImage& operator=(const LoadedImage&) = delete;
  ~LoadedImage() { Close(); }

  void* handle() const { return handle_; }

  // Path of the library in this process.
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  void Close();
  [[noreturn]] void Fail(const char* what, const char* reason);

  const char* kernel_;
  int file_ = -1;
  void* handle_ = nullptr;
};

}  // namespace collage

#endif  // COLLAGE_LOADED_IMAGE_H_
