// 3x3 convolutions with stride 1 by Winograd's algorithm, with bias, residual and activations; see
// winograd.h. Blob: tensors are the weights (u, or [..][3][3][..]), the bias, and the four parameters of
// the activations (a and b of the first, a and b of the last). Header entries, all integers:
//   tile                         outputs per tile and side: 2 or 4
//   batch, channels_in, channels_out, height, width, out_height, out_width, pad_top, pad_left
//   first, last                  Activation before and after the residual is added
//   inputs                       the first one is convolved
//   residual                     which input is added, -1 for none
//   transformed                  1: the weights are u; 0: they are transformed in every run
// and "instructions" (text, for tests): the instruction set to use, if the machine has it.
#include "winograd.h"

#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernel.h"
#include "native_kernel.h"
#include "thread_pool.h"

namespace collage {
namespace winograd {
namespace {

constexpr std::int64_t kBlockBytes = 256 << 10;  // of v, at most: a quarter of a usual second-level cache
constexpr std::int64_t kLeastTiles = 28;         // in a block: fewer reuse the weights too little
constexpr std::int64_t kDepth = 32;              // input channels whose weights are transformed at once

const Instructions& ChooseInstructions(int size, const std::string& name) {
  return ChooseFor("winograd", Versions<Instructions>{Avx512(size), Avx2(size), Plain(size)}, name);
}

// Floats from one point to the next: an odd number of cache lines, so that the points of one tile
// do not fall into one set of the cache.
std::int64_t OddLines(std::int64_t floats) { return (DivideUp(floats, 16) | 1) * 16; }

thread_local Scratch input_scratch, weight_scratch, product_scratch;

class WinogradKernel : public Kernel {
 public:
  explicit WinogradKernel(const KernelSpec& spec)
      : blob_(spec.blob),
        threads_(std::max(1, spec.threads)),
        size_(blob_->GetInt("tile", 0)),
        instructions_(CheckedInstructions()) {
    ReadGeometry();
    ReadTensors();
    PlanBlocks();
  }

  void Run(DLTensor* const* args, int count) final {
    if (count != inputs_ + 1) {
      TVM_FFI_THROW(ValueError) << "winograd kernel: expected " << inputs_ + 1 << " tensors, got "
                                << count;
    }
    auto data = [&](std::int64_t i) { return static_cast<float*>(DataOf(args[i])); };
    const float* input = data(0);
    float* output = data(inputs_);
    epilogue_.residual = residual_ < 0 ? nullptr : data(residual_);
    if (shared_block_) {
      for (std::int64_t block = 0; block < blocks_; ++block) RunShared(block, input, output);
      return;
    }
    ParallelFor(threads_, blocks_, [&](std::int64_t block, int) {
      Range tiles = TilesOf(block);
      float* v = input_scratch.AtLeast(points_ * v_stride_);
      for (std::int64_t group = 0; group < groups_; ++group) Transform(group, tiles, input, v);
      for (std::int64_t panel = 0; panel < panels_; ++panel) Multiply(panel, tiles, v, output);
    });
  }

 private:
  const Instructions& CheckedInstructions() const {
    if (size_ != 2 && size_ != 4) TVM_FFI_THROW(ValueError) << "winograd kernel: no tile " << size_;
    return ChooseInstructions(static_cast<int>(size_), blob_->GetString("instructions", ""));
  }

  void ReadGeometry() {
    auto get = [&](const char* key) { return blob_->GetInt(key, 0); };
    geometry_ = {get("channels_in"), get("channels_out"), get("height"),  get("width"),
                 get("out_height"),  get("out_width"),    get("pad_top"), get("pad_left"), 0, 0};
    geometry_.tiles_y = DivideUp(geometry_.out_height, size_);
    geometry_.tiles_x = DivideUp(geometry_.out_width, size_);
    tiles_ = get("batch") * geometry_.tiles_y * geometry_.tiles_x;
    points_ = (size_ + 2) * (size_ + 2);
    groups_ = DivideUp(geometry_.channels_in, instructions_.lanes);
    panels_ = DivideUp(geometry_.channels_out, kPanel);
    transformed_ = get("transformed") != 0;
    panel_floats_ = (transformed_ ? points_ : 9) * geometry_.channels_in * kPanel;
    inputs_ = blob_->GetInt("inputs", 1);
    residual_ = blob_->GetInt("residual", -1);
    if (residual_ >= inputs_) TVM_FFI_THROW(ValueError) << "winograd kernel: no such residual";
    epilogue_.first.kind = static_cast<Activation>(get("first"));
    epilogue_.last.kind = static_cast<Activation>(get("last"));
  }

