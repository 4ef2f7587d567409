// The part of cuDNN's descriptor interface that is used, declared here so that the plug-in builds without its
// headers. tests/backends/nvidia/cudnn_check.cc compiles it against the real ones.
#ifndef COLLAGE_CUDNN_API_H_
#define COLLAGE_CUDNN_API_H_

#include <cstddef>

namespace collage {
namespace dnn {

constexpr int kSuccess = 0;
constexpr int kFloat = 0, kHalf = 2, kBfloat16 = 9;           // cudnnDataType_t
constexpr int kCrossCorrelation = 1;                          // cudnnConvolutionMode_t
constexpr int kPropagateNan = 1;                              // cudnnNanPropagation_t
constexpr int kAccurate = 1, kAcrossChannels = 1;             // cudnnSoftmaxAlgorithm_t, Mode_t
constexpr int kMax = 0, kAverageAll = 1, kAverageInside = 2;  // cudnnPoolingMode_t
constexpr int kSpatial = 1;                                   // cudnnBatchNormMode_t

using Handle = void*;
using Descriptor = void*;  // of a tensor or pooling, or of the graph interface
using Stream = void*;

using Create = int (*)(void**);
using Destroy = int (*)(void*);
using ErrorString = const char* (*)(int);
using LastError = void (*)(char* text, std::size_t size);
using SetStream = int (*)(Handle, Stream);
using SetTensor = int (*)(Descriptor, int type, int rank, const int* extents, const int* strides);
using SetPooling = int (*)(Descriptor, int mode, int nan, int rank, const int* window,
                           const int* pads, const int* strides);
using Softmax = int (*)(Handle, int algorithm, int mode, const void* alpha, Descriptor,
                        const void* x, const void* beta, Descriptor, void* y);
using Pool = int (*)(Handle, Descriptor pooling, const void* alpha, Descriptor, const void* x,
                     const void* beta, Descriptor, void* y);
using Normalize = int (*)(Handle, int mode, const void* alpha, const void* beta, Descriptor,
                          const void* x, Descriptor, void* y, Descriptor per_channel,
                          const void* scale, const void* bias, const void* mean,
                          const void* variance, double epsilon);
using Transform = int (*)(Handle, const void* alpha, Descriptor, const void* x, const void* beta,
                          Descriptor, void* y);

}  // namespace dnn
}  // namespace collage

#endif  // COLLAGE_CUDNN_API_H_
