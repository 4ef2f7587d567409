// cuDNN on the simulated GPU: its descriptor interface, as far as the plug-in calls it, by loops over two or three
// spatial dimensions (a missing one has extent 1). The graph interface is in cudnn_graph.cc.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cudnn/cudnn_api.h"
#include "gpu.h"
#include "numbers.h"

using namespace simulated;  // NOLINT: the entry points below are C's
namespace dnn = collage::dnn;

namespace {

constexpr int kBadParam = 2000;

using Ints = std::vector<int>;

struct Object {
  int type = 0, mode = 0;
  Ints extents, pads, strides;  // those of a window, or of a tensor in memory

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
              of.spatial(1) +
          at.h) *
             of.spatial(2) +
         at.w;
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
    return to * how.at(how.strides, i, 1) - how.at(how.pads, i, 0) + tap;
  };
  for (int d = 0; d < size(0); ++d)
    for (int h = 0; h < size(1); ++h)
      for (int w = 0; w < size(2); ++w) {
        Place from{out.n, out.c, source(0, out.d, d), source(1, out.h, h), source(2, out.w, w)};
        bool inside = from.d >= 0 && from.h >= 0 && from.w >= 0 && from.d < x.spatial(0) &&
                      from.h < x.spatial(1) && from.w < x.spatial(2);
        if (inside) visit(from);
      }
}

bool AllOnDevice(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), IsDevice);
}

void* current_stream = nullptr;

}  // namespace

namespace simulated {
void* CurrentStream() { return current_stream; }
}  // namespace simulated

extern "C" {

std::size_t cudnnGetVersion() { return 91900; }
const char* cudnnGetErrorString(int status) {
  return status < 3000 ? "bad parameter" : status < 4000 ? "not supported" : "failed";
}

#define OBJECT(kind)                               \
  int cudnnCreate##kind##Descriptor(void** made) { \
    *made = new Object();                          \
    return dnn::kSuccess;                          \
  }                                                \
  int cudnnDestroy##kind##Descriptor(void* one) {  \
    delete static_cast<Object*>(one);              \
    return dnn::kSuccess;                          \
  }
OBJECT(Tensor)
OBJECT(Pooling)

void cudnnGetLastErrorString(char* text, std::size_t size) {
  std::snprintf(text, size, "simulated");
}

int cudnnCreate(void** handle) {
  *handle = &current_stream;
  return dnn::kSuccess;
}

int cudnnSetStream(void*, void* stream) {
  current_stream = stream;
  return dnn::kSuccess;
}

int cudnnSetTensorNdDescriptor(void* one, int type, int rank, const int* extents,
                               const int* strides) {
  if (rank < 4) return kBadParam;
  Of(one).type = type;
  Of(one).extents.assign(extents, extents + rank);
  Of(one).strides.assign(strides, strides + rank);
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

int cudnnSoftmaxForward(void*, int algorithm, int mode, const void*, void* described, const void* x,
                        const void*, void*, void* y) {
  if (algorithm != dnn::kAccurate || mode != dnn::kAcrossChannels) return kBadParam;
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
      Taps(in, how, how.extents, at, [&](const Place& from) {
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

int cudnnBatchNormalizationForwardInference(void*, int mode, const void*, const void*,
                                            void* described, const void* x, void*, void* y,
                                            void* channels, const void* scale, const void* bias,
                                            const void* mean, const void* variance,
                                            double epsilon) {
  Object shape = Of(described), each = Of(channels);
  if (mode != dnn::kSpatial || each.type != dnn::kFloat) return kBadParam;
  if (each.extents[1] != shape.extents[1] || each.spatial(0) * each.spatial(1) != 1)
    return kBadParam;
  if (!AllOnDevice({x, y, scale, bias, mean, variance})) return Lose(kIllegalAddress);
  return Enqueue(current_stream, "cudnnBatchNormalization", [=] {
    Dtype type = Width(shape.type);
    auto of = [](const void* all, int c) { return static_cast<const float*>(all)[c]; };
    ForEach(shape, [&](const Place& at) {
      float normed = (Load(x, type, Offset(shape, at)) - of(mean, at.c)) /
                     std::sqrt(of(variance, at.c) + static_cast<float>(epsilon));
      Store(y, type, Offset(shape, at), normed * of(scale, at.c) + of(bias, at.c));
    });
  });
}

int cudnnTransformTensor(void*, const void*, void* from, const void* x, const void*, void* to,
                         void* y) {
  Object in = Of(from), out = Of(to);
  if (in.extents != out.extents || in.type != out.type) return kBadParam;
  if (!AllOnDevice({x, y})) return Lose(kIllegalAddress);
  return Enqueue(current_stream, "cudnnTransformTensor", [=] {
    Dtype type = Width(in.type);
    auto offset = [](const Object& one, const Place& at) {
      const int places[] = {at.n, at.c, at.d, at.h, at.w};
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < one.strides.size(); ++i) {
        sum += static_cast<std::int64_t>(places[i]) * one.strides[i];
      }
      return sum;
    };
    ForEach(in, [&](const Place& at) {
      Store(y, type, offset(out, at), Load(x, type, offset(in, at)));
    });
  });
}

}  // extern "C"
