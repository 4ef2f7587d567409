// cuDNN on the simulated GPU: what cudnn.cc of the plug-in calls, by loops over two or three spatial
// dimensions (a missing one has extent 1).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../../native/cudnn_api.h"
#include "gpu.h"
#include "numbers.h"

using namespace simulated;  // NOLINT: the entry points below are C's
namespace dnn = collage::dnn;

namespace {

using Ints = std::vector<int>;

struct Object {
  int type = 0, mode = 0, group = 1, math = 0;
  Ints extents, pads, strides, dilations;

  int at(const Ints& from, std::size_t place, int otherwise) const {
    return place < from.size() ? from[place] : otherwise;
  }
  int spatial(std::size_t place) const { return at(extents, place + 2, 1); }
};

Object& Of(void* one) { return *static_cast<Object*>(one); }

Dtype Width(int type) {
  return type == dnn::kFloat ? Dtype::kFloat : type == dnn::kHalf ? Dtype::kHalf : Dtype::kBfloat;
}

struct Place {
  int n, c, d, h, w;
};

std::int64_t Offset(const Object& of, const Place& at) {
  return (((static_cast<std::int64_t>(at.n) * of.extents[1] + at.c) * of.spatial(0) + at.d) *
              of.spatial(1) + at.h) * of.spatial(2) + at.w;
}

template <typename F>
void ForEach(const Object& of, F visit) {
  for (int n = 0; n < of.extents[0]; ++n)
    for (int c = 0; c < of.extents[1]; ++c)
      for (int d = 0; d < of.spatial(0); ++d)
        for (int h = 0; h < of.spatial(1); ++h)
          for (int w = 0; w < of.spatial(2); ++w) visit(Place{n, c, d, h, w});
}

// Visits every tap of a window of `extents` (spatial) at an output's place that lies inside of x.
template <typename F>
void Taps(const Object& x, const Object& how, const Ints& extents, const Place& out, F visit) {
  auto size = [&](std::size_t i) { return i < extents.size() ? extents[i] : 1; };
  auto source = [&](std::size_t i, int to, int tap) {
    return to * how.at(how.strides, i, 1) - how.at(how.pads, i, 0) +
           tap * how.at(how.dilations, i, 1);
  };
  for (int d = 0; d < size(0); ++d)
    for (int h = 0; h < size(1); ++h)
      for (int w = 0; w < size(2); ++w) {
        Place from{out.n, out.c, source(0, out.d, d), source(1, out.h, h), source(2, out.w, w)};
        bool inside = from.d >= 0 && from.h >= 0 && from.w >= 0 && from.d < x.spatial(0) &&
                      from.h < x.spatial(1) && from.w < x.spatial(2);
        if (inside) visit(from, (d * size(1) + h) * size(2) + w);
      }
}

bool AllOnDevice(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), IsDevice);
}

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() { return 91900; }
const char* cudnnGetErrorString(int status) { return status == 3 ? "bad parameter" : "failed"; }

#define OBJECT(kind)                                  \
  int cudnnCreate##kind##Descriptor(void** made) {    \
    *made = new Object();                             \
    return dnn::kSuccess;                             \
  }                                                   \
  int cudnnDestroy##kind##Descriptor(void* one) {     \
    delete static_cast<Object*>(one);                 \
    return dnn::kSuccess;                             \
  }
OBJECT(Tensor)
OBJECT(Filter)
OBJECT(Convolution)
OBJECT(Activation)
OBJECT(Pooling)

static void* current_stream = nullptr;

int cudnnCreate(void** handle) {
  *handle = &current_stream;
  return dnn::kSuccess;
}

int cudnnSetStream(void*, void* stream) {
  current_stream = stream;
  return dnn::kSuccess;
}

int cudnnSetTensorNdDescriptor(void* one, int type, int rank, const int* extents, const int*) {
  if (rank < 4) return 3;
  Of(one).type = type;
  Of(one).extents.assign(extents, extents + rank);
  return dnn::kSuccess;
}

int cudnnSetFilterNdDescriptor(void* one, int type, int, int rank, const int* extents) {
  return cudnnSetTensorNdDescriptor(one, type, rank, extents, nullptr);
}

int cudnnSetConvolutionNdDescriptor(void* one, int rank, const int* pads, const int* strides,
                                    const int* dilations, int mode, int compute) {
  Of(one).pads.assign(pads, pads + rank);
  Of(one).strides.assign(strides, strides + rank);
  Of(one).dilations.assign(dilations, dilations + rank);
  return mode == dnn::kCrossCorrelation && compute == dnn::kFloat && rank >= 2 ? 0 : 3;
}

int cudnnSetConvolutionGroupCount(void* one, int group) {
  Of(one).group = group;
  return dnn::kSuccess;
}

int cudnnSetConvolutionMathType(void* one, int math) {
  Of(one).math = math;
  return dnn::kSuccess;
}

int cudnnSetActivationDescriptor(void* one, int mode, int, double) {
  Of(one).mode = mode;
  return dnn::kSuccess;
}

