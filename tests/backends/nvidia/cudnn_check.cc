// Compiles native/cudnn/cudnn_api.h, cudnn_graph_api.h and cudart_api.h against the real headers: every constant, layout and signature.
#include <cudnn.h>

#include <cstddef>
#include <type_traits>

#include "cudart_api.h"
#include "cudnn_graph_api.h"

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
SAME(collage::cuda::StreamCreate, cudaStreamCreate);
SAME(collage::cuda::StreamDestroy, cudaStreamDestroy);
SAME(collage::cuda::EventCreate, cudaEventCreateWithFlags);
SAME(collage::cuda::EventRecord, cudaEventRecord);
SAME(collage::cuda::StreamWaitEvent, cudaStreamWaitEvent);
static_assert(collage::cuda::kNoTiming == cudaEventDisableTiming);
SAME(collage::cuda::ErrorString, cudaGetErrorString);
static_assert(collage::cuda::kSuccess == int(cudaSuccess));
static_assert(collage::cuda::kHostToDevice == int(cudaMemcpyHostToDevice));
static_assert(collage::cuda::kDeviceToHost == int(cudaMemcpyDeviceToHost));

SAME(dnn::Create, cudnnCreate);
SAME(dnn::Create, cudnnCreateTensorDescriptor);
SAME(dnn::Create, cudnnCreatePoolingDescriptor);
SAME(dnn::Destroy, cudnnDestroyTensorDescriptor);
SAME(dnn::Destroy, cudnnDestroyPoolingDescriptor);
SAME(dnn::ErrorString, cudnnGetErrorString);
SAME(dnn::SetStream, cudnnSetStream);
SAME(dnn::SetTensor, cudnnSetTensorNdDescriptor);
SAME(dnn::SetPooling, cudnnSetPoolingNdDescriptor);
SAME(dnn::Softmax, cudnnSoftmaxForward);
SAME(dnn::Pool, cudnnPoolingForward);
SAME(dnn::Normalize, cudnnBatchNormalizationForwardInference);
SAME(dnn::Transform, cudnnTransformTensor);
SAME(dnn::LastError, cudnnGetLastErrorString);
SAME(dnn::BackendCreate, cudnnBackendCreateDescriptor);
SAME(dnn::Destroy, cudnnBackendDestroyDescriptor);
SAME(dnn::BackendFinalize, cudnnBackendFinalize);
SAME(dnn::BackendSet, cudnnBackendSetAttribute);
SAME(dnn::BackendGet, cudnnBackendGetAttribute);
SAME(dnn::BackendExecute, cudnnBackendExecute);

static_assert(dnn::kSuccess == CUDNN_STATUS_SUCCESS);
static_assert(dnn::kFloat == CUDNN_DATA_FLOAT && dnn::kHalf == CUDNN_DATA_HALF);
static_assert(dnn::kBfloat16 == CUDNN_DATA_BFLOAT16);
static_assert(dnn::kCrossCorrelation == CUDNN_CROSS_CORRELATION);
static_assert(dnn::kPropagateNan == CUDNN_PROPAGATE_NAN);
static_assert(dnn::kAccurate == CUDNN_SOFTMAX_ACCURATE);
static_assert(dnn::kAcrossChannels == CUDNN_SOFTMAX_MODE_CHANNEL);
static_assert(dnn::kMax == CUDNN_POOLING_MAX);
static_assert(dnn::kAverageAll == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING);
static_assert(dnn::kAverageInside == CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING);
static_assert(dnn::kSpatial == CUDNN_BATCHNORM_SPATIAL);

