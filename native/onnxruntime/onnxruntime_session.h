// ONNX Runtime for kernels: the library with its environment, sessions, and tensors of the caller.
//
// All sessions share one environment. Its thread pool has the process's thread count and does not
// spin: spinning pools of several sessions compete for the cores (up to 8 times slower). A session with another thread
// count gets a separate pool. The memory arena is common too: the next region reuses the scratch memory. Tensors are
// wrapped, never copied; a wrapper is reused while the executable passes the same memory, as in nearly every call.
#ifndef COLLAGE_ONNXRUNTIME_SESSION_H_
#define COLLAGE_ONNXRUNTIME_SESSION_H_

#include <tvm/ffi/error.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/kernel.h"
#include "onnxruntime/onnxruntime_api.h"

namespace collage {

class OnnxRuntime {
 public:
  // Opened by the first call; the environment gets its thread count.
  static const OnnxRuntime& Get(int threads);

  template <typename Entry>
  typename Entry::Type Function() const {
    return reinterpret_cast<typename Entry::Type>(const_cast<void*>(table_[Entry::kPosition]));
  }

  template <typename Entry, typename... Args>
  void Call(Args... args) const {
    if (ort::Status* status = Function<Entry>()(args...)) Throw(status);
  }

  // The result of `Create`, released by `Release`.
  template <typename Create, typename Release, typename T, typename... Args>
  std::unique_ptr<T, typename Release::Type> Make(Args... args) const {
    T* object = nullptr;
    Call<Create>(args..., &object);
    return {object, Function<Release>()};
  }

  // Throws a ffi RuntimeError with the status's message, and releases it.
  [[noreturn]] void Throw(ort::Status* status) const;

  // Throws a ffi RuntimeError unless the library has that version of the table.
  void NeedVersion(std::uint32_t version) const;

  ort::Env* env() const { return env_; }
  const ort::MemoryInfo* memory() const { return memory_; }
  ort::Allocator* allocator() const { return allocator_; }
  int threads() const { return threads_; }

 private:
  explicit OnnxRuntime(int threads);

  const int threads_;
  const ort::ApiBase* base_ = nullptr;
  const void* const* table_ = nullptr;
  ort::Env* env_ = nullptr;
  ort::MemoryInfo* memory_ = nullptr;
  ort::Allocator* allocator_ = nullptr;
};

// The DLPack type of an ONNXTensorElementDataType.
DLDataType TensorType(int element);

// ONNXTensorElementDataType of a DLPack type.
int ElementType(DLDataType type);

// An OrtValue around memory of the caller, recreated only for another address, dtype or shape.
class WrappedTensor {
 public:
  // `memory`: where the tensors are.
  WrappedTensor(const OnnxRuntime& runtime, const ort::MemoryInfo* memory)
      : runtime_(&runtime), memory_(memory) {}
  WrappedTensor(WrappedTensor&& other) noexcept
      : runtime_(other.runtime_),
        memory_(other.memory_),
        value_(std::exchange(other.value_, nullptr)) {}
  ~WrappedTensor() { Release(); }

  ort::Value* Wrap(const DLTensor* tensor);

 private:
  void Release();

  const OnnxRuntime* runtime_;
  const ort::MemoryInfo* memory_;
  ort::Value* value_ = nullptr;
  void* data_ = nullptr;
  DLDataType dtype_{};
  std::vector<std::int64_t> shape_;
};

// Options of a session. Header entries of the blob:
//   graph_optimization_level  "all" (default), "extended", "basic" or "disable"
//   config                    [key, value, key, value, ...]: session configuration entries
//   alone                     1: no other session runs in parallel, e.g. in a process with ONNX Runtime as its
//                             only toolchain: a separate pool and arena, and waiting threads spin
class SessionOptions {
 public:
  SessionOptions(const OnnxRuntime& runtime, const Blob& blob, int threads);

  void Set(const char* key, const char* value);
  ort::SessionOptions* get() const { return options_.get(); }

 private:
  void SetThreads(int threads, bool alone);

  const OnnxRuntime& runtime_;
  std::unique_ptr<ort::SessionOptions, ort::ReleaseSessionOptions::Type> options_;
};

class SharedInitializers;

// The model in tensor 0 of a blob. Header entries, both or none:
//   input_names, output_names  in the order of the kernel's arguments; otherwise that of the model
class OnnxSession {
 public:
  // `memory`: where its inputs and outputs are.
  OnnxSession(const OnnxRuntime& runtime, const Blob& blob, const SessionOptions& options,
              const ort::MemoryInfo* memory);
  ~OnnxSession();

  std::size_t inputs() const { return inputs_; }
  std::size_t size() const { return names_.size(); }

  // Wraps the first `count` inputs and outputs, which must be `expected` ones.
  void Bind(DLTensor* const* args, int count, std::size_t expected);

  // Runs on `values`; null outputs are allocated.
  void Run(const ort::RunOptions* how = nullptr);

  // Inputs, then outputs.
  std::vector<ort::Value*>& values() { return values_; }

 private:
  void Open(const Blob& blob, const SessionOptions& options);

  template <typename Count, typename Name>
  std::vector<std::string> ReadNames() const;

  const OnnxRuntime& runtime_;
  const ort::Run::Type run_;
  std::unique_ptr<SharedInitializers> initializers_;  // lives longer than session_
  std::unique_ptr<ort::Session, ort::ReleaseSession::Type> session_;
  std::size_t inputs_ = 0;
  std::vector<std::string> names_;
  std::vector<const char*> pointers_;   // to names_
  std::vector<WrappedTensor> tensors_;  // by position in names_
  std::vector<ort::Value*> values_;     // of the call in progress
};

}  // namespace collage

#endif  // COLLAGE_ONNXRUNTIME_SESSION_H_
