// Regions that ONNX Runtime runs. Blob: tensor 0 is an ONNX model (bytes); header entries:
//   graph_optimization_level  "all" (default), "extended", "basic" or "disable"
//   config                    [key, value, key, value, ...]: session configuration entries
//   allocates                 1: called with inputs only; returns its outputs, whose shapes may depend
//                             on data
//
// All sessions share one environment. Its thread pool has the process's thread count and does not
// spin: pools of several sessions that spin fight for the cores (up to 8 times slower). A session
// with another thread count gets a pool of its own. Its arena is shared too: what one region used as
// scratch, the next uses again. Tensors are wrapped, never copied; a wrapper is kept as long as the
// executable passes the same memory, which it does on nearly every call.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernel.h"
#include "library.h"
#include "onnxruntime_api.h"

namespace collage {
namespace {

class OnnxRuntime {
 public:
  static OnnxRuntime& Get(int threads) {
    static OnnxRuntime* runtime = nullptr;
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    if (runtime == nullptr) runtime = new OnnxRuntime(threads);
    return *runtime;
  }

  template <typename Entry>
  typename Entry::Type Function() const {
    return reinterpret_cast<typename Entry::Type>(const_cast<void*>(table_[Entry::kPosition]));
  }

  template <typename Entry, typename... Args>
  void Call(Args... args) const {
    if (ort::Status* status = Function<Entry>()(args...)) Throw(status);
  }

  [[noreturn]] void Throw(ort::Status* status) const {
    std::string message = Function<ort::GetErrorMessage>()(status);
    Function<ort::ReleaseStatus>()(status);
    TVM_FFI_THROW(RuntimeError) << "onnxruntime " << version_ << ": " << message;
    TVM_FFI_UNREACHABLE();
  }

  ort::Env* env() const { return env_; }
  ort::MemoryInfo* memory() const { return memory_; }
  ort::Allocator* allocator() const { return allocator_; }
  int threads() const { return threads_; }

 private:
  explicit OnnxRuntime(int threads) : threads_(threads) {
    void* library = OpenLibrary("onnxruntime");
    using GetBase = const ort::ApiBase* (*)();
    const ort::ApiBase* base = FindSymbolAs<GetBase>(library, "onnxruntime", "OrtGetApiBase")();
    version_ = base->get_version_string();
    table_ = base->get_api(ort::kApiVersion);
    if (table_ == nullptr) {
      TVM_FFI_THROW(RuntimeError) << "onnxruntime " << version_
                                  << " is too old: 1.5 or later is needed";
    }
    ort::ThreadingOptions* options = nullptr;
    Call<ort::CreateThreadingOptions>(&options);
    std::unique_ptr<ort::ThreadingOptions, ort::ReleaseThreadingOptions::Type> guard(
        options, Function<ort::ReleaseThreadingOptions>());
    Call<ort::SetGlobalIntraOpNumThreads>(options, threads);
    Call<ort::SetGlobalInterOpNumThreads>(options, 1);
    Call<ort::SetGlobalSpinControl>(options, 0);
    Call<ort::CreateEnvWithGlobalThreadPools>(ort::kLoggingFatal, "collage", options, &env_);
    Call<ort::CreateCpuMemoryInfo>(ort::kArenaAllocator, ort::kMemTypeDefault, &memory_);
    Call<ort::GetDefaultAllocator>(&allocator_);
    Call<ort::CreateAndRegisterAllocator>(env_, memory_, nullptr);
  }

  const int threads_;
  std::string version_;
  const void* const* table_ = nullptr;
  ort::Env* env_ = nullptr;
  ort::MemoryInfo* memory_ = nullptr;
  ort::Allocator* allocator_ = nullptr;
};

// ONNXTensorElementDataType of a tensor.
int ElementType(DLDataType type) {
  switch (type.code) {
    case kDLFloat:
      if (type.bits == 32) return 1;
      if (type.bits == 16) return 10;
      if (type.bits == 64) return 11;
      break;
    case kDLInt:
      if (type.bits == 8) return 3;
      if (type.bits == 16) return 5;
      if (type.bits == 32) return 6;
      if (type.bits == 64) return 7;
      break;
    case kDLUInt:
      if (type.bits == 1) return 9;
      if (type.bits == 8) return 2;
      if (type.bits == 16) return 4;
      if (type.bits == 32) return 12;
      if (type.bits == 64) return 13;
      break;
    case kDLBool:
      return 9;
    case kDLBfloat:
      return 16;
    default:
      break;
  }
  TVM_FFI_THROW(TypeError) << "onnxruntime has no element type for DLPack code "
                           << static_cast<int>(type.code) << " with " << static_cast<int>(type.bits)
                           << " bits";
  TVM_FFI_UNREACHABLE();
}

// The DLPack type of an ONNXTensorElementDataType.
DLDataType TensorType(int element) {
  constexpr DLDataType kTypes[] = {
      {kDLFloat, 32, 1}, {kDLUInt, 8, 1},   {kDLInt, 8, 1},    {kDLUInt, 16, 1}, {kDLInt, 16, 1},
      {kDLInt, 32, 1},   {kDLInt, 64, 1},   {kDLBool, 8, 1},   {kDLFloat, 16, 1}, {kDLFloat, 64, 1},
      {kDLUInt, 32, 1},  {kDLUInt, 64, 1},  {kDLBfloat, 16, 1}};
  for (DLDataType type : kTypes) {
    if (ElementType(type) == element) return type;
  }
  TVM_FFI_THROW(TypeError) << "onnxruntime returned tensors of element type " << element
                           << ", which no executable takes";
  TVM_FFI_UNREACHABLE();
}

// The memory of a tensor that ONNX Runtime made; it goes back to its arena with the tensor.
class ReturnedMemory {
 public:
  ReturnedMemory(const OnnxRuntime& runtime, ort::Value* value)
      : runtime_(&runtime), value_(value) {}