  void ReadTensors() {
    const std::vector<TensorView>& tensors = blob_->tensors();
    auto weights = static_cast<std::size_t>(panels_ * panel_floats_);
    if (tensors.size() != 3 || tensors[0].nbytes != weights * sizeof(float) ||
        tensors[1].nbytes != static_cast<std::size_t>(geometry_.channels_out) * sizeof(float) ||
        tensors[2].nbytes != 4 * sizeof(float)) {
      TVM_FFI_THROW(ValueError) << "winograd kernel: the blob's tensors do not fit its header";
    }
    weights_ = static_cast<const float*>(tensors[0].data);
    epilogue_.bias = static_cast<const float*>(tensors[1].data);
    const float* parameters = static_cast<const float*>(tensors[2].data);
    epilogue_.first.a = parameters[0], epilogue_.first.b = parameters[1];
    epilogue_.last.a = parameters[2], epilogue_.last.b = parameters[3];
  }

  // Blocks of nearly equal size whose v stays in the cache. With several threads each takes blocks
  // of its own if there are enough tiles, else all work on one block.
  void PlanBlocks() {
    std::int64_t bytes = points_ * geometry_.channels_in * static_cast<std::int64_t>(sizeof(float));
    std::int64_t most = std::max(kBlockBytes / bytes, kLeastTiles);
    shared_block_ = threads_ > 1 && tiles_ < threads_ * kLeastTiles;
    blocks_ = DivideUp(tiles_, most);
    if (!shared_block_) blocks_ = DivideUp(blocks_, threads_) * threads_;
    block_tiles_ = DivideUp(tiles_, blocks_);
    blocks_ = DivideUp(tiles_, block_tiles_);
    v_stride_ = OddLines(groups_ * block_tiles_ * instructions_.lanes);
    m_stride_ = OddLines(kPanel * block_tiles_);
  }

  Range TilesOf(std::int64_t block) const {
    return {block * block_tiles_, std::min(tiles_, (block + 1) * block_tiles_)};
  }

  void RunShared(std::int64_t block, const float* input, float* output) {
    Range tiles = TilesOf(block);
    float* v = input_scratch.AtLeast(points_ * v_stride_);
    ParallelFor(threads_, groups_,
                [&](std::int64_t group, int) { Transform(group, tiles, input, v); });
    ParallelFor(threads_, panels_,
                [&](std::int64_t panel, int) { Multiply(panel, tiles, v, output); });
  }

  // Input channels of one group of lanes.
  void Transform(std::int64_t group, Range tiles, const float* input, float* v) {
    std::int64_t lanes = instructions_.lanes;
    instructions_.transform_input(geometry_, input, tiles, group * lanes,
                                  v + group * (tiles.last - tiles.first) * lanes, v_stride_);
  }

  // Output channels of one panel.
  void Multiply(std::int64_t panel, Range tiles, const float* v, float* output) {
    std::int64_t first = panel * kPanel, lanes = instructions_.lanes;
    std::int64_t channels = std::min(kPanel, geometry_.channels_out - first);
    std::int64_t count = tiles.last - tiles.first;
    const float* weights = weights_ + panel * panel_floats_;
    float* m = product_scratch.AtLeast(points_ * m_stride_);
    Product product{count,     geometry_.channels_in, channels, v_stride_, panel_floats_ / points_,
                    m_stride_, false,                 nullptr,  0};
    if (transformed_) {
      instructions_.multiply(product, v, weights, m);
    } else {
      MultiplyTransforming(product, v, weights, m);
    }
    for (std::int64_t done = 0; done < channels; done += lanes) {
      instructions_.transform_output(geometry_, epilogue_, tiles, first + done, m + done * count,
                                     m_stride_, output);
    }
  }

  // Transforms the weights of kDepth input channels, multiplies, and so on.
  void MultiplyTransforming(Product product, const float* v, const float* weights, float* m) {
    product.u_stride = OddLines(kDepth * kPanel);
    float* u = weight_scratch.AtLeast(points_ * product.u_stride);
    for (std::int64_t done = 0; done < geometry_.channels_in; done += kDepth) {
      product.depth = std::min(kDepth, geometry_.channels_in - done);
      instructions_.transform_weights(weights, product.depth, u, product.u_stride);
      weights += product.depth * 9 * kPanel;
      product.next = weights;
      product.next_floats = kDepth * 9 * kPanel;
      instructions_.multiply(product, v + done * product.tiles, u, m);
      product.add = true;
    }
  }

  std::shared_ptr<const Blob> blob_;  // owns weights and bias
  int threads_;
  std::int64_t size_;
  const Instructions& instructions_;
  Geometry geometry_{};
  Epilogue epilogue_{};
  const float* weights_ = nullptr;
  std::int64_t inputs_ = 1, residual_ = -1;
  bool shared_block_ = false, transformed_ = true;
  std::int64_t tiles_ = 0, points_ = 0, groups_ = 0, panels_ = 0, panel_floats_ = 0;
  std::int64_t blocks_ = 0, block_tiles_ = 0, v_stride_ = 0, m_stride_ = 0;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("collage.winograd_instructions", [] {
    return tvm::ffi::String(ChooseInstructions(4, "").name);
  });
}

const RegisterKernel kRegistered("winograd", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new WinogradKernel(spec));
});

}  // namespace
}  // namespace winograd
}  // namespace collage
