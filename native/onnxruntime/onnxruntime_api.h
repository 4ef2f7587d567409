// The part of ONNX Runtime's C API that Collage uses; its wheel has no headers.
//
// `OrtApi` is a table of function pointers that only ever grows: "NEVER remove or rearrange the
// members" (onnxruntime_c_api.cc, which also asserts the positions below). Each entry is declared
// here with its position; versions 1 to 5 of the table are used, which every ONNX Runtime since 1.5
// has, and for execution providers up to 16. Tested with 1.31.
#ifndef COLLAGE_ONNXRUNTIME_API_H_
#define COLLAGE_ONNXRUNTIME_API_H_

#include <cstddef>
#include <cstdint>

namespace collage::ort {

struct Env;
struct Status;
struct Session;
struct SessionOptions;
struct ThreadingOptions;
struct MemoryInfo;
struct Value;
struct Allocator;
struct RunOptions;
struct TensorInfo;
struct TypeInfo;
struct ArenaConfig;
struct CudaOptions;
struct TensorRtOptions;
struct PackedWeights;  // OrtPrepackedWeightsContainer

constexpr std::uint32_t kApiVersion = 5, kProviderApiVersion = 16;
constexpr std::uint32_t kOptionalApiVersion = 10;
constexpr int kLoggingFatal = 4;
constexpr int kDeviceAllocator = 0, kArenaAllocator = 1;
constexpr int kMemTypeDefault = 0;

// GraphOptimizationLevel
constexpr int kOptimizeNone = 0;
constexpr int kOptimizeBasic = 1;
constexpr int kOptimizeExtended = 2;
constexpr int kOptimizeAll = 99;

// ONNXType
constexpr int kTensorType = 1;
constexpr int kSequenceType = 2;
constexpr int kMapType = 3;
constexpr int kOptionalType = 6;

// ONNXTensorElementDataType of text
constexpr int kStringElement = 8;

struct ApiBase {
  const void* const* (*get_api)(std::uint32_t version);
  const char* (*get_version_string)();
};

// An entry of the table: its position and its type.
template <std::size_t Position, typename Function>
struct Entry {
  static constexpr std::size_t kPosition = Position;
  using Type = Function;
};

using GetErrorMessage = Entry<2, const char* (*)(const Status*)>;
using CreateSessionFromArray =
    Entry<8, Status* (*)(const Env*, const void*, std::size_t, const SessionOptions*, Session**)>;
using Run =
    Entry<9, Status* (*)(Session*, const RunOptions*, const char* const*, const Value* const*,
                         std::size_t, const char* const*, std::size_t, Value**)>;
using CreateSessionOptions = Entry<10, Status* (*)(SessionOptions**)>;
using SetGraphOptimizationLevel = Entry<23, Status* (*)(SessionOptions*, int)>;
using SetIntraOpNumThreads = Entry<24, Status* (*)(SessionOptions*, int)>;
using SetInterOpNumThreads = Entry<25, Status* (*)(SessionOptions*, int)>;
using SessionGetInputCount = Entry<30, Status* (*)(const Session*, std::size_t*)>;
using SessionGetOutputCount = Entry<31, Status* (*)(const Session*, std::size_t*)>;
using SessionGetInputTypeInfo = Entry<33, Status* (*)(const Session*, std::size_t, TypeInfo**)>;
using SessionGetInputName = Entry<36, Status* (*)(const Session*, std::size_t, Allocator*, char**)>;
using SessionGetOutputName =
    Entry<37, Status* (*)(const Session*, std::size_t, Allocator*, char**)>;
using CreateRunOptions = Entry<39, Status* (*)(RunOptions**)>;
using CreateTensor =
    Entry<48, Status* (*)(Allocator*, const std::int64_t*, std::size_t, int, Value**)>;
using CreateTensorWithData = Entry<49, Status* (*)(const MemoryInfo*, void*, std::size_t,
                                                   const std::int64_t*, std::size_t, int, Value**)>;
using IsTensor = Entry<50, Status* (*)(const Value*, int*)>;
using GetTensorMutableData = Entry<51, Status* (*)(Value*, void**)>;
using FillStringTensor = Entry<52, Status* (*)(Value*, const char* const*, std::size_t)>;
using GetStringTensorDataLength = Entry<53, Status* (*)(const Value*, std::size_t*)>;
using GetStringTensorContent =
    Entry<54, Status* (*)(const Value*, void*, std::size_t, std::size_t*, std::size_t)>;
using CastTypeInfoToTensorInfo = Entry<55, Status* (*)(const TypeInfo*, const TensorInfo**)>;
using GetOnnxTypeFromTypeInfo = Entry<56, Status* (*)(const TypeInfo*, int*)>;
using GetTensorElementType = Entry<60, Status* (*)(const TensorInfo*, int*)>;
using GetDimensionsCount = Entry<61, Status* (*)(const TensorInfo*, std::size_t*)>;
using GetDimensions = Entry<62, Status* (*)(const TensorInfo*, std::int64_t*, std::size_t)>;
using GetTensorTypeAndShape = Entry<65, Status* (*)(const Value*, TensorInfo**)>;
using GetValueType = Entry<67, Status* (*)(const Value*, int*)>;
using CreateMemoryInfo =
    Entry<68, Status* (*)(const char* name, int allocator, int id, int kind, MemoryInfo**)>;
using CreateCpuMemoryInfo = Entry<69, Status* (*)(int, int, MemoryInfo**)>;
using AllocatorFree = Entry<76, Status* (*)(Allocator*, void*)>;
using GetDefaultAllocator = Entry<78, Status* (*)(Allocator**)>;
using GetValue = Entry<80, Status* (*)(const Value*, int, Allocator*, Value**)>;
using GetValueCount = Entry<81, Status* (*)(const Value*, std::size_t*)>;
using CreateValue = Entry<82, Status* (*)(const Value* const*, std::size_t, int, Value**)>;
using ReleaseStatus = Entry<93, void (*)(Status*)>;
using ReleaseMemoryInfo = Entry<94, void (*)(MemoryInfo*)>;
using ReleaseSession = Entry<95, void (*)(Session*)>;
using ReleaseValue = Entry<96, void (*)(Value*)>;
using ReleaseRunOptions = Entry<97, void (*)(RunOptions*)>;
using ReleaseTypeInfo = Entry<98, void (*)(TypeInfo*)>;
using ReleaseTensorInfo = Entry<99, void (*)(TensorInfo*)>;
using ReleaseSessionOptions = Entry<100, void (*)(SessionOptions*)>;
using CreateEnvWithGlobalThreadPools =
    Entry<119, Status* (*)(int, const char*, const ThreadingOptions*, Env**)>;
using DisablePerSessionThreads = Entry<120, Status* (*)(SessionOptions*)>;
using CreateThreadingOptions = Entry<121, Status* (*)(ThreadingOptions**)>;
using ReleaseThreadingOptions = Entry<122, void (*)(ThreadingOptions*)>;
using AddSessionConfigEntry = Entry<130, Status* (*)(SessionOptions*, const char*, const char*)>;
using CreateAndRegisterAllocator =
    Entry<144, Status* (*)(Env*, const MemoryInfo*, const ArenaConfig*)>;
using SetGlobalIntraOpNumThreads = Entry<147, Status* (*)(ThreadingOptions*, int)>;
using SetGlobalInterOpNumThreads = Entry<148, Status* (*)(ThreadingOptions*, int)>;
using SetGlobalSpinControl = Entry<149, Status* (*)(ThreadingOptions*, int)>;
using AddInitializer = Entry<150, Status* (*)(SessionOptions*, const char*, const Value*)>;
using AddRunConfigEntry = Entry<165, Status* (*)(RunOptions*, const char*, const char*)>;

using CreatePackedWeights = Entry<166, Status* (*)(PackedWeights**)>;
using ReleasePackedWeights = Entry<167, void (*)(PackedWeights*)>;
using CreateSessionFromArrayWithPackedWeights =
    Entry<169, Status* (*)(const Env*, const void*, std::size_t, const SessionOptions*,
                           PackedWeights*, Session**)>;

using HasValue = Entry<192, Status* (*)(const Value*, int*)>;

// Options of an execution provider: created with defaults, then changed by keys and values.
template <class Options>
using Update = Status* (*)(Options*, const char* const*, const char* const*, std::size_t);
template <class Options>
using UpdateWithValue = Status* (*)(Options*, const char*, void*);

using AppendTensorRt = Entry<170, Status* (*)(SessionOptions*, const TensorRtOptions*)>;
using CreateTensorRtOptions = Entry<171, Status* (*)(TensorRtOptions**)>;
using UpdateTensorRtOptions = Entry<172, Update<TensorRtOptions>>;
using ReleaseTensorRtOptions = Entry<174, void (*)(TensorRtOptions*)>;
using AppendCuda = Entry<204, Status* (*)(SessionOptions*, const CudaOptions*)>;
using CreateCudaOptions = Entry<205, Status* (*)(CudaOptions**)>;
using UpdateCudaOptions = Entry<206, Update<CudaOptions>>;
using ReleaseCudaOptions = Entry<208, void (*)(CudaOptions*)>;
using UpdateTensorRtOptionsWithValue = Entry<261, UpdateWithValue<TensorRtOptions>>;
using UpdateCudaOptionsWithValue = Entry<263, UpdateWithValue<CudaOptions>>;

}  // namespace collage::ort

#endif  // COLLAGE_ONNXRUNTIME_API_H_
