#include "onnxruntime/onnxruntime_session.h"

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/library.h"
#include "onnxruntime/shared_initializers.h"

namespace collage {

int ElementType(DLDataType type) {
  switch (type.lanes == 1 ? static_cast<int>(type.code) : -1) {
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

namespace {

int OptimizationLevel(const std::string& name) {
  if (name == "all") return ort::kOptimizeAll;
  if (name == "extended") return ort::kOptimizeExtended;
  if (name == "basic") return ort::kOptimizeBasic;
  if (name == "disable") return ort::kOptimizeNone;
  TVM_FFI_THROW(ValueError) << "graph_optimization_level is all, extended, basic or disable, not '"
                            << name << "'";
  TVM_FFI_UNREACHABLE();
}

// ONNX Runtime sends telemetry unless this is set before its library starts; collage/backends/telemetry.py does the
// same in Python. The environment is written only if necessary, since the process may have other threads.
void TurnTelemetryOff() {
  constexpr char kVariable[] = "ORT_DISABLE_TELEMETRY";
  const char* value = std::getenv(kVariable);
  if (value == nullptr || std::strcmp(value, "1") != 0) setenv(kVariable, "1", 1);
}

}  // namespace

const OnnxRuntime& OnnxRuntime::Get(int threads) {
  static OnnxRuntime* runtime = nullptr;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (runtime == nullptr) runtime = new OnnxRuntime(threads);
  return *runtime;
}

OnnxRuntime::OnnxRuntime(int threads) : threads_(threads) {
  TurnTelemetryOff();
  void* library = OpenLibrary("onnxruntime");
  using GetBase = const ort::ApiBase* (*)();
  base_ = FindSymbolAs<GetBase>(library, "onnxruntime", "OrtGetApiBase")();
  NeedVersion(ort::kApiVersion);
  table_ = base_->get_api(ort::kApiVersion);
  auto options =
      Make<ort::CreateThreadingOptions, ort::ReleaseThreadingOptions, ort::ThreadingOptions>();
  Call<ort::SetGlobalIntraOpNumThreads>(options.get(), threads);
  Call<ort::SetGlobalInterOpNumThreads>(options.get(), 1);
  Call<ort::SetGlobalSpinControl>(options.get(), 0);
  Call<ort::CreateEnvWithGlobalThreadPools>(ort::kLoggingFatal, "collage", options.get(), &env_);
  Call<ort::CreateCpuMemoryInfo>(ort::kArenaAllocator, ort::kMemTypeDefault, &memory_);
  Call<ort::GetDefaultAllocator>(&allocator_);
  Call<ort::CreateAndRegisterAllocator>(env_, memory_, nullptr);
}

void OnnxRuntime::Throw(ort::Status* status) const {
  std::string message = Function<ort::GetErrorMessage>()(status);
  Function<ort::ReleaseStatus>()(status);
  TVM_FFI_THROW(RuntimeError) << "onnxruntime " << base_->get_version_string() << ": " << message;
  TVM_FFI_UNREACHABLE();
}

void OnnxRuntime::NeedVersion(std::uint32_t version) const {
  if (base_->get_api(version) != nullptr) return;
  TVM_FFI_THROW(RuntimeError) << "onnxruntime " << base_->get_version_string() << " is too old: 1."
                              << version << " or later is needed";
}

DLDataType TensorType(int element) {
  constexpr DLDataType kTypes[] = {
      {kDLFloat, 32, 1}, {kDLUInt, 8, 1},  {kDLInt, 8, 1},    {kDLUInt, 16, 1},  {kDLInt, 16, 1},
      {kDLInt, 32, 1},   {kDLInt, 64, 1},  {kDLBool, 8, 1},   {kDLFloat, 16, 1}, {kDLFloat, 64, 1},
      {kDLUInt, 32, 1},  {kDLUInt, 64, 1}, {kDLBfloat, 16, 1}};
  for (DLDataType type : kTypes) {
    if (ElementType(type) == element) return type;
  }
  TVM_FFI_THROW(TypeError) << "onnxruntime returned tensors of element type " << element
                           << ", which no executable takes";
  TVM_FFI_UNREACHABLE();
}

ort::Value* WrappedTensor::Wrap(const DLTensor* tensor) {
  void* data = DataOf(tensor);
  std::size_t rank = static_cast<std::size_t>(tensor->ndim);
  if (value_ != nullptr && data == data_ && rank == shape_.size() &&
      IsSame(tensor->dtype, dtype_) &&
      std::memcmp(shape_.data(), tensor->shape, rank * sizeof(std::int64_t)) == 0) {
    return value_;
  }
  Release();
  data_ = data;
  dtype_ = tensor->dtype;
  shape_.assign(tensor->shape, tensor->shape + rank);
  std::size_t size = (tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  for (std::int64_t extent : shape_) size *= static_cast<std::size_t>(extent);
  runtime_->Call<ort::CreateTensorWithData>(memory_, data, size, shape_.data(), rank,
                                            ElementType(tensor->dtype), &value_);
  return value_;
}

void WrappedTensor::Release() {
  if (value_ != nullptr) runtime_->Function<ort::ReleaseValue>()(value_);
  value_ = nullptr;
}

SessionOptions::SessionOptions(const OnnxRuntime& runtime, const Blob& blob, int threads)
    : runtime_(runtime),
      options_(
          runtime
              .Make<ort::CreateSessionOptions, ort::ReleaseSessionOptions, ort::SessionOptions>()) {
  runtime_.Call<ort::SetGraphOptimizationLevel>(
      get(), OptimizationLevel(blob.GetString("graph_optimization_level", "all")));
  bool alone = blob.GetInt("alone", 0) != 0;
  if (!alone) Set("session.use_env_allocators", "1");
  SetThreads(threads, alone);
  std::vector<std::pair<std::string, std::string>> config = blob.GetPairs("config");
  RefusePaths(config, "config");
  for (const auto& [key, value] : config) Set(key.c_str(), value.c_str());
}

void SessionOptions::Set(const char* key, const char* value) {
  runtime_.Call<ort::AddSessionConfigEntry>(get(), key, value);
}

void SessionOptions::SetThreads(int threads, bool alone) {
  if (threads == runtime_.threads() && !alone) {
    runtime_.Call<ort::DisablePerSessionThreads>(get());
    return;
  }
  runtime_.Call<ort::SetIntraOpNumThreads>(get(), threads);
  runtime_.Call<ort::SetInterOpNumThreads>(get(), 1);
  if (!alone) Set("session.intra_op.allow_spinning", "0");
}

OnnxSession::OnnxSession(const OnnxRuntime& runtime, const Blob& blob,
                         const SessionOptions& options, const ort::MemoryInfo* memory)
    : runtime_(runtime),
      run_(runtime.Function<ort::Run>()),
      session_(nullptr, runtime.Function<ort::ReleaseSession>()) {
  if (blob.tensors().empty()) TVM_FFI_THROW(ValueError) << "the blob holds no ONNX model";
  Open(blob, options);
  names_ = blob.GetStrings("input_names");
  std::vector<std::string> outputs = blob.GetStrings("output_names");
  if (outputs.empty() && !names_.empty()) {
    TVM_FFI_THROW(ValueError) << "the blob's header has 'input_names' and no 'output_names'";
  }
  if (outputs.empty()) {
    names_ = ReadNames<ort::SessionGetInputCount, ort::SessionGetInputName>();
    outputs = ReadNames<ort::SessionGetOutputCount, ort::SessionGetOutputName>();
  }
  inputs_ = names_.size();
  names_.insert(names_.end(), outputs.begin(), outputs.end());
  for (const std::string& name : names_) {
    pointers_.push_back(name.c_str());
    tensors_.emplace_back(runtime_, memory);
  }
  values_.resize(names_.size());
}

OnnxSession::~OnnxSession() = default;

void OnnxSession::Open(const Blob& blob, const SessionOptions& options) {
  const TensorView& model = blob.tensors()[0];
  initializers_ = std::make_unique<SharedInitializers>(runtime_, blob, options);
  if (initializers_->empty()) {
    session_ = runtime_.Make<ort::CreateSessionFromArray, ort::ReleaseSession, ort::Session>(
        runtime_.env(), model.data, model.nbytes, options.get());
  } else {
    session_ =
        runtime_
            .Make<ort::CreateSessionFromArrayWithPackedWeights, ort::ReleaseSession, ort::Session>(
                runtime_.env(), model.data, model.nbytes, options.get(), initializers_->packed());
  }
}

void OnnxSession::Bind(DLTensor* const* args, int count, std::size_t expected) {
  if (static_cast<std::size_t>(count) != expected) {
    TVM_FFI_THROW(ValueError) << "onnxruntime kernel: expected " << expected << " tensors, got "
                              << count;
  }
  for (int i = 0; i < count; ++i) values_[i] = tensors_[i].Wrap(args[i]);
}

void OnnxSession::Run(const ort::RunOptions* how) {
  ort::Status* status =
      run_(session_.get(), how, pointers_.data(), values_.data(), inputs_,
           pointers_.data() + inputs_, names_.size() - inputs_, values_.data() + inputs_);
  if (status != nullptr) runtime_.Throw(status);
}

template <typename Count, typename Name>
std::vector<std::string> OnnxSession::ReadNames() const {
  std::size_t count = 0;
  runtime_.Call<Count>(session_.get(), &count);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    runtime_.Call<Name>(session_.get(), i, runtime_.allocator(), &name);
    names.emplace_back(name);
    runtime_.Call<ort::AllocatorFree>(runtime_.allocator(), static_cast<void*>(name));
  }
  return names;
}

}  // namespace collage
