// What the graphs of the simulated cuDNN compute, one operation after the other, each value as dense float32; and
// whether an operation's extents fit.
#include <algorithm>
#include <cmath>
#include <functional>

#include "cudnn_graph.h"

namespace simulated {
namespace {

struct Dense {
  Longs dims;
  std::vector<float> data;
};

std::int64_t Product(const Longs& extents) {
  std::int64_t product = 1;
  for (std::int64_t one : extents) product *= one;
  return product;
}

// Visits every place of `dims`, in row-major order.
void ForEach(const Longs& dims, const std::function<void(const Longs&)>& visit) {
  Longs at(dims.size(), 0);
  for (std::int64_t left = Product(dims); left > 0; --left) {
    visit(at);
    for (std::size_t i = dims.size(); i-- > 0;) {
      if (++at[i] < dims[i]) break;
      at[i] = 0;
    }
  }
}

std::int64_t Offset(const Longs& at, const Longs& strides) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < at.size(); ++i) offset += at[i] * strides[i];
  return offset;
}

// The element at a place of a larger tensor: a dimension of extent 1 is repeated.
float At(const Dense& of, const Longs& place) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < place.size(); ++i) {
    offset = offset * of.dims[i] + (of.dims[i] == 1 ? 0 : place[i]);
  }
  return of.data[static_cast<std::size_t>(offset)];
}

Dense Read(const Descriptor& tensor, const void* from) {
  Dense made{tensor.dims(), {}};
  const Longs strides = tensor.strides();
  ForEach(made.dims, [&](const Longs& at) {
    made.data.push_back(Load(from, WidthOf(tensor.type()), Offset(at, strides)));
  });
  return made;
}

void Write(const Descriptor& tensor, const Dense& value, void* to) {
  std::size_t next = 0;
  const Longs strides = tensor.strides();
  ForEach(value.dims, [&](const Longs& at) {
    Store(to, WidthOf(tensor.type()), Offset(at, strides), value.data[next++]);
  });
}

Dense Make(const Longs& dims, const std::function<float(const Longs&)>& element) {
  Dense made{dims, {}};
  made.data.reserve(static_cast<std::size_t>(Product(dims)));
  ForEach(dims, [&](const Longs& at) { made.data.push_back(element(at)); });
  return made;
}

Dense Rounded(Dense value) {
  for (float& one : value.data) one = RoundToTf32(one);
  return value;
}

Dense Convolve(const Descriptor& operation, const Dense& x, const Dense& w) {
  const Descriptor& how = *operation.Get(dnn::kOperationConvolutionDescriptor);
  const Longs pads = how.All<std::int64_t>(dnn::kPrePads);
  const Longs steps = how.All<std::int64_t>(dnn::kStrides);
  const Longs spread = how.All<std::int64_t>(dnn::kDilations);
  const Longs dims = operation.Get(dnn::kConvolutionY)->dims();
  const std::int64_t channels = w.dims[1], per_group = dims[1] / (x.dims[1] / channels);
  Longs window(w.dims.begin() + 1, w.dims.end());
  return Make(dims, [&](const Longs& at) {
    float sum = 0;
    ForEach(window, [&](const Longs& tap) {
      Longs from = {at[0], at[1] / per_group * channels + tap[0]}, weight = {at[1]};
      weight.insert(weight.end(), tap.begin(), tap.end());
      for (std::size_t i = 0; i < pads.size(); ++i) {
        from.push_back(at[i + 2] * steps[i] - pads[i] + tap[i + 1] * spread[i]);
        if (from.back() < 0 || from.back() >= x.dims[i + 2]) return;
      }
      sum += At(x, from) * At(w, weight);
    });
    return sum;
  });
}

Dense Multiply(const Descriptor& operation, const Dense& a, const Dense& b) {
  const std::size_t last = a.dims.size() - 1;
  return Make(operation.Get(dnn::kMatmulC)->dims(), [&](const Longs& at) {
    Longs left = at, right = at;
    float sum = 0;
    for (std::int64_t k = 0; k < a.dims[last]; ++k) {
      left[last] = right[last - 1] = k;
      sum += At(a, left) * At(b, right);
    }
    return sum;
  });
}