  void AllocData(DLTensor* tensor) {
    runtime_->Call<ort::GetTensorMutableData>(value_, &tensor->data);
  }
  void FreeData(DLTensor*) { runtime_->Function<ort::ReleaseValue>()(value_); }

 private:
  const OnnxRuntime* runtime_;
  ort::Value* value_;
};

// An OrtValue around memory of the caller, made anew only when the memory or shape changes.
class WrappedTensor {
 public:
  explicit WrappedTensor(const OnnxRuntime& runtime) : runtime_(&runtime) {}
  WrappedTensor(WrappedTensor&& other) noexcept
      : runtime_(other.runtime_), value_(std::exchange(other.value_, nullptr)) {}
  ~WrappedTensor() { Release(); }

  ort::Value* Wrap(const DLTensor* tensor) {
    void* data = DataOf(tensor);
    std::size_t rank = static_cast<std::size_t>(tensor->ndim);
    if (value_ != nullptr && data == data_ && rank == shape_.size() &&
        std::memcmp(shape_.data(), tensor->shape, rank * sizeof(std::int64_t)) == 0) {
      return value_;
    }
    Release();
    data_ = data;
    shape_.assign(tensor->shape, tensor->shape + rank);
    std::size_t size = (tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
    for (std::int64_t extent : shape_) size *= static_cast<std::size_t>(extent);
    runtime_->Call<ort::CreateTensorWithData>(runtime_->memory(), data, size, shape_.data(), rank,
                                              ElementType(tensor->dtype), &value_);
    return value_;
  }

 private:
  void Release() {
    if (value_ != nullptr) runtime_->Function<ort::ReleaseValue>()(value_);
    value_ = nullptr;
  }

  const OnnxRuntime* runtime_;
  ort::Value* value_ = nullptr;
  void* data_ = nullptr;
  std::vector<std::int64_t> shape_;
};

int OptimizationLevel(const std::string& name) {
  if (name == "all") return ort::kOptimizeAll;
  if (name == "extended") return ort::kOptimizeExtended;
  if (name == "basic") return ort::kOptimizeBasic;
  if (name == "disable") return ort::kOptimizeNone;
  TVM_FFI_THROW(ValueError) << "graph_optimization_level is all, extended, basic or disable, not '"
                            << name << "'";
  TVM_FFI_UNREACHABLE();
}

class OnnxRuntimeKernel : public Kernel {
 public:
  explicit OnnxRuntimeKernel(const KernelSpec& spec)
      : runtime_(OnnxRuntime::Get(spec.threads)),
        run_(runtime_.Function<ort::Run>()),
        session_(nullptr, runtime_.Function<ort::ReleaseSession>()) {
    allocates_ = spec.blob->GetInt("allocates", 0) != 0;
    if (spec.blob->tensors().empty()) TVM_FFI_THROW(ValueError) << "the blob holds no ONNX model";
    CreateSession(spec);
    ReadNames<ort::SessionGetInputCount, ort::SessionGetInputName>(&input_names_);
    ReadNames<ort::SessionGetOutputCount, ort::SessionGetOutputName>(&output_names_);
    for (const std::string& name : input_names_) names_.push_back(name.c_str());
    for (const std::string& name : output_names_) names_.push_back(name.c_str());
    for (std::size_t i = 0; i < names_.size(); ++i) tensors_.emplace_back(runtime_);
    values_.resize(names_.size());
  }

  void Run(DLTensor* const* args, int count) final {
    Wrap(args, count, names_.size());
    Call();
  }

  bool Allocates() const final { return allocates_; }

  std::vector<tvm::ffi::Tensor> RunAllocating(DLTensor* const* inputs, int count) final {
    Wrap(inputs, count, input_names_.size());
    std::fill(values_.begin() + count, values_.end(), nullptr);
    Call();
    std::vector<tvm::ffi::Tensor> results;
    try {
      for (std::size_t i = input_names_.size(); i < values_.size(); ++i) {
        results.push_back(Returned(values_[i]));
        values_[i] = nullptr;  // the tensor owns it
      }
    } catch (...) {
      for (std::size_t i = input_names_.size(); i < values_.size(); ++i) {
        if (values_[i] != nullptr) runtime_.Function<ort::ReleaseValue>()(values_[i]);
      }
      throw;
    }
    return results;
  }

