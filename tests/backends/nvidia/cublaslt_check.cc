// Compiles native/cublas/cublaslt_api.h against the real headers: every constant, layout and signature.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <type_traits>

#include "cublaslt_api.h"

namespace lt = collage::lt;

// The declared type equals the real one with handles and descriptors as void* and enums as int.
template <typename T>
struct Plain {
  using Type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <typename T>
struct Plain<T*> {
  static constexpr bool kOpaque = std::is_class_v<T> &&
                                  !std::is_same_v<std::remove_const_t<T>, cublasLtMatmulAlgo_t> &&
                                  !std::is_same_v<T, cublasLtMatmulHeuristicResult_t>;
  using Type =
      std::conditional_t<kOpaque, void*, std::conditional_t<std::is_pointer_v<T>, void**, T*>>;
};
template <>
struct Plain<const cublasLtMatmulAlgo_t*> {
  using Type = const lt::Algorithm*;
};
template <>
struct Plain<cublasLtMatmulHeuristicResult_t*> {
  using Type = lt::Heuristic*;
};
template <typename Result, typename... Args>
auto Flat(Result (*)(Args...)) -> typename Plain<Result>::Type (*)(typename Plain<Args>::Type...);
#define SAME(declared, real) static_assert(std::is_same_v<declared, decltype(Flat(&real))>, #real)

SAME(lt::Create, cublasLtCreate);
SAME(lt::StatusString, cublasLtGetStatusString);
SAME(lt::DescriptorCreate, cublasLtMatmulDescCreate);
SAME(lt::SetAttribute, cublasLtMatmulDescSetAttribute);
SAME(lt::SetAttribute, cublasLtMatrixLayoutSetAttribute);
SAME(lt::SetAttribute, cublasLtMatmulPreferenceSetAttribute);
SAME(lt::Destroy, cublasLtMatmulDescDestroy);
SAME(lt::Destroy, cublasLtMatrixLayoutDestroy);
SAME(lt::Destroy, cublasLtMatmulPreferenceDestroy);
SAME(lt::LayoutCreate, cublasLtMatrixLayoutCreate);
SAME(lt::PreferenceCreate, cublasLtMatmulPreferenceCreate);
SAME(lt::GetHeuristic, cublasLtMatmulAlgoGetHeuristic);
SAME(lt::Matmul, cublasLtMatmul);

static_assert(sizeof(lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(lt::Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(lt::Heuristic, workspace_size) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(lt::Heuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(lt::kSuccess == CUBLAS_STATUS_SUCCESS && lt::kSuccess == int(cudaSuccess));
static_assert(lt::kFloat32 == CUDA_R_32F && lt::kFloat16 == CUDA_R_16F);
static_assert(lt::kBfloat16 == CUDA_R_16BF && lt::kCompute32F == CUBLAS_COMPUTE_32F);
static_assert(lt::kCompute32FFastTf32 == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(lt::kOpN == CUBLAS_OP_N && lt::kOpT == CUBLAS_OP_T);
static_assert(lt::kTransA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(lt::kTransB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(lt::kEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(lt::kBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(lt::kDefault == CUBLASLT_EPILOGUE_DEFAULT && lt::kRelu == CUBLASLT_EPILOGUE_RELU);
static_assert(lt::kBias == CUBLASLT_EPILOGUE_BIAS && lt::kGelu == CUBLASLT_EPILOGUE_GELU);
static_assert((lt::kGelu | lt::kBias) == CUBLASLT_EPILOGUE_GELU_BIAS);
static_assert((lt::kRelu | lt::kBias) == CUBLASLT_EPILOGUE_RELU_BIAS);
static_assert(lt::kBatchCount == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
static_assert(lt::kBatchOffset == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
static_assert(lt::kMaxWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(lt::kAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(lt::kAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

// The sizes of the attributes that cublaslt.cc sets.
static_assert(sizeof(cublasOperation_t) == sizeof(std::int32_t));
static_assert(sizeof(cublasLtEpilogue_t) == sizeof(std::uint32_t));
