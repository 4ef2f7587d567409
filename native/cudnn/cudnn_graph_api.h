// The part of cuDNN's graph interface (its "backend" C functions) that cudnn_graph.cc uses, declared here so that
// the plug-in builds without its headers. tests/backends/nvidia/cudnn_check.cc compiles it against the real ones.
//
// Every object is a descriptor: created by type, given attributes (each an array of one type), finalised, read.
#ifndef COLLAGE_CUDNN_GRAPH_API_H_
#define COLLAGE_CUDNN_GRAPH_API_H_

#include <cstddef>
#include <cstdint>

#include "cudnn/cudnn_api.h"

namespace collage {
namespace dnn {

// cudnnBackendDescriptorType_t
enum Kind {
  kPointwiseDescriptor = 0,
  kConvolutionDescriptor = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kConvolution = 10,
  kPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmulDescriptor = 18,
  kMatmul = 19,
  kReductionDescriptor = 21,
  kReduction = 22,
  kNorm = 29,
  kDevice = 38,
};

// cudnnBackendAttributeType_t
enum Type {
  kHandleType = 0,
  kDataTypeType = 1,
  kBoolType = 2,
  kInt64Type = 3,
  kFloatType = 4,
  kDoubleType = 5,
  kPointerType = 6,
  kConvolutionModeType = 7,
  kHeuristicModeType = 8,
  kNoteType = 11,
  kPointwiseModeType = 14,
  kDescriptorType = 15,
  kReductionModeType = 18,
  kCharType = 24,
  kNormModeType = 27,
  kNormPhaseType = 28,
};

// cudnnBackendAttributeName_t
enum Attribute {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kReluUpper = 4,
  kEluAlpha = 6,
  kSoftplusBeta = 7,
  kSwishBeta = 8,
  kConvolutionPrecision = 100,
  kConvolutionMode = 101,
  kDilations = 102,
  kStrides = 103,
  kPostPads = 104,
  kPrePads = 105,
  kSpatialDims = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kHeuristicsDevice = 204,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanDevice = 407,
  kConvolutionAlpha = 700,
  kConvolutionBeta = 701,
  kOperationConvolutionDescriptor = 702,
  kConvolutionW = 703,
  kConvolutionX = 704,
  kConvolutionY = 705,
  kOperationPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorDims = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorVirtual = 907,
  kTensorByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineIndex = 1301,
  kEngineNotes = 1303,
  kMatmulPrecision = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kOperationMatmulDescriptor = 1523,
  kReductionMode = 1600,
  kReductionPrecision = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kOperationReductionDescriptor = 1612,
  kNormMode = 2000,
  kNormPhase = 2001,
  kNormX = 2002,
  kNormScale = 2005,
  kNormBias = 2006,
  kNormEpsilon = 2007,
  kNormY = 2013,
  kDeviceJson = 2702,
};

// cudnnPointwiseMode_t
enum Pointwise {
  kAdd = 0,
  kMul = 1,
  kSub = 9,
  kDiv = 6,
  kExp = 13,
  kLog = 15,
  kReluForward = 100,
  kTanhForward = 101,
  kSigmoidForward = 102,
  kEluForward = 103,
  kGeluForward = 104,
  kSoftplusForward = 105,
  kSwishForward = 106,
  kGeluTanhForward = 107,
};

enum Reduction { kReduceAdd = 0, kReduceMax = 3 };              // cudnnReduceTensorOp_t
enum Norm { kLayerNorm = 0, kInstanceNorm = 1, kRmsNorm = 4 };  // cudnnBackendNormMode_t
constexpr int kInference = 0;                                   // cudnnBackendNormFwdPhase_t
enum Heuristic { kModeB = 1, kModeFallback = 2, kModeA = 3 };   // cudnnBackendHeurMode_t
enum Note { kNoteTensorCore = 0, kNoteDownConvert = 1, kNoteReducedPrecision = 2, kNotes = 10 };

using BackendCreate = int (*)(int kind, Descriptor* made);
using BackendFinalize = int (*)(Descriptor);
using BackendSet = int (*)(Descriptor, int attribute, int type, std::int64_t count,
                           const void* elements);
using BackendGet = int (*)(Descriptor, int attribute, int type, std::int64_t requested,
                           std::int64_t* count, void* elements);
using BackendExecute = int (*)(Handle, Descriptor plan, Descriptor pack);

}  // namespace dnn
}  // namespace collage

#endif  // COLLAGE_CUDNN_GRAPH_API_H_
