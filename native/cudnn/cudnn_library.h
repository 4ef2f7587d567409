// cuDNN, opened at run time: its functions by name, errors as exceptions, one handle.
#ifndef COLLAGE_CUDNN_LIBRARY_H_
#define COLLAGE_CUDNN_LIBRARY_H_

#include <mutex>
#include <string>
#include <vector>

#include "cudnn/cudnn_api.h"
#include "core/vendor.h"

namespace collage {
namespace cudnn {

constexpr char kKind[] = "cudnn";
constexpr vendor::FloatTypes kFloatTypes = {dnn::kFloat, dnn::kHalf, dnn::kBfloat16};

class Library : public vendor::Api {
 public:
  static const Library& Get();

  // Calls the function `symbol` of the interface's type T; throws a ffi RuntimeError with cuDNN's message.
  template <typename T, typename... Args>
  void Call(const char* symbol, Args... args) const {
    int status = Find<T>(symbol)(args...);
    if (status != dnn::kSuccess) Fail(symbol, status);
  }

  // Created by the first call: it needs a GPU.
  dnn::Handle handle() const;

  // Locked from setting the handle's stream to the last call with it: kernels of several threads share it.
  std::unique_lock<std::mutex> HoldHandle() const { return std::unique_lock<std::mutex>(held_); }

 private:
  Library() : Api(kKind) {}
  [[noreturn]] void Fail(const char* symbol, int status) const;

  mutable std::mutex held_;
};

// A descriptor of `kind`, e.g. "Tensor", destroyed by the function for its kind.
vendor::Object Describe(const std::string& kind);

// A tensor's descriptor; `type` is cudnnDataType_t.
vendor::Object DescribeTensor(int type, const std::vector<int>& extents,
                              const std::vector<int>& strides);

}  // namespace cudnn
}  // namespace collage

#endif  // COLLAGE_CUDNN_LIBRARY_H_