#define EQUAL(declared, real) static_assert(int(dnn::declared) == int(CUDNN_##real), #real)
EQUAL(kPointwiseDescriptor, BACKEND_POINTWISE_DESCRIPTOR);
EQUAL(kConvolutionDescriptor, BACKEND_CONVOLUTION_DESCRIPTOR);
EQUAL(kEngine, BACKEND_ENGINE_DESCRIPTOR);
EQUAL(kEngineConfig, BACKEND_ENGINECFG_DESCRIPTOR);
EQUAL(kHeuristics, BACKEND_ENGINEHEUR_DESCRIPTOR);
EQUAL(kPlan, BACKEND_EXECUTION_PLAN_DESCRIPTOR);
EQUAL(kConvolution, BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
EQUAL(kPointwise, BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
EQUAL(kOperationGraph, BACKEND_OPERATIONGRAPH_DESCRIPTOR);
EQUAL(kVariantPack, BACKEND_VARIANT_PACK_DESCRIPTOR);
EQUAL(kTensor, BACKEND_TENSOR_DESCRIPTOR);
EQUAL(kMatmulDescriptor, BACKEND_MATMUL_DESCRIPTOR);
EQUAL(kMatmul, BACKEND_OPERATION_MATMUL_DESCRIPTOR);
EQUAL(kReductionDescriptor, BACKEND_REDUCTION_DESCRIPTOR);
EQUAL(kReduction, BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
EQUAL(kNorm, BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
EQUAL(kDevice, BACKEND_DEVICEPROP_DESCRIPTOR);
EQUAL(kHandleType, TYPE_HANDLE);
EQUAL(kDataTypeType, TYPE_DATA_TYPE);
EQUAL(kBoolType, TYPE_BOOLEAN);
EQUAL(kInt64Type, TYPE_INT64);
EQUAL(kFloatType, TYPE_FLOAT);
EQUAL(kDoubleType, TYPE_DOUBLE);
EQUAL(kPointerType, TYPE_VOID_PTR);
EQUAL(kConvolutionModeType, TYPE_CONVOLUTION_MODE);
EQUAL(kHeuristicModeType, TYPE_HEUR_MODE);
EQUAL(kNoteType, TYPE_NUMERICAL_NOTE);
EQUAL(kPointwiseModeType, TYPE_POINTWISE_MODE);
EQUAL(kDescriptorType, TYPE_BACKEND_DESCRIPTOR);
EQUAL(kReductionModeType, TYPE_REDUCTION_OPERATOR_TYPE);
EQUAL(kCharType, TYPE_CHAR);
EQUAL(kNormModeType, TYPE_NORM_MODE);
EQUAL(kNormPhaseType, TYPE_NORM_FWD_PHASE);
EQUAL(kPointwiseMode, ATTR_POINTWISE_MODE);
EQUAL(kPointwisePrecision, ATTR_POINTWISE_MATH_PREC);
EQUAL(kReluUpper, ATTR_POINTWISE_RELU_UPPER_CLIP);
EQUAL(kEluAlpha, ATTR_POINTWISE_ELU_ALPHA);
EQUAL(kSoftplusBeta, ATTR_POINTWISE_SOFTPLUS_BETA);
EQUAL(kSwishBeta, ATTR_POINTWISE_SWISH_BETA);
EQUAL(kConvolutionPrecision, ATTR_CONVOLUTION_COMP_TYPE);
EQUAL(kConvolutionMode, ATTR_CONVOLUTION_CONV_MODE);
EQUAL(kDilations, ATTR_CONVOLUTION_DILATIONS);
EQUAL(kStrides, ATTR_CONVOLUTION_FILTER_STRIDES);
EQUAL(kPostPads, ATTR_CONVOLUTION_POST_PADDINGS);
EQUAL(kPrePads, ATTR_CONVOLUTION_PRE_PADDINGS);
EQUAL(kSpatialDims, ATTR_CONVOLUTION_SPATIAL_DIMS);
EQUAL(kHeuristicsMode, ATTR_ENGINEHEUR_MODE);
EQUAL(kHeuristicsGraph, ATTR_ENGINEHEUR_OPERATION_GRAPH);
EQUAL(kHeuristicsResults, ATTR_ENGINEHEUR_RESULTS);
EQUAL(kHeuristicsDevice, ATTR_ENGINEHEUR_DEVICEPROP);
EQUAL(kConfigEngine, ATTR_ENGINECFG_ENGINE);
EQUAL(kPlanHandle, ATTR_EXECUTION_PLAN_HANDLE);
EQUAL(kPlanConfig, ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
EQUAL(kPlanWorkspace, ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
EQUAL(kPlanDevice, ATTR_EXECUTION_PLAN_DEVICEPROP);
EQUAL(kConvolutionAlpha, ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
EQUAL(kConvolutionBeta, ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
EQUAL(kOperationConvolutionDescriptor, ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
EQUAL(kConvolutionW, ATTR_OPERATION_CONVOLUTION_FORWARD_W);
EQUAL(kConvolutionX, ATTR_OPERATION_CONVOLUTION_FORWARD_X);
EQUAL(kConvolutionY, ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
EQUAL(kOperationPointwiseDescriptor, ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
EQUAL(kPointwiseX, ATTR_OPERATION_POINTWISE_XDESC);
EQUAL(kPointwiseB, ATTR_OPERATION_POINTWISE_BDESC);
EQUAL(kPointwiseY, ATTR_OPERATION_POINTWISE_YDESC);
EQUAL(kGraphHandle, ATTR_OPERATIONGRAPH_HANDLE);
EQUAL(kGraphOperations, ATTR_OPERATIONGRAPH_OPS);
EQUAL(kTensorAlignment, ATTR_TENSOR_BYTE_ALIGNMENT);
EQUAL(kTensorType, ATTR_TENSOR_DATA_TYPE);
EQUAL(kTensorDims, ATTR_TENSOR_DIMENSIONS);
EQUAL(kTensorStrides, ATTR_TENSOR_STRIDES);
EQUAL(kTensorId, ATTR_TENSOR_UNIQUE_ID);
EQUAL(kTensorVirtual, ATTR_TENSOR_IS_VIRTUAL);
EQUAL(kTensorByValue, ATTR_TENSOR_IS_BY_VALUE);
EQUAL(kPackIds, ATTR_VARIANT_PACK_UNIQUE_IDS);
EQUAL(kPackPointers, ATTR_VARIANT_PACK_DATA_POINTERS);
EQUAL(kPackWorkspace, ATTR_VARIANT_PACK_WORKSPACE);
EQUAL(kEngineIndex, ATTR_ENGINE_GLOBAL_INDEX);
EQUAL(kEngineNotes, ATTR_ENGINE_NUMERICAL_NOTE);
EQUAL(kMatmulPrecision, ATTR_MATMUL_COMP_TYPE);
EQUAL(kMatmulA, ATTR_OPERATION_MATMUL_ADESC);
EQUAL(kMatmulB, ATTR_OPERATION_MATMUL_BDESC);
EQUAL(kMatmulC, ATTR_OPERATION_MATMUL_CDESC);
EQUAL(kOperationMatmulDescriptor, ATTR_OPERATION_MATMUL_DESC);
EQUAL(kReductionMode, ATTR_REDUCTION_OPERATOR);
EQUAL(kReductionPrecision, ATTR_REDUCTION_COMP_TYPE);
EQUAL(kReductionX, ATTR_OPERATION_REDUCTION_XDESC);
EQUAL(kReductionY, ATTR_OPERATION_REDUCTION_YDESC);
EQUAL(kOperationReductionDescriptor, ATTR_OPERATION_REDUCTION_DESC);
EQUAL(kNormMode, ATTR_OPERATION_NORM_FWD_MODE);
EQUAL(kNormPhase, ATTR_OPERATION_NORM_FWD_PHASE);
EQUAL(kNormX, ATTR_OPERATION_NORM_FWD_XDESC);
EQUAL(kNormScale, ATTR_OPERATION_NORM_FWD_SCALE_DESC);
EQUAL(kNormBias, ATTR_OPERATION_NORM_FWD_BIAS_DESC);
EQUAL(kNormEpsilon, ATTR_OPERATION_NORM_FWD_EPSILON_DESC);
EQUAL(kNormY, ATTR_OPERATION_NORM_FWD_YDESC);
EQUAL(kDeviceJson, ATTR_DEVICEPROP_JSON_REPRESENTATION);
EQUAL(kAdd, POINTWISE_ADD);
EQUAL(kMul, POINTWISE_MUL);
EQUAL(kSub, POINTWISE_SUB);
EQUAL(kDiv, POINTWISE_DIV);
EQUAL(kExp, POINTWISE_EXP);
EQUAL(kLog, POINTWISE_LOG);
EQUAL(kReluForward, POINTWISE_RELU_FWD);
EQUAL(kTanhForward, POINTWISE_TANH_FWD);
EQUAL(kSigmoidForward, POINTWISE_SIGMOID_FWD);
EQUAL(kEluForward, POINTWISE_ELU_FWD);
EQUAL(kGeluForward, POINTWISE_GELU_FWD);
EQUAL(kSoftplusForward, POINTWISE_SOFTPLUS_FWD);
EQUAL(kSwishForward, POINTWISE_SWISH_FWD);
EQUAL(kGeluTanhForward, POINTWISE_GELU_APPROX_TANH_FWD);
EQUAL(kReduceAdd, REDUCE_TENSOR_ADD);
EQUAL(kReduceMax, REDUCE_TENSOR_MAX);
EQUAL(kLayerNorm, LAYER_NORM);
EQUAL(kInstanceNorm, INSTANCE_NORM);
EQUAL(kRmsNorm, RMS_NORM);
EQUAL(kInference, NORM_FWD_INFERENCE);
EQUAL(kModeB, HEUR_MODE_B);
EQUAL(kModeFallback, HEUR_MODE_FALLBACK);
EQUAL(kModeA, HEUR_MODE_A);
EQUAL(kNoteTensorCore, NUMERICAL_NOTE_TENSOR_CORE);
EQUAL(kNoteDownConvert, NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
EQUAL(kNoteReducedPrecision, NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
EQUAL(kNotes, NUMERICAL_NOTE_TYPE_COUNT);
