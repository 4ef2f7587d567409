// A shared library loaded from memory: a kernel that a backend compiled to machine code.
#ifndef COLLAGE_LOADED_IMAGE_H_
#define COLLAGE_LOADED_IMAGE_H_

#include "core/blob.h"

namespace collage {

// The file stays open as long as the library, because dlopen tells libraries apart by path, and the path
// is the number of the file.
class LoadedImage {
 public:
  // Throws a ffi RuntimeError when the image cannot be loaded; `kernel` is its kind.
  LoadedImage(const TensorView& image, const char* kernel);
  LoadedImage(const LoadedImage&) = delete;
  LoadedImage& operator=(const LoadedImage&) = delete;
  ~LoadedImage() { Close(); }

  void* handle() const { return handle_; }

 private:
  void Close();
  [[noreturn]] void Fail(const char* what, const char* reason);

  const char* kernel_;
  int file_ = -1;
  void* handle_ = nullptr;
};

}  // namespace collage

#endif  // COLLAGE_LOADED_IMAGE_H_
