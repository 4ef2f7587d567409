// What the simulated cuDNN proposes for a graph: the answers that cuDNN 9.19 gave for an H200, in short.
#include <algorithm>

#include "cudnn_graph.h"

namespace simulated {
namespace {

constexpr std::int64_t kSome = 4096, kTooMuch = std::int64_t{1} << 40;

bool IsBy(const Descriptor& tensor, bool channels_last) {
  const Longs dims = tensor.dims(), strides = tensor.strides();
  Longs wanted(dims.size(), 1);
  std::int64_t step = channels_last ? dims[1] : 1;
  for (std::size_t i = dims.size(); i-- > (channels_last ? 2u : 1u);) {
    wanted[i] = step;
    step *= dims[i];
  }
  wanted[0] = step;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] > 1 && strides[i] != wanted[i]) return false;
  }
  return true;
}

const Descriptor* TensorOf(const Descriptor* operation, int port) { return operation->Get(port); }

int ModeOf(const Descriptor* operation) {
  if (operation->kind != dnn::kPointwise) return -1;
  return operation->Get(dnn::kOperationPointwiseDescriptor)->One<int>(dnn::kPointwiseMode);
}

// The operation after the first `place` ones that only adds a tensor of the given kind.
bool Adds(const std::vector<const Descriptor*>& all, std::size_t place, bool whole) {
  if (place >= all.size() || ModeOf(all[place]) != dnn::kAdd) return false;
  const Longs b = TensorOf(all[place], dnn::kPointwiseB)->dims();
  return whole == (b == TensorOf(all[place], dnn::kPointwiseY)->dims()) && (whole || b[0] == 1);
}

// A convolution, then a residual, a bias and ReLU: each may be missing, but no residual comes without a bias.
bool IsPlain(const std::vector<const Descriptor*>& all) {
  std::size_t place = 1;
  if (Adds(all, place, true)) {
    if (!Adds(all, ++place, false)) return false;
  }
  if (Adds(all, place, false)) ++place;
  if (place < all.size() && place > 1 && ModeOf(all[place]) == dnn::kReluForward) ++place;
  return place == all.size();
}

std::vector<Proposal> ForPlain(const Descriptor& x) {
  if (x.type() == dnn::kFloat) {
    return {{26, dnn::kNoteTensorCore, kSome}, {44, -1, kSome}, {11, -1, kTooMuch}, {0, -1, 0}};
  }
  return {{10, dnn::kNoteReducedPrecision, 0}, {10, dnn::kNoteTensorCore, kSome}, {11, -1, 0}};
}

std::vector<Proposal> ForFused(const std::vector<const Descriptor*>& all) {
  const Descriptor& x = *TensorOf(all[0], dnn::kConvolutionX);
  const Descriptor& w = *TensorOf(all[0], dnn::kConvolutionW);
  const Descriptor& y = *TensorOf(all.back(), dnn::kPointwiseY);
  for (const Descriptor* one : all) {
    const Descriptor* b = one->kind == dnn::kPointwise ? one->Get(dnn::kPointwiseB) : nullptr;
    if (one->kind != dnn::kConvolution && one->kind != dnn::kPointwise) return {};
    if (b != nullptr && !b->by_value() && !IsBy(*b, true)) return {};
  }
  if (!IsBy(w, true)) return {};
  std::vector<Proposal> found;
  const bool dense = w.dims()[1] == x.dims()[1];
  if (dense && IsBy(y, true)) found.push_back({7, dnn::kNoteTensorCore, 0});
  if (IsBy(x, true) && w.dims().size() == 4) found.push_back({8, -1, 0});
  return found;
}

// Of keys as of the others, the values of one place lie side by side.
bool IsAttention(const std::vector<const Descriptor*>& all) {
  static const std::vector<int> kModes = {dnn::kMul, dnn::kSub, dnn::kExp,
                                          dnn::kLog, dnn::kAdd, dnn::kDiv};
  std::vector<int> modes;
  int products = 0, sums = 0;
  for (const Descriptor* one : all) {
    products += one->kind == dnn::kMatmul;
    sums += one->kind == dnn::kReduction;
    if (one->kind == dnn::kPointwise) modes.push_back(ModeOf(one));
  }
  if (modes.size() == kModes.size() + 1 && modes[1] == dnn::kAdd) modes.erase(modes.begin() + 1);
  if (products != 2 || sums != 2 || modes != kModes) return false;
  const Descriptor& query = *TensorOf(all[0], dnn::kMatmulA);
  const Descriptor& keys = *TensorOf(all[0], dnn::kMatmulB);
  const Descriptor& values = *TensorOf(all.back(), dnn::kMatmulB);
  const Descriptor& weights = *TensorOf(all.back(), dnn::kMatmulA);
  const Descriptor& scale = *TensorOf(all[1], dnn::kPointwiseB);
  const std::int64_t length = query.dims()[3];
  return query.dims().size() == 4 && query.type() != dnn::kFloat && length % 8 == 0 &&
         length <= 256 && scale.by_value() && weights.type() == query.type() &&
         query.strides()[3] == 1 && keys.strides()[2] == 1 && values.strides()[3] == 1;
}

}  // namespace

std::vector<Proposal> Propose(const Descriptor& graph) {
  const std::vector<const Descriptor*> all = OperationsOf(graph);
  if (all[0]->kind == dnn::kConvolution) {
    return IsPlain(all) ? ForPlain(*TensorOf(all[0], dnn::kConvolutionX)) : ForFused(all);
  }
  if (all.size() == 1 && all[0]->kind == dnn::kNorm) {
    const int mode = all[0]->One<int>(dnn::kNormMode);
    if (mode == dnn::kInstanceNorm) return {{2, -1, kSome}, {3, -1, kSome}};
    return {{1, -1, kSome}};
  }
  if (IsAttention(all)) return {{6, dnn::kNoteTensorCore, 256}, {5, dnn::kNoteTensorCore, 256}};
  return {};
}

}  // namespace simulated
