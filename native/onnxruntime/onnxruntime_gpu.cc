// Regions in ONNX Runtime's CUDA or TensorRT execution provider, on device tensors without copies.
// Kinds "onnxruntime-cuda" and "tensorrt". Blob: tensor 0 is an ONNX model (bytes), for TensorRT one whose
// node may hold an engine (an EP context); header entries are those of SessionOptions and OnnxSession, and
//   provider_options  [key, value, key, value, ...] of the provider
//   libraries         [name, ...]: opened first, so that the provider finds them (see library.h)
//   full_precision    1: TensorRT, which builds the engine when the session is made, has no option against TF32
//
// The first call creates the session, for its device and stream. A node without support in the provider is an error,
// never a hidden copy to the CPU. A run queues its work without waiting, but a CUDA graph cannot capture it: ONNX
// Runtime frees host buffers after a run, and a replay would read them.
//
// Global functions:
//   collage.check_provider(kind, libraries)  throws a ffi RuntimeError that says why there is no such
//                                            provider here
//   collage.try_session(kind, blob)          makes a session and ends it: a provider that is asked to
//                                            leaves its engine in a file
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_runtime.h"
#include "core/kernel.h"
#include "core/library.h"
#include "onnxruntime/onnxruntime_session.h"
#include "core/thread_pool.h"

namespace collage {
namespace {

namespace ffi = tvm::ffi;

constexpr int kFirstGpu = 0;  // of those that the process sees

// The options of a provider as text, and the stream that it computes on, null for one of its own.
struct ProviderOptions {
  std::vector<std::pair<std::string, std::string>> text;
  cuda::Stream stream = nullptr;
};

using Append = void (*)(const OnnxRuntime&, const SessionOptions&, const ProviderOptions&);

// The interface of both providers; their entries in the table differ.
template <class Options, class Create, class Update, class UpdateWithValue, class Release,
          class Add>
void AppendProvider(const OnnxRuntime& runtime, const SessionOptions& session,
                    const ProviderOptions& options) {
  runtime.NeedVersion(ort::kProviderApiVersion);
  auto provider_options = runtime.Make<Create, Release, Options>();
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : options.text) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  runtime.Call<Update>(provider_options.get(), keys.data(), values.data(), keys.size());
  if (options.stream != nullptr) {
    runtime.Call<UpdateWithValue>(provider_options.get(), "user_compute_stream", options.stream);
  }
  runtime.Call<Add>(session.get(), provider_options.get());
}

struct Provider {
  const char* kind;
  Append append;
};

constexpr Provider kProviders[] = {
    {"onnxruntime-cuda",
     AppendProvider<ort::CudaOptions, ort::CreateCudaOptions, ort::UpdateCudaOptions,
                    ort::UpdateCudaOptionsWithValue, ort::ReleaseCudaOptions, ort::AppendCuda>},
    {"tensorrt", AppendProvider<ort::TensorRtOptions, ort::CreateTensorRtOptions,
                                ort::UpdateTensorRtOptions, ort::UpdateTensorRtOptionsWithValue,
                                ort::ReleaseTensorRtOptions, ort::AppendTensorRt>}};

const Provider& FindProvider(const std::string& kind) {
  for (const Provider& provider : kProviders) {
    if (kind == provider.kind) return provider;
  }
  TVM_FFI_THROW(ValueError) << "onnxruntime has no provider for kernels of kind '" << kind << "'";
  TVM_FFI_UNREACHABLE();
}

// The stream of a session, ordered with those of its callers. The null stream is not handed to a provider
// (TensorRT would wait for the host on it): a stream of the session's own takes its place, which CUDA
// itself orders with the null stream.
class SessionStream {
 public:
  explicit SessionStream(cuda::Stream caller)
      : caller_(caller), own_(caller == nullptr ? cuda::MakeStream() : nullptr) {}

  cuda::Stream get() const { return own_ == nullptr ? caller_ : own_.get(); }

  // Later work of the session waits for the queued work of `caller`.
  void Enter(cuda::Stream caller) const {
    if (caller != caller_) cuda::Order(caller, get());
  }

  // Later work of `caller` waits for the session.
  void Leave(cuda::Stream caller) const {
    if (caller != caller_) cuda::Order(get(), caller);
  }

 private:
  cuda::Stream caller_;
  cuda::OwnStream own_;
};

// A session on the GPU with the objects it depends on.
class GpuSession {
 public:
  GpuSession(const Provider& provider, const KernelSpec& spec, int device, cuda::Stream caller)
      : runtime_(OnnxRuntime::Get(spec.threads)),
        stream_(caller),
        memory_(runtime_.Make<ort::CreateMemoryInfo, ort::ReleaseMemoryInfo, ort::MemoryInfo>(
            "Cuda", ort::kDeviceAllocator, device, ort::kMemTypeDefault)),
        how_(runtime_.Make<ort::CreateRunOptions, ort::ReleaseRunOptions, ort::RunOptions>()),
        session_(runtime_, *spec.blob, Options(provider, spec, device), memory_.get()) {
    runtime_.Call<ort::AddRunConfigEntry>(how_.get(), "disable_synchronize_execution_providers",
                                          "1");
  }

