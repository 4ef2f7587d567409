// 3x3 convolutions with stride 1 by Winograd's algorithm, with bias, residual and activations; see
// winograd.h. Blob: tensors are the weights (u, or [..][3][3][..]), the bias, and the four parameters of
// the activations (a and b of the first, a and b of the last). Header entries, all integers:
//   tile                         outputs per tile and side: 2 or 4
//   batch, channels_in, channels_out, height, width, out_height, out_width, pad_top, pad_left
//   first, last                  Activation before and after the residual is added
//   inputs                       the first one is convolved, a second one is the residual
//   residual                     which input is added, -1 for none
//   transformed                  1: the weights are u; 0: they are transformed in every run
// and "instructions" (text, for tests): the instruction set to use, if the machine has it.
#include "kernels/winograd.h"

#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/kernel.h"
#include "kernels/native_kernel.h"
#include "core/sizes.h"
#include "core/thread_pool.h"

namespace collage {
namespace winograd {
namespace {

constexpr std::int64_t kBlockBytes =
    256 << 10;                            // of v, at most: a quarter of a usual second-level cache
constexpr std::int64_t kLeastTiles = 28;  // in a block: fewer reuse the weights too little
constexpr std::int64_t kDepth = 32;       // input channels whose weights are transformed at once

const Instructions& ChooseInstructions(int size, const std::string& name) {
  return ChooseFor("winograd", IsaTable<Instructions>{Avx512(size), Avx2(size), Plain(size)}, name);
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
    ReadArguments();
    ReadTensors();
    PlanBlocks();
  }

  void Run(DLTensor* const* args, int count) final {
    CheckArguments("winograd", expected_, args, count);
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
    auto get = [&](const char* key, std::int64_t least, std::int64_t most = kMostExtent) {
      return InRange(blob_->GetInt(key, 0), least, most,
                     std::string("winograd kernel: '") + key + "'");
    };
    geometry_ = {get("channels_in", 1),
                 get("channels_out", 1),
                 get("height", 1),
                 get("width", 1),
                 get("out_height", 1),
                 get("out_width", 1),
                 get("pad_top", 0),
                 get("pad_left", 0),
                 0,
                 0};
    const Geometry& g = geometry_;
    // A window of three; what is padded at the bottom and right follows.
    if (g.out_height + 2 < g.height + g.pad_top || g.out_width + 2 < g.width + g.pad_left) {
      TVM_FFI_THROW(ValueError)
          << "winograd kernel: 'out_height' and 'out_width' leave pixels of the "
             "input out";
    }
    batch_ = get("batch", 1);
    geometry_.tiles_y = DivideUp(g.out_height, size_);
    geometry_.tiles_x = DivideUp(g.out_width, size_);
    tiles_ = Times(batch_, g.tiles_y, g.tiles_x);
    points_ = (size_ + 2) * (size_ + 2);
    groups_ = DivideUp(g.channels_in, instructions_.lanes);
    panels_ = DivideUp(g.channels_out, kPanel);
    transformed_ = get("transformed", 0, 1) != 0;
    panel_floats_ = Times(transformed_ ? points_ : 9, g.channels_in, kPanel);
    epilogue_.first.kind = static_cast<Activation>(get("first", 0, kActivations - 1));
    epilogue_.last.kind = static_cast<Activation>(get("last", 0, kActivations - 1));
  }

  // The convolved input, a residual where that is another one, and the output.
  void ReadArguments() {
    inputs_ = InRange(blob_->GetInt("inputs", 1), 1, 2, "winograd kernel: 'inputs'");
    residual_ = InRange(blob_->GetInt("residual", -1), inputs_ == 2 ? 1 : -1, inputs_ - 1,
                        "winograd kernel: 'residual'");
    const Geometry& g = geometry_;
    Argument input{Times(batch_, g.channels_in, g.height, g.width), kFloat32};
    Argument output{Times(batch_, g.channels_out, g.out_height, g.out_width), kFloat32};
    for (const Argument& one : {input, output}) {
      BytesOf(Times(one.elements, sizeof(float)), "winograd kernel: the size of a tensor");
    }
    if (residual_ == 0 && input.elements != output.elements) {
      TVM_FFI_THROW(ValueError)
          << "winograd kernel: 'residual' is an input of another size than the "
             "output";
    }
    expected_ = {input};
    if (inputs_ == 2) expected_.push_back(output);
    expected_.push_back(output);
  }

  void ReadTensors() {
    const std::vector<TensorView>& tensors = blob_->tensors();
    auto holds = [&](std::size_t number, std::int64_t floats) {
      const TensorView& tensor = tensors[number];
      return tensor.is_float32() &&
             tensor.nbytes == BytesOf(Times(floats, sizeof(float)), "winograd kernel: a tensor");
    };
    if (tensors.size() != 3 || !holds(0, Times(panels_, panel_floats_)) ||
        !holds(1, geometry_.channels_out) || !holds(2, 4)) {
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
    std::int64_t bytes = Times(points_, geometry_.channels_in, sizeof(float));
    std::int64_t most = std::max(kBlockBytes / bytes, kLeastTiles);
    shared_block_ = threads_ > 1 && tiles_ < threads_ * kLeastTiles;
    blocks_ = DivideUp(tiles_, most);
    if (!shared_block_) blocks_ = DivideUp(blocks_, threads_) * threads_;
    block_tiles_ = DivideUp(tiles_, blocks_);
    blocks_ = DivideUp(tiles_, block_tiles_);
    v_stride_ = OddLines(Times(groups_, block_tiles_, instructions_.lanes));
    m_stride_ = OddLines(Times(kPanel, block_tiles_));
    BytesOf(Times(points_, std::max(v_stride_, m_stride_), sizeof(float)),
            "winograd kernel: the size of a block");
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
    Product product{count,
                    geometry_.channels_in,
                    channels,
                    v_stride_,
                    panel_floats_ / points_,
                    m_stride_,
                    false,
                    nullptr,
                    0};
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
  std::vector<Argument> expected_;
  std::int64_t batch_ = 1, inputs_ = 1, residual_ = -1;
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
