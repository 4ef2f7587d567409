#include "cudnn/cudnn_library.h"

#include <array>

namespace collage {
namespace cudnn {

namespace {

// cuDNN opens NVRTC by name for engines compiled at run time, and NVRTC opens its builtins. The loader does not search
// wheels, so both are opened before. Without them cuDNN proposes fewer engines.
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
    dnn::Handle created = nullptr;
    Call<dnn::Create>("cudnnCreate", &created);
    return created;
  }();
  return handle;
}

// The library stores a message about a refusal; the first line suffices.
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
  void* descriptor = nullptr;
  auto destroy = library.Find<dnn::Destroy>(("cudnnDestroy" + kind + "Descriptor").c_str());
  library.Call<dnn::Create>(("cudnnCreate" + kind + "Descriptor").c_str(), &descriptor);
  return vendor::Object(descriptor, {destroy});
}

vendor::Object DescribeTensor(int type, const std::vector<int>& extents,
                              const std::vector<int>& strides) {
  vendor::Object descriptor = Describe("Tensor");
  Library::Get().Call<dnn::SetTensor>("cudnnSetTensorNdDescriptor", descriptor.get(), type,
                                      static_cast<int>(extents.size()), extents.data(),
                                      strides.data());
  return descriptor;
}

}  // namespace cudnn
}  // namespace collage
