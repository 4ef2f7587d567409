#include "cudnn/cudnn_library.h"

#include <array>

namespace collage {
namespace cudnn {

namespace {

// cuDNN opens NVRTC by name, for engines that it compiles, and NVRTC its builtins: from wheels, where no loader looks,
// only when they are open. Without them it has fewer engines, and says so.
void OpenCompiler() {
  for (const char* name : {"nvrtc_builtins", "nvrtc"}) {
    if (HasLibrary(name)) OpenLibrary(name, true);
  }
}

}  // namespace

const Library& Library::Get() {
  static const Library* library = [] {
    OpenCompiler();
    return new Library();
  }();
  return *library;
}

dnn::Handle Library::handle() const {
  static const dnn::Handle handle = [this] {
    dnn::Handle made = nullptr;
    Call<dnn::Create>("cudnnCreate", &made);
    return made;
  }();
  return handle;
}

// The library keeps words of its own about what it refused; the first line is enough.
void Library::Fail(const char* symbol, int status) const {
  std::array<char, 512> text{};
  Find<dnn::LastError>("cudnnGetLastErrorString")(text.data(), text.size());
  std::string words(text.data());
  words = words.substr(0, words.find('\n'));
  TVM_FFI_THROW(RuntimeError) << symbol << ": "
                              << Find<dnn::ErrorString>("cudnnGetErrorString")(status)
                              << (words.empty() ? "" : ", ") << words;
  TVM_FFI_UNREACHABLE();
}

vendor::Object Describe(const std::string& kind) {
  const Library& library = Library::Get();
  void* made = nullptr;
  auto destroy = library.Find<dnn::Destroy>(("cudnnDestroy" + kind + "Descriptor").c_str());
  library.Call<dnn::Create>(("cudnnCreate" + kind + "Descriptor").c_str(), &made);
  return vendor::Object(made, {destroy});
}

vendor::Object DescribeTensor(int type, const std::vector<int>& extents,
                              const std::vector<int>& strides) {
  vendor::Object made = Describe("Tensor");
  Library::Get().Call<dnn::SetTensor>("cudnnSetTensorNdDescriptor", made.get(), type,
                                      static_cast<int>(extents.size()), extents.data(),
                                      strides.data());
  return made;
}

}  // namespace cudnn
}  // namespace collage