 private:
  void Wrap(DLTensor* const* args, int count, std::size_t expected) {
    if (static_cast<std::size_t>(count) != expected) {
      TVM_FFI_THROW(ValueError) << "onnxruntime kernel: expected " << expected << " tensors, got "
                                << count;
    }
    for (int i = 0; i < count; ++i) values_[i] = tensors_[i].Wrap(args[i]);
  }

  void Call() {
    std::size_t inputs = input_names_.size();
    ort::Status* status =
        run_(session_.get(), nullptr, names_.data(), values_.data(), inputs, names_.data() + inputs,
             output_names_.size(), values_.data() + inputs);
    if (status != nullptr) runtime_.Throw(status);
  }

  tvm::ffi::Tensor Returned(ort::Value* value) const {
    int is_tensor = 0;
    runtime_.Call<ort::IsTensor>(value, &is_tensor);
    if (!is_tensor) TVM_FFI_THROW(TypeError) << "onnxruntime returned a value that is no tensor";
    ort::TensorInfo* info = nullptr;
    runtime_.Call<ort::GetTensorTypeAndShape>(value, &info);
    std::unique_ptr<ort::TensorInfo, ort::ReleaseTensorInfo::Type> guard(
        info, runtime_.Function<ort::ReleaseTensorInfo>());
    std::size_t rank = 0;
    int element = 0;
    runtime_.Call<ort::GetDimensionsCount>(info, &rank);
    runtime_.Call<ort::GetTensorElementType>(info, &element);
    std::vector<std::int64_t> shape(rank);
    runtime_.Call<ort::GetDimensions>(info, shape.data(), rank);
    return tvm::ffi::Tensor::FromNDAlloc(ReturnedMemory(runtime_, value),
                                         tvm::ffi::ShapeView(shape.data(), rank),
                                         TensorType(element), DLDevice{kDLCPU, 0});
  }

  void CreateSession(const KernelSpec& spec) {
    ort::SessionOptions* options = nullptr;
    runtime_.Call<ort::CreateSessionOptions>(&options);
    std::unique_ptr<ort::SessionOptions, ort::ReleaseSessionOptions::Type> guard(
        options, runtime_.Function<ort::ReleaseSessionOptions>());
    runtime_.Call<ort::SetGraphOptimizationLevel>(
        options, OptimizationLevel(spec.blob->GetString("graph_optimization_level", "all")));
    runtime_.Call<ort::AddSessionConfigEntry>(options, "session.use_env_allocators", "1");
    SetThreads(options, spec.threads);
    std::vector<std::string> config = spec.blob->GetStrings("config");
    for (std::size_t i = 0; i + 1 < config.size(); i += 2) {
      runtime_.Call<ort::AddSessionConfigEntry>(options, config[i].c_str(), config[i + 1].c_str());
    }
    const TensorView& model = spec.blob->tensors()[0];
    ort::Session* session = nullptr;
    runtime_.Call<ort::CreateSessionFromArray>(runtime_.env(), model.data, model.nbytes, options,
                                               &session);
    session_.reset(session);
  }

  void SetThreads(ort::SessionOptions* options, int threads) const {
    if (threads == runtime_.threads()) {
      runtime_.Call<ort::DisablePerSessionThreads>(options);
      return;
    }
    runtime_.Call<ort::SetIntraOpNumThreads>(options, threads);
    runtime_.Call<ort::SetInterOpNumThreads>(options, 1);
    runtime_.Call<ort::AddSessionConfigEntry>(options, "session.intra_op.allow_spinning", "0");
  }

  template <typename Count, typename Name>
  void ReadNames(std::vector<std::string>* names) const {
    std::size_t count = 0;
    runtime_.Call<Count>(session_.get(), &count);
    for (std::size_t i = 0; i < count; ++i) {
      char* name = nullptr;
      runtime_.Call<Name>(session_.get(), i, runtime_.allocator(), &name);
      names->emplace_back(name);
      runtime_.Call<ort::AllocatorFree>(runtime_.allocator(), static_cast<void*>(name));
    }
  }

  const OnnxRuntime& runtime_;
  const ort::Run::Type run_;
  std::unique_ptr<ort::Session, ort::ReleaseSession::Type> session_;
  bool allocates_ = false;
  std::vector<std::string> input_names_;
  std::vector<std::string> output_names_;
  std::vector<const char*> names_;      // inputs, then outputs
  std::vector<WrappedTensor> tensors_;  // by position in names_
  std::vector<ort::Value*> values_;     // of the call in progress
};

const RegisterKernel kRegistered("onnxruntime", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new OnnxRuntimeKernel(spec));
});

}  // namespace
}  // namespace collage
