// The part of cuDNN's C interface that cudnn.cc uses, declared here so that the plug-in builds without its
// headers. tests/backends/nvidia/cudnn_check.cc compiles it against the real ones.
#ifndef COLLAGE_CUDNN_API_H_
#define COLLAGE_CUDNN_API_H_

#include <cstddef>

namespace collage {
namespace dnn {

constexpr int kSuccess = 0;
constexpr int kFloat = 0, kHalf = 2, kBfloat16 = 9;        // cudnnDataType_t
constexpr int kNchw = 0;                                   // cudnnTensorFormat_t
constexpr int kCrossCorrelation = 1;                       // cudnnConvolutionMode_t
constexpr int kDefaultMath = 0, kTensorCores = 1, kFullPrecision = 3;  // cudnnMathType_t
constexpr int kPrecomputed = 1;                            // cudnnConvolutionFwdAlgo_t
constexpr int kRelu = 1, kIdentity = 5;                    // cudnnActivationMode_t
constexpr int kPropagateNan = 1;                           // cudnnNanPropagation_t
constexpr int kAccurate = 1, kAcrossChannels = 1;          // cudnnSoftmaxAlgorithm_t, Mode_t
constexpr int kMax = 0, kAverageAll = 1, kAverageInside = 2;  // cudnnPoolingMode_t
constexpr int kAlgorithms = 8;                             // CUDNN_CONVOLUTION_FWD_ALGO_COUNT

// cudnnConvolutionFwdAlgoPerf_t
struct Proposal {
  int algorithm;
  int status;
  float time;
  std::size_t memory;
  int determinism;
  int math;
  int reserved[3];
};

using Handle = void*;
using Descriptor = void*;  // of a tensor, filter, convolution, activation or pooling
using Stream = void*;

using Create = int (*)(void**);
using Destroy = int (*)(void*);
using ErrorString = const char* (*)(int);
using SetStream = int (*)(Handle, Stream);
using SetTensor = int (*)(Descriptor, int type, int rank, const int* extents, const int* strides);
using SetFilter = int (*)(Descriptor, int type, int format, int rank, const int* extents);
using SetConvolution = int (*)(Descriptor, int rank, const int* pads, const int* strides,
                               const int* dilations, int mode, int compute_type);
using SetInt = int (*)(Descriptor, int);
using SetActivation = int (*)(Descriptor, int mode, int nan, double coefficient);
using SetPooling = int (*)(Descriptor, int mode, int nan, int rank, const int* window,
                           const int* pads, const int* strides);
using Propose = int (*)(Handle, Descriptor x, Descriptor w, Descriptor convolution, Descriptor y,
                        int requested, int* returned, Proposal* found);
using WorkspaceSize = int (*)(Handle, Descriptor x, Descriptor w, Descriptor convolution,
                              Descriptor y, int algorithm, std::size_t* size);
using ConvolveFused = int (*)(Handle, const void* alpha1, Descriptor, const void* x, Descriptor,
                              const void* w, Descriptor convolution, int algorithm, void* workspace,
                              std::size_t workspace_size, const void* alpha2, Descriptor,
                              const void* z, Descriptor, const void* bias, Descriptor activation,
                              Descriptor, void* y);
using Softmax = int (*)(Handle, int algorithm, int mode, const void* alpha, Descriptor,
                        const void* x, const void* beta, Descriptor, void* y);
using Pool = int (*)(Handle, Descriptor pooling, const void* alpha, Descriptor, const void* x,
                     const void* beta, Descriptor, void* y);

}  // namespace dnn
}  // namespace collage

#endif  // COLLAGE_CUDNN_API_H_
