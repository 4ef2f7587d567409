// The part of cuBLASLt's C interface that cublaslt.cc uses, declared here so that
// the plug-in builds without CUDA headers. tests/backends/nvidia/cublaslt_check.cc compiles it against
// the real ones: every value and every signature.
#ifndef COLLAGE_CUBLASLT_API_H_
#define COLLAGE_CUBLASLT_API_H_

#include <cstddef>
#include <cstdint>

namespace collage {
namespace lt {

struct Algorithm {
  std::uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace_size;
  int state;
  float waves_count;
  int reserved[4];
};

constexpr int kSuccess = 0;
constexpr int kFloat32 = 0, kFloat16 = 2, kBfloat16 = 14;  // cudaDataType_t
constexpr int kCompute32F = 68, kCompute32FFastTf32 = 77;  // cublasComputeType_t
constexpr std::int32_t kOpN = 0, kOpT = 1;                 // cublasOperation_t
constexpr int kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8;
constexpr std::uint32_t kDefault = 1, kRelu = 2, kBias = 4, kGelu = 32;
constexpr int kBatchCount = 5, kBatchOffset = 6;
constexpr int kMaxWorkspace = 1, kAlignmentA = 5, kAlignmentD = 8;

using Handle = void*;
using Descriptor = void*;
using Layout = void*;
using Preference = void*;
using Stream = void*;

using Create = int (*)(Handle*);
using StatusString = const char* (*)(int);
using DescriptorCreate = int (*)(Descriptor*, int compute, int scale);
using SetAttribute = int (*)(void*, int attribute, const void* value, std::size_t size);
using Destroy = int (*)(void*);
using LayoutCreate = int (*)(Layout*, int type, std::uint64_t rows, std::uint64_t columns,
                             std::int64_t lead);
using PreferenceCreate = int (*)(Preference*);
using GetHeuristic = int (*)(Handle, Descriptor, Layout a, Layout b, Layout c, Layout d, Preference,
                             int requested, Heuristic* found, int* count);
using Matmul = int (*)(Handle, Descriptor, const void* alpha, const void* a, Layout, const void* b,
                       Layout, const void* beta, const void* c, Layout, void* d, Layout,
                       const Algorithm*, void* workspace, std::size_t workspace_size, Stream);

}  // namespace lt
}  // namespace collage

#endif  // COLLAGE_CUBLASLT_API_H_