float Activated(const Descriptor& how, float x) {
  switch (how.One<int>(dnn::kPointwiseMode)) {
    case dnn::kExp:
      return std::exp(x);
    case dnn::kLog:
      return std::log(x);
    case dnn::kReluForward:
      return std::min(std::max(x, 0.0f),
                      static_cast<float>(how.One<double>(dnn::kReluUpper, 1e30)));
    case dnn::kTanhForward:
      return std::tanh(x);
    case dnn::kSigmoidForward:
      return 1 / (1 + std::exp(-x));
    case dnn::kEluForward:
      return x > 0 ? x : static_cast<float>(how.One<double>(dnn::kEluAlpha, 1)) * std::expm1(x);
    case dnn::kGeluForward:
      return 0.5f * x * (1 + std::erf(x / std::sqrt(2.0f)));
    case dnn::kGeluTanhForward:
      return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case dnn::kSoftplusForward: {
      auto beta = static_cast<float>(how.One<double>(dnn::kSoftplusBeta, 1));
      return std::log1p(std::exp(beta * x)) / beta;
    }
    case dnn::kSwishForward:
      return x / (1 + std::exp(-static_cast<float>(how.One<double>(dnn::kSwishBeta, 1)) * x));
    default:
      return x;
  }
}

bool IsBinary(int mode) {
  return mode == dnn::kAdd || mode == dnn::kSub || mode == dnn::kMul || mode == dnn::kDiv;
}

Dense Elementwise(const Descriptor& operation, const Dense& x, const Dense* b) {
  const Descriptor& how = *operation.Get(dnn::kOperationPointwiseDescriptor);
  const int mode = how.One<int>(dnn::kPointwiseMode);
  return Make(operation.Get(dnn::kPointwiseY)->dims(), [&](const Longs& at) {
    const float left = At(x, at);
    if (b == nullptr) return Activated(how, left);
    const float right = At(*b, at);
    return mode == dnn::kAdd   ? left + right
           : mode == dnn::kSub ? left - right
           : mode == dnn::kMul ? left * right
                               : left / right;
  });
}

Dense Reduce(const Descriptor& operation, const Dense& x) {
  const bool most =
      operation.Get(dnn::kOperationReductionDescriptor)->One<int>(dnn::kReductionMode) ==
      dnn::kReduceMax;
  Dense made = Make(operation.Get(dnn::kReductionY)->dims(),
                    [&](const Longs&) { return most ? -INFINITY : 0.0f; });
  ForEach(x.dims, [&](const Longs& at) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
      offset = offset * made.dims[i] + (made.dims[i] == 1 ? 0 : at[i]);
    }
    float& kept = made.data[static_cast<std::size_t>(offset)];
    kept = most ? std::max(kept, At(x, at)) : kept + At(x, at);
  });
  return made;
}

// Layer and RMS norm are over all dimensions but the first, instance norm over all but the first two.
Dense Normalize(const Descriptor& operation, const Dense& x, const Dense& scale, const Dense* bias,
                float epsilon) {
  const int mode = operation.One<int>(dnn::kNormMode);
  std::int64_t rows = x.dims[0] * (mode == dnn::kInstanceNorm ? x.dims[1] : 1);
  const std::int64_t length = Product(x.dims) / rows;
  std::vector<float> means, factors;
  for (std::int64_t row = 0; row < rows; ++row) {
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < length; ++i) sum += x.data[row * length + i];
    const double mean = mode == dnn::kRmsNorm ? 0 : sum / length;
    for (std::int64_t i = 0; i < length; ++i)
      squares += std::pow(x.data[row * length + i] - mean, 2);
    means.push_back(static_cast<float>(mean));
    factors.push_back(static_cast<float>(1 / std::sqrt(squares / length + epsilon)));
  }
  std::int64_t place = 0;
  return Make(x.dims, [&](const Longs& at) {
    const auto row = static_cast<std::size_t>(place++ / length);
    float normed = (At(x, at) - means[row]) * factors[row] * At(scale, at);
    return bias == nullptr ? normed : normed + At(*bias, at);
  });
}

bool Repeats(const Longs& small, const Longs& whole) {
  if (small.size() != whole.size()) return false;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (small[i] != whole[i] && small[i] != 1) return false;
  }
  return true;
}

int CheckConvolution(const Descriptor& operation) {
  const Longs x = operation.Get(dnn::kConvolutionX)->dims();
  const Longs w = operation.Get(dnn::kConvolutionW)->dims();
  const Longs y = operation.Get(dnn::kConvolutionY)->dims();
  const Descriptor& how = *operation.Get(dnn::kOperationConvolutionDescriptor);
  const auto spatial = static_cast<std::size_t>(how.One<std::int64_t>(dnn::kSpatialDims));
  Longs found[4];
  int next = 0;
  for (int attribute : {dnn::kPrePads, dnn::kPostPads, dnn::kStrides, dnn::kDilations}) {
    found[next] = how.All<std::int64_t>(attribute);
    if (found[next++].size() != spatial) return kShapeMismatch;
  }
  if (x.size() != spatial + 2 || w.size() != x.size() || y.size() != x.size())
    return kShapeMismatch;
  if (x[1] % w[1] != 0 || y[1] != w[0] || y[0] != x[0]) return kShapeMismatch;
  for (std::size_t i = 0; i < spatial; ++i) {
    std::int64_t reach = (w[i + 2] - 1) * found[3][i] + 1;
    if (y[i + 2] != (x[i + 2] + found[0][i] + found[1][i] - reach) / found[2][i] + 1)
      return kShapeMismatch;
  }
  return 0;
}

