// ONNX Runtime with execution providers for the simulated GPU: the real library for the CPU, whose table of
// functions is copied and changed where providers, memory of the device and sessions come in.
//
// SIMULATED_ONNXRUNTIME is the real library. A provider is here when its file lies beside this one. Options
// are those that the real providers know; others are refused in the same words. Sessions compute on
// the CPU while the device's memory is open, queued on the stream that the options name. An engine is the
// region's own model behind a mark. What the log says of a session:
//   session KIND OPTION=VALUE ...    its options, in the order of their names
//   build engine, build engine in TF32, load engine        TensorRT alone
//   hidden copy                      a tensor was on the host, or a node could have run there
//   synchronised                     a run waited for the device
// SIMULATED_ONNXRUNTIME_REFUSES names an operator that no provider has; SIMULATED_ONNXRUNTIME_FAILS one
// whose session fails when it runs, and SIMULATED_ONNXRUNTIME_LOSES one that reads a bad address then.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "onnxruntime/onnxruntime_api.h"
#include "gpu.h"

namespace ort = collage::ort;

namespace {

using CreateStatus = ort::Entry<0, ort::Status* (*)(int code, const char* words)>;
using Options = std::map<std::string, std::string>;
constexpr std::size_t kEntries = ort::UpdateCudaOptionsWithValue::kPosition + 1;
constexpr char kMark[] = "SIMULATED ENGINE";
constexpr int kFail = 1;

struct Provider {
  std::string name;  // "" for the CPU
  Options options;
  void* stream = nullptr;
  bool strict = false, fails = false, loses = false;
};

struct Runtime {
  std::recursive_mutex mutex;
  const ort::ApiBase* base = nullptr;
  const void* const* real = nullptr;
  const void* table[kEntries];
  std::set<const void*> device_memory, device_values, asynchronous;
  std::map<const void*, Provider> options, sessions;  // by session options, by session
};

Runtime& The() {
  static auto* runtime = new Runtime();
  return *runtime;
}

using Lock = std::lock_guard<std::recursive_mutex>;

template <typename Entry, typename... Args>
auto Real(Args... args) {
  return reinterpret_cast<typename Entry::Type>(const_cast<void*>(The().real[Entry::kPosition]))(
      args...);
}

ort::Status* Failed(const std::string& words) { return Real<CreateStatus>(kFail, words.c_str()); }

// Whether an environment variable names something that the model holds.
bool Names(const char* variable, std::string_view model) {
  const char* name = std::getenv(variable);
  return name != nullptr && *name != 0 && model.find(name) != std::string_view::npos;
}

// ---- providers

const std::set<std::string>& Known(const std::string& provider) {
  static const std::set<std::string> kCuda = {"device_id",
                                              "gpu_mem_limit",
                                              "arena_extend_strategy",
                                              "cudnn_conv_algo_search",
                                              "do_copy_in_default_stream",
                                              "cudnn_conv_use_max_workspace",
                                              "cudnn_conv1d_pad_to_nc1d",
                                              "enable_cuda_graph",
                                              "prefer_nhwc",
                                              "use_ep_level_unified_stream",
                                              "use_tf32",
                                              "fuse_conv_bias",
                                              "sdpa_kernel",
                                              "tunable_op_enable",
                                              "tunable_op_tuning_enable"};
  static const std::set<std::string> kTensorRt = {"device_id",
                                                  "trt_max_workspace_size",
                                                  "trt_fp16_enable",
                                                  "trt_bf16_enable",
                                                  "trt_int8_enable",
                                                  "trt_engine_cache_enable",
                                                  "trt_engine_cache_path",
                                                  "trt_engine_cache_prefix",
                                                  "trt_dump_ep_context_model",
                                                  "trt_ep_context_embed_mode",
                                                  "trt_ep_context_file_path",
                                                  "trt_timing_cache_enable",
                                                  "trt_timing_cache_path",
                                                  "trt_force_timing_cache",
                                                  "trt_cuda_graph_enable",
                                                  "trt_builder_optimization_level",
                                                  "trt_auxiliary_streams",
                                                  "trt_layer_norm_fp32_fallback",
                                                  "trt_min_subgraph_size"};
  return provider == "cuda" ? kCuda : kTensorRt;
}

ort::Status* Missing(const std::string& provider) {
  Dl_info here;
  dladdr(reinterpret_cast<void*>(&Missing), &here);
  std::string folder(here.dli_fname);
  folder = folder.substr(0, folder.rfind('/') + 1);
  std::string file = folder + "libonnxruntime_providers_" + provider + ".so";
  if (access(file.c_str(), R_OK) == 0) return nullptr;
  return Failed(
      "provider_bridge_ort.cc:2043 [ONNXRuntimeError] : 1 : FAIL : Failed to load library " + file +
      " with error: cannot open shared object file: No such file or directory");
}

template <typename T, const char* const& kName>
ort::Status* Create(T** made) {
  if (ort::Status* status = Missing(kName)) return status;
  *made = reinterpret_cast<T*>(new Provider{kName, {}});
  return nullptr;
}

template <typename T>
ort::Status* Update(T* of, const char* const* keys, const char* const* values, std::size_t count) {
  auto* provider = reinterpret_cast<Provider*>(of);
  for (std::size_t i = 0; i < count; ++i) {
    if (Known(provider->name).count(keys[i]) == 0) {
      return Failed(
          "provider_options_utils.h:182 [ONNXRuntimeError] : 1 : FAIL : Unknown provider "
          "option: \"" +
          std::string(keys[i]) + "\".");
    }
    provider->options[keys[i]] = values[i];
  }
  return nullptr;
}

template <typename T>
ort::Status* UpdateWithValue(T* of, const char* key, void* value) {
  if (std::strcmp(key, "user_compute_stream") != 0) return Failed(std::string("no option ") + key);
  reinterpret_cast<Provider*>(of)->stream = value;
  return nullptr;
}

template <typename T>
void Release(T* of) {
  delete reinterpret_cast<Provider*>(of);
}

template <typename T>
ort::Status* Append(ort::SessionOptions* to, const T* provider) {
  Lock lock(The().mutex);
  Provider& known = The().options[to];
  bool strict = known.strict;
  known = *reinterpret_cast<const Provider*>(provider);
  known.strict = strict;
  return nullptr;
}

// ---- memory and tensors

ort::Status* CreateMemoryInfo(const char* name, int allocator, int id, int kind,
                              ort::MemoryInfo** made) {
  bool device = std::strcmp(name, "Cuda") == 0;
  auto* status = device ? Real<ort::CreateCpuMemoryInfo>(allocator, kind, made)
                        : Real<ort::CreateMemoryInfo>(name, allocator, id, kind, made);
  Lock lock(The().mutex);
  if (status == nullptr && device) The().device_memory.insert(*made);
  return status;
}

void ReleaseMemoryInfo(ort::MemoryInfo* info) {
  Lock lock(The().mutex);
  The().device_memory.erase(info);
  Real<ort::ReleaseMemoryInfo>(info);
}

ort::Status* CreateTensorWithData(const ort::MemoryInfo* info, void* data, std::size_t size,
                                  const std::int64_t* shape, std::size_t rank, int type,
                                  ort::Value** made) {
  auto* status = Real<ort::CreateTensorWithData>(info, data, size, shape, rank, type, made);
  Lock lock(The().mutex);
  if (status != nullptr || The().device_memory.count(info) == 0) return status;
  The().device_values.insert(*made);
  if (size > 0 && !simulated::IsDevice(data)) simulated::Lose(simulated::kIllegalAddress);
  return nullptr;
}

void ReleaseValue(ort::Value* value) {
  Lock lock(The().mutex);
  The().device_values.erase(value);
  Real<ort::ReleaseValue>(value);
}

// ---- sessions

ort::Status* AddSessionConfigEntry(ort::SessionOptions* options, const char* key,
                                   const char* value) {
  Lock lock(The().mutex);
  if (std::strcmp(key, "session.disable_cpu_ep_fallback") != 0) {
    return Real<ort::AddSessionConfigEntry>(options, key, value);
  }
  The().options[options].strict = value[0] == '1';
  return nullptr;
}

void ReleaseSessionOptions(ort::SessionOptions* options) {
  Lock lock(The().mutex);
  The().options.erase(options);
  Real<ort::ReleaseSessionOptions>(options);
}

void LogOptions(const Provider& provider) {
  std::string line = "session " + provider.name;
  for (const auto& option : provider.options) line += " " + option.first + "=" + option.second;
  simulated::Log(line);
}

// What TensorRT does with a model: takes its engine, or builds one, which it leaves in a file if asked to.
std::string_view WithEngine(const Provider& provider, std::string_view model) {
  if (model.substr(0, sizeof(kMark)) == std::string_view(kMark, sizeof(kMark))) {
    simulated::Log("load engine");
    return model.substr(sizeof(kMark));
  }
  const char* override = std::getenv("NVIDIA_TF32_OVERRIDE");
  const bool exact = override != nullptr && std::strcmp(override, "0") == 0;
  simulated::Log(exact ? "build engine" : "build engine in TF32");
  auto asked = [&](const char* key) {
    auto found = provider.options.find(key);
    return found == provider.options.end() ? std::string() : found->second;
  };
  if (asked("trt_dump_ep_context_model") == "1") {
    std::ofstream file(asked("trt_ep_context_file_path"), std::ios::binary);
    file.write(kMark, sizeof(kMark)).write(model.data(), static_cast<long>(model.size()));
  }
  return model;
}

ort::Status* CreateSessionFromArray(const ort::Env* env, const void* data, std::size_t size,
                                    const ort::SessionOptions* options, ort::Session** made) {
  Lock lock(The().mutex);
  auto found = The().options.find(options);
  Provider provider = found == The().options.end() ? Provider() : found->second;
  std::string_view model(static_cast<const char*>(data), size);
  if (!provider.name.empty()) {
    LogOptions(provider);
    provider.fails = Names("SIMULATED_ONNXRUNTIME_FAILS", model);
    provider.loses = Names("SIMULATED_ONNXRUNTIME_LOSES", model);
    if (!provider.strict) simulated::Log("hidden copy: nodes may run on the CPU");
    if (Names("SIMULATED_ONNXRUNTIME_REFUSES", model)) {
      return Failed(
          "This session contains graph nodes that are assigned to the default CPU EP, but fallback "
          "to CPU EP has been explicitly disabled by the user.");
    }
    if (provider.name == "tensorrt") model = WithEngine(provider, model);
  }
  auto* status = Real<ort::CreateSessionFromArray>(env, static_cast<const void*>(model.data()),
                                                   model.size(), options, made);
  if (status == nullptr && !provider.name.empty()) The().sessions[*made] = provider;
  return status;
}

void ReleaseSession(ort::Session* session) {
  Lock lock(The().mutex);
  The().sessions.erase(session);
  Real<ort::ReleaseSession>(session);
}

ort::Status* AddRunConfigEntry(ort::RunOptions* options, const char* key, const char* value) {
  Lock lock(The().mutex);
  bool own = std::strcmp(key, "disable_synchronize_execution_providers") == 0;
  if (own && value[0] == '1') The().asynchronous.insert(options);
  return Real<ort::AddRunConfigEntry>(options, key, value);
}

void ReleaseRunOptions(ort::RunOptions* options) {
  Lock lock(The().mutex);
  The().asynchronous.erase(options);
  Real<ort::ReleaseRunOptions>(options);
}

ort::Status* Run(ort::Session* session, const ort::RunOptions* how, const char* const* names,
                 const ort::Value* const* values, std::size_t inputs, const char* const* results,
                 std::size_t outputs, ort::Value** made) {
  Lock lock(The().mutex);
  auto found = The().sessions.find(session);
  if (found == The().sessions.end()) {
    return Real<ort::Run>(session, how, names, values, inputs, results, outputs, made);
  }
  const Provider& provider = found->second;
  if (provider.fails) return Failed("CUDNN failure 3: CUDNN_STATUS_NOT_SUPPORTED");
  if (provider.loses) {
    return Failed("CUDA failure " + std::to_string(simulated::Lose(simulated::kIllegalAddress)));
  }
  simulated::NotCaptured("a session");
  if (The().asynchronous.count(how) == 0) simulated::Log("synchronised");
  for (std::size_t i = 0; i < inputs + outputs; ++i) {
    const void* value = i < inputs ? values[i] : made[i - inputs];
    if (The().device_values.count(value) == 0) simulated::Log("hidden copy: a tensor of the host");
  }
  ort::Status* status = nullptr;
  std::string name = "session " + provider.name;
  int error = simulated::Enqueue(provider.stream, name.c_str(), [&] {
    status = Real<ort::Run>(session, how, names, values, inputs, results, outputs, made);
  });
  return error == 0 ? status : Failed("CUDA failure " + std::to_string(error));
}

// ---- the table

template <typename Entry>
void Replace(typename Entry::Type function) {
  The().table[Entry::kPosition] = reinterpret_cast<const void*>(function);
}

const char* const kCuda = "cuda";
const char* const kTensorRt = "tensorrt";

const void* const* GetApi(std::uint32_t version) {
  Lock lock(The().mutex);
  const void* const* real = The().base->get_api(version);
  if (real == nullptr || The().real != nullptr) return real == nullptr ? nullptr : The().table;
  The().real = real;
  std::memcpy(The().table, real, sizeof(The().table));
  Replace<ort::CreateCudaOptions>(&Create<ort::CudaOptions, kCuda>);
  Replace<ort::UpdateCudaOptions>(&Update<ort::CudaOptions>);
  Replace<ort::UpdateCudaOptionsWithValue>(&UpdateWithValue<ort::CudaOptions>);
  Replace<ort::ReleaseCudaOptions>(&Release<ort::CudaOptions>);
  Replace<ort::AppendCuda>(&Append<ort::CudaOptions>);
  Replace<ort::CreateTensorRtOptions>(&Create<ort::TensorRtOptions, kTensorRt>);
  Replace<ort::UpdateTensorRtOptions>(&Update<ort::TensorRtOptions>);
  Replace<ort::UpdateTensorRtOptionsWithValue>(&UpdateWithValue<ort::TensorRtOptions>);
  Replace<ort::ReleaseTensorRtOptions>(&Release<ort::TensorRtOptions>);
  Replace<ort::AppendTensorRt>(&Append<ort::TensorRtOptions>);
  Replace<ort::CreateMemoryInfo>(&CreateMemoryInfo);
  Replace<ort::ReleaseMemoryInfo>(&ReleaseMemoryInfo);
  Replace<ort::CreateTensorWithData>(&CreateTensorWithData);
  Replace<ort::ReleaseValue>(&ReleaseValue);
  Replace<ort::AddSessionConfigEntry>(&AddSessionConfigEntry);
  Replace<ort::ReleaseSessionOptions>(&ReleaseSessionOptions);
  Replace<ort::CreateSessionFromArray>(&CreateSessionFromArray);
  Replace<ort::ReleaseSession>(&ReleaseSession);
  Replace<ort::AddRunConfigEntry>(&AddRunConfigEntry);
  Replace<ort::ReleaseRunOptions>(&ReleaseRunOptions);
  Replace<ort::Run>(&Run);
  return The().table;
}

const char* GetVersionString() { return The().base->get_version_string(); }

}  // namespace

extern "C" const ort::ApiBase* OrtGetApiBase() {
  Lock lock(The().mutex);
  if (The().base == nullptr) {
    void* real = dlopen(std::getenv("SIMULATED_ONNXRUNTIME"), RTLD_NOW | RTLD_LOCAL);
    if (real == nullptr) std::abort();
    The().base = reinterpret_cast<const ort::ApiBase* (*)()>(dlsym(real, "OrtGetApiBase"))();
  }
  static const ort::ApiBase kBase = {GetApi, GetVersionString};
  return &kBase;
}