int cudnnSetPoolingNdDescriptor(void* one, int mode, int, int rank, const int* window,
                                const int* pads, const int* strides) {
  Of(one).mode = mode;
  Of(one).extents.assign(window, window + rank);
  Of(one).pads.assign(pads, pads + rank);
  Of(one).strides.assign(strides, strides + rank);
  return dnn::kSuccess;
}

int cudnnGetConvolutionForwardAlgorithm_v7(void*, void* x, void*, void*, void*, int requested,
                                           int* returned, dnn::Proposal* found) {
  // As the real one: an algorithm comes with and without tensor cores, and some do not work.
  const dnn::Proposal all[] = {{1, 0, 0, 0, 0, dnn::kTensorCores, {}},
                               {1, 0, 0, 0, 0, dnn::kDefaultMath, {}},
                               {0, 0, 0, 0, 0, dnn::kDefaultMath, {}},
                               {6, 9, 0, 0, 0, dnn::kDefaultMath, {}}};
  *returned = std::min(requested, 4);
  std::copy(all, all + *returned, found);
  return x == nullptr ? 3 : 0;
}

int cudnnGetConvolutionForwardWorkspaceSize(void*, void*, void*, void*, void*, int,
                                            std::size_t* size) {
  *size = 256;
  return dnn::kSuccess;
}

int cudnnConvolutionBiasActivationForward(
    void*, const void*, void* x_described, const void* x, void* w_described, const void* w,
    void* convolution, int algorithm, void* workspace, std::size_t, const void* alpha2,
    void* z_described, const void* z, void* bias_described, const void* bias, void* activation,
    void* y_described, void* y) {
  if (!AllOnDevice({x, w, z, bias, y, workspace})) return Lose(kIllegalAddress);
  Object in = Of(x_described), weights = Of(w_described), how = Of(convolution);
  Object out = Of(y_described);
  bool relu = Of(activation).mode == dnn::kRelu;
  if (!relu && algorithm != dnn::kPrecomputed) return 9;
  if (Of(z_described).extents != out.extents || Of(bias_described).extents[1] != out.extents[1] ||
      weights.extents[0] != out.extents[1] ||
      weights.extents[1] * how.group != in.extents[1]) {
    return 3;
  }
  if (in.type == dnn::kFloat && how.math != dnn::kFullPrecision) return 3;
  float kept = *static_cast<const float*>(alpha2);
  return Enqueue(current_stream, "cudnnConvolution", [=] {
    Dtype type = Width(in.type);
    int channels = weights.extents[1], per_group = out.extents[1] / how.group;
    Ints window(weights.extents.begin() + 2, weights.extents.end());
    std::int64_t taps = 1;
    for (int one : window) taps *= one;
    ForEach(out, [&](const Place& at) {
      float sum = Load(bias, type, at.c);
      if (kept != 0) sum += kept * Load(z, type, Offset(out, at));
      for (int c = 0; c < channels; ++c) {
        Place first = at;
        first.c = at.c / per_group * channels + c;
        Taps(in, how, window, first, [&](const Place& from, int tap) {
          std::int64_t weight = (static_cast<std::int64_t>(at.c) * channels + c) * taps + tap;
          sum += Load(x, type, Offset(in, from)) * Load(w, type, weight);
        });
      }
      Store(y, type, Offset(out, at), relu && sum < 0 ? 0 : sum);
    });
  });
}

int cudnnSoftmaxForward(void*, int algorithm, int mode, const void*, void* described, const void* x,
                        const void*, void*, void* y) {
  if (algorithm != dnn::kAccurate || mode != dnn::kAcrossChannels) return 3;
  if (!AllOnDevice({x, y})) return Lose(kIllegalAddress);
  Object shape = Of(described);
  return Enqueue(current_stream, "cudnnSoftmax", [=] {
    Dtype type = Width(shape.type);
    std::int64_t length = shape.extents[1];
    for (std::int64_t row = 0; row < shape.extents[0]; ++row) {
      float most = -INFINITY, sum = 0;
      for (int i = 0; i < length; ++i) most = std::max(most, Load(x, type, row * length + i));
      for (int i = 0; i < length; ++i) sum += std::exp(Load(x, type, row * length + i) - most);
      for (int i = 0; i < length; ++i) {
        Store(y, type, row * length + i, std::exp(Load(x, type, row * length + i) - most) / sum);
      }
    }
  });
}

int cudnnPoolingForward(void*, void* pooling, const void*, void* x_described, const void* x,
                        const void*, void* y_described, void* y) {
  if (!AllOnDevice({x, y})) return Lose(kIllegalAddress);
  Object in = Of(x_described), out = Of(y_described), how = Of(pooling);
  return Enqueue(current_stream, "cudnnPooling", [=] {
    Dtype type = Width(in.type);
    int whole = 1;
    for (int one : how.extents) whole *= one;
    ForEach(out, [&](const Place& at) {
      float most = -INFINITY, sum = 0;
      int count = 0;
      Taps(in, how, how.extents, at, [&](const Place& from, int) {
        float value = Load(x, type, Offset(in, from));
        most = std::max(most, value);
        sum += value;
        ++count;
      });
      int divisor = how.mode == dnn::kAverageAll ? whole : count;
      Store(y, type, Offset(out, at), how.mode == dnn::kMax ? most : sum / divisor);
    });
  });
}

}  // extern "C"