int CheckMatmul(const Descriptor& operation) {
  const Longs a = operation.Get(dnn::kMatmulA)->dims(), b = operation.Get(dnn::kMatmulB)->dims();
  Longs c = operation.Get(dnn::kMatmulC)->dims();
  const std::size_t rank = c.size();
  if (rank < 2 || a.size() != rank || b.size() != rank) return kShapeMismatch;
  bool fits =
      a[rank - 1] == b[rank - 2] && a[rank - 2] == c[rank - 2] && b[rank - 1] == c[rank - 1];
  for (std::size_t i = 0; i + 2 < rank; ++i) fits = fits && a[i] == c[i] && b[i] == c[i];
  return fits ? 0 : kShapeMismatch;
}

int CheckNorm(const Descriptor& operation) {
  const Longs x = operation.Get(dnn::kNormX)->dims();
  const Longs scale = operation.Get(dnn::kNormScale)->dims();
  const Descriptor* bias = operation.Get(dnn::kNormBias);
  const int mode = operation.One<int>(dnn::kNormMode);
  if (operation.Get(dnn::kNormY)->dims() != x || x.size() < 2) return kShapeMismatch;
  if (!operation.Get(dnn::kNormEpsilon)->by_value()) return kBadParam;
  if (!Repeats(scale, x) || scale[0] != 1 || scale[1] != x[1]) return kShapeMismatch;
  if (bias != nullptr && bias->dims() != scale) return kShapeMismatch;
  return (bias == nullptr) == (mode == dnn::kRmsNorm) ? 0 : kBadParam;
}

}  // namespace

int CheckOperation(const Descriptor& operation) {
  switch (operation.kind) {
    case dnn::kConvolution:
      return CheckConvolution(operation);
    case dnn::kMatmul:
      return CheckMatmul(operation);
    case dnn::kNorm:
      return CheckNorm(operation);
    case dnn::kReduction:
      return Repeats(operation.Get(dnn::kReductionY)->dims(),
                     operation.Get(dnn::kReductionX)->dims())
                 ? 0
                 : kShapeMismatch;
    default: {
      const Descriptor* b = operation.Get(dnn::kPointwiseB);
      const Longs y = operation.Get(dnn::kPointwiseY)->dims();
      int mode = operation.Get(dnn::kOperationPointwiseDescriptor)->One<int>(dnn::kPointwiseMode);
      if (IsBinary(mode) != (b != nullptr)) return kBadParam;
      bool fits = Repeats(operation.Get(dnn::kPointwiseX)->dims(), y);
      return fits && (b == nullptr || Repeats(b->dims(), y)) ? 0 : kShapeMismatch;
    }
  }
}

void Compute(const Descriptor& graph, const std::map<std::int64_t, void*>& pointers, bool rounds) {
  std::map<std::int64_t, Dense> values;
  for (const Descriptor* operation : OperationsOf(graph)) {
    const Ports& ports = PortsOf(operation->kind);
    std::vector<const Dense*> read;
    for (int port : ports.reads) {
      const Descriptor* tensor = operation->Get(port);
      if (tensor != nullptr && values.count(tensor->id()) == 0) {
        values[tensor->id()] = Read(*tensor, pointers.at(tensor->id()));
      }
      read.push_back(tensor == nullptr ? nullptr : &values[tensor->id()]);
    }
    const Descriptor& result = *operation->Get(ports.writes);
    const bool product = operation->kind == dnn::kConvolution || operation->kind == dnn::kMatmul;
    Dense factors[2];
    for (std::size_t i = 0; rounds && product && i < 2; ++i) {
      factors[i] = Rounded(*read[i]);
      read[i] = &factors[i];
    }
    Dense made = operation->kind == dnn::kConvolution ? Convolve(*operation, *read[0], *read[1])
                 : operation->kind == dnn::kMatmul    ? Multiply(*operation, *read[0], *read[1])
                 : operation->kind == dnn::kPointwise ? Elementwise(*operation, *read[0], read[1])
                 : operation->kind == dnn::kReduction
                     ? Reduce(*operation, *read[0])
                     : Normalize(*operation, *read[0], *read[1], read[2], read[3]->data[0]);
    for (float& one : made.data) {  // rounded to the value's type, in memory or not
      alignas(4) char stored[4];
      Store(stored, WidthOf(result.type()), 0, one);
      one = Load(stored, WidthOf(result.type()), 0);
    }
    if (!result.is_virtual()) Write(result, made, pointers.at(result.id()));
    values[result.id()] = std::move(made);
  }
}

}  // namespace simulated
