// Compiles native/cudnn_api.h and cudart_api.h against the real headers: every constant, layout and signature.
#include <cudnn.h>

#include <cstddef>
#include <type_traits>

#include "cudart_api.h"
#include "cudnn_api.h"

namespace dnn = collage::dnn;

// The declared type equals the real one with handles, streams and descriptors as void* and enums as int.
template <typename T>
struct Plain {
  using Type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <typename T>
struct Plain<T*> {
  using Type = std::conditional_t<std::is_class_v<T>, void*,
                                  std::conditional_t<std::is_pointer_v<T>, void**, T*>>;
};
template <>
struct Plain<cudnnConvolutionFwdAlgoPerf_t*> {
  using Type = dnn::Proposal*;
};
template <typename Result, typename... Args>
auto Flat(Result (*)(Args...)) -> typename Plain<Result>::Type (*)(typename Plain<Args>::Type...);
#define SAME(declared, real) static_assert(std::is_same_v<declared, decltype(Flat(&real))>, #real)

// The header overloads these two with templates.
extern cudaError_t (&c_malloc)(void**, size_t);
extern cudaError_t (&c_malloc_host)(void**, size_t);

SAME(collage::cuda::Malloc, c_malloc);
SAME(collage::cuda::Malloc, c_malloc_host);
SAME(collage::cuda::Release, cudaFree);
SAME(collage::cuda::Release, cudaFreeHost);
SAME(collage::cuda::MemcpyAsync, cudaMemcpyAsync);
SAME(collage::cuda::MemsetAsync, cudaMemsetAsync);
SAME(collage::cuda::Synchronize, cudaStreamSynchronize);
SAME(collage::cuda::ErrorString, cudaGetErrorString);
static_assert(collage::cuda::kSuccess == int(cudaSuccess));
static_assert(collage::cuda::kHostToDevice == int(cudaMemcpyHostToDevice));
static_assert(collage::cuda::kDeviceToHost == int(cudaMemcpyDeviceToHost));

SAME(dnn::Create, cudnnCreate);
SAME(dnn::Create, cudnnCreateTensorDescriptor);
SAME(dnn::Create, cudnnCreateFilterDescriptor);
SAME(dnn::Create, cudnnCreateConvolutionDescriptor);
SAME(dnn::Create, cudnnCreateActivationDescriptor);
SAME(dnn::Create, cudnnCreatePoolingDescriptor);
SAME(dnn::Destroy, cudnnDestroyTensorDescriptor);
SAME(dnn::Destroy, cudnnDestroyFilterDescriptor);
SAME(dnn::Destroy, cudnnDestroyConvolutionDescriptor);
SAME(dnn::Destroy, cudnnDestroyActivationDescriptor);
SAME(dnn::Destroy, cudnnDestroyPoolingDescriptor);
SAME(dnn::ErrorString, cudnnGetErrorString);
SAME(dnn::SetStream, cudnnSetStream);
SAME(dnn::SetTensor, cudnnSetTensorNdDescriptor);
SAME(dnn::SetFilter, cudnnSetFilterNdDescriptor);
SAME(dnn::SetConvolution, cudnnSetConvolutionNdDescriptor);
SAME(dnn::SetInt, cudnnSetConvolutionGroupCount);
SAME(dnn::SetInt, cudnnSetConvolutionMathType);
SAME(dnn::SetActivation, cudnnSetActivationDescriptor);
SAME(dnn::SetPooling, cudnnSetPoolingNdDescriptor);
SAME(dnn::Propose, cudnnGetConvolutionForwardAlgorithm_v7);
SAME(dnn::WorkspaceSize, cudnnGetConvolutionForwardWorkspaceSize);
SAME(dnn::ConvolveFused, cudnnConvolutionBiasActivationForward);
SAME(dnn::Softmax, cudnnSoftmaxForward);
SAME(dnn::Pool, cudnnPoolingForward);

static_assert(sizeof(dnn::Proposal) == sizeof(cudnnConvolutionFwdAlgoPerf_t));
static_assert(offsetof(dnn::Proposal, memory) == offsetof(cudnnConvolutionFwdAlgoPerf_t, memory));
static_assert(offsetof(dnn::Proposal, math) == offsetof(cudnnConvolutionFwdAlgoPerf_t, mathType));
static_assert(dnn::kSuccess == CUDNN_STATUS_SUCCESS);
static_assert(dnn::kFloat == CUDNN_DATA_FLOAT && dnn::kHalf == CUDNN_DATA_HALF);
static_assert(dnn::kBfloat16 == CUDNN_DATA_BFLOAT16 && dnn::kNchw == CUDNN_TENSOR_NCHW);
static_assert(dnn::kCrossCorrelation == CUDNN_CROSS_CORRELATION);
static_assert(dnn::kDefaultMath == CUDNN_DEFAULT_MATH && dnn::kFullPrecision == CUDNN_FMA_MATH);
static_assert(dnn::kTensorCores == CUDNN_TENSOR_OP_MATH);
static_assert(dnn::kPrecomputed == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
static_assert(dnn::kRelu == CUDNN_ACTIVATION_RELU && dnn::kIdentity == CUDNN_ACTIVATION_IDENTITY);
static_assert(dnn::kPropagateNan == CUDNN_PROPAGATE_NAN);
static_assert(dnn::kAccurate == CUDNN_SOFTMAX_ACCURATE);
static_assert(dnn::kAcrossChannels == CUDNN_SOFTMAX_MODE_CHANNEL);
static_assert(dnn::kMax == CUDNN_POOLING_MAX);
static_assert(dnn::kAverageAll == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING);
static_assert(dnn::kAverageInside == CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING);
static_assert(dnn::kAlgorithms == CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