  void Run(DLTensor* const* args, int count, cuda::Stream caller) {
    session_.Bind(args, count, session_.size());
    stream_.Enter(caller);
    session_.Run(how_.get());
    stream_.Leave(caller);
  }

 private:
  SessionOptions Options(const Provider& provider, const KernelSpec& spec, int device) const {
    SessionOptions session(runtime_, *spec.blob, spec.threads);
    session.Set("session.disable_cpu_ep_fallback", "1");
    ProviderOptions options{spec.blob->GetPairs("provider_options"), stream_.get()};
    options.text.emplace_back("device_id", std::to_string(device));
    provider.append(runtime_, session, options);
    return session;
  }

  const OnnxRuntime& runtime_;
  SessionStream stream_;
  std::unique_ptr<ort::MemoryInfo, ort::ReleaseMemoryInfo::Type> memory_;
  std::unique_ptr<ort::RunOptions, ort::ReleaseRunOptions::Type> how_;
  OnnxSession session_;
};

// Disables TF32 in NVIDIA's libraries for its lifetime. Other kernels of this process may need TF32, so the lifetime is
// the build of one engine.
class FullPrecision {
 public:
  explicit FullPrecision(bool enabled) : alone_(Mutex()) {
    const char* value = std::getenv(kName);
    before_ = value == nullptr ? "" : value;
    if (enabled && before_ != "0") {
      setenv(kName, "0", 1);
      changed_ = true;
    }
  }
  ~FullPrecision() {
    if (!changed_) return;
    before_.empty() ? unsetenv(kName) : setenv(kName, before_.c_str(), 1);
  }
  FullPrecision(const FullPrecision&) = delete;
  FullPrecision& operator=(const FullPrecision&) = delete;

 private:
  // Of two that live at once, the one that ends later would set back what the other has set.
  static std::mutex& Mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }

  static constexpr char kName[] = "NVIDIA_TF32_OVERRIDE";
  std::lock_guard<std::mutex> alone_;
  std::string before_;
  bool changed_ = false;
};

class OnnxRuntimeGpu : public Kernel {
 public:
  OnnxRuntimeGpu(const Provider& provider, const KernelSpec& spec)
      : provider_(provider), spec_(spec) {
    if (spec.blob->tensors().empty()) TVM_FFI_THROW(ValueError) << "the blob holds no ONNX model";
    RefusePaths(spec.blob->GetPairs("provider_options"), "provider_options");
    for (const std::string& name : spec.blob->GetStrings("libraries")) OpenLibrary(name);
  }

  bool OnDevice() const final { return true; }

  void Run(DLTensor* const* args, int count) final {
    if (count == 0) TVM_FFI_THROW(ValueError) << provider_.kind << " kernel: no tensors";
    const DLTensor* output = args[count - 1];
    cuda::Stream caller = cuda::CurrentStream(output->device);
    if (session_ == nullptr) {
      FullPrecision guard(spec_.blob->GetInt("full_precision", 0) != 0);
      session_ = std::make_unique<GpuSession>(provider_, spec_, output->device.device_id, caller);
      spec_.blob.reset();  // the session has its own copy
    }
    session_->Run(args, count, caller);
  }

 private:
  const Provider& provider_;
  KernelSpec spec_;
  std::unique_ptr<GpuSession> session_;
};

template <int Number>
std::unique_ptr<Kernel> MakeKernel(const KernelSpec& spec) {
  return std::make_unique<OnnxRuntimeGpu>(kProviders[Number], spec);
}

const RegisterKernel kCuda(kProviders[0].kind, MakeKernel<0>);
const RegisterKernel kTensorRt(kProviders[1].kind, MakeKernel<1>);

void CheckProvider(const ffi::String& kind, const ffi::Array<ffi::String>& libraries) {
  for (const ffi::String& name : libraries) OpenLibrary(name);
  const OnnxRuntime& runtime = OnnxRuntime::Get(DefaultThreads());
  auto blob = std::make_shared<Blob>();
  SessionOptions session(runtime, *blob, runtime.threads());
  FindProvider(kind).append(runtime, session, {});
}

void TrySession(const ffi::String& kind, const ffi::Bytes& bytes) {
  KernelSpec spec = ReadSpec({bytes.data(), bytes.size()}, DefaultThreads());
  for (const std::string& name : spec.blob->GetStrings("libraries")) OpenLibrary(name);
  GpuSession(FindProvider(kind), spec, kFirstGpu, nullptr);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("collage.check_provider", CheckProvider)
      .def("collage.try_session", TrySession);
}

}  // namespace
}  // namespace collage
