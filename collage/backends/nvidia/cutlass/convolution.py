"""The source of one convolution: CUTLASS's implicit product, between two copies.

CUTLASS convolves tensors whose channels lie side by side, in multiples of its access to memory; those of
ONNX are planes, of any number. So a kernel of three launches: the input is turned and its channels filled up
with zeros, the templates compute, and the result is turned back. Weights and bias are turned when the
kernel is built. A bias is the product's epilogue; so is the activation, unless a residual comes between:
residual and activation are then part of the copy back, which reads the residual where it lies. What the
copies cost is part of what is measured.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from collage.backends.nvidia.chain import Chain, StepKind
from collage.backends.nvidia.compiler import CudaSource
from collage.backends.nvidia.convolution import (
    ConvolutionValues,
    Window,
    convolution_node_refusal,
    folded,
    operand_refusal,
    steps_refusal,
)
from collage.backends.nvidia.cutlass.source import (
    ACTIVATIONS,
    BITS,
    Arithmetic,
    Tile,
    activation_refusal,
    cutlass_source,
)
from collage.backends.nvidia.operands import ABSENT, Operands
from collage.frontend.model import Function

LARGEST_WINDOW = 32
"""Of the iterators that are used here: they keep one bit for each place."""
MOST_BYTES = 1 << 31
ALIGNMENT = 256


@dataclass(frozen=True)
class Convolution:
    """A convolution to instantiate; `x` and `residual` are numbers of inputs, ABSENT for none.

    Extents are those of the model: images, channels, height, width of input and output, and of the window
    [outputs, inputs, height, width].
    """

    arithmetic: Arithmetic
    tile: Tile
    input_extents: tuple[int, ...]
    extents: tuple[int, ...]
    window: Window
    weights: np.ndarray
    bias: np.ndarray
    activation: str
    x: int
    residual: int
    inputs: int

    @property
    def channels(self) -> int:
        """Of the input as it is convolved."""
        return _filled(self.input_extents[1], self.arithmetic.step)

    @property
    def outputs(self) -> int:
        """Channels of the result as it is computed."""
        return _filled(self.extents[1], self.arithmetic.step)

    @property
    def constants(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights [outputs, height, width, channels] and bias [outputs], filled up with zeros."""
        outputs, channels, *window = self.weights.shape
        more = (0, self.outputs - outputs), (0, self.channels - channels)
        turned = np.pad(self.weights, (*more, *[(0, 0)] * len(window))).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(turned), np.pad(self.bias, more[0])

    @property
    def result_offset(self) -> int:
        """Where in the scratch memory the result is, in bytes: after the input."""
        images, _, *pixels = self.input_extents
        return _filled(self._bytes(images, *pixels, self.channels), ALIGNMENT)

    @property
    def scratch(self) -> int:
        """Bytes of device memory for the two turned tensors."""
        images, _, *pixels = self.extents
        return self.result_offset + self._bytes(images, *pixels, self.outputs)

    def source(self) -> CudaSource:
        """Generate the CUDA C++. It takes the inputs, the constants, scratch memory and the result.

        Raises:
            BackendError: there are no CUTLASS headers.
        """
        return cutlass_source(TEMPLATE, _places(self))

    def _bytes(self, *extents: int) -> int:
        return prod(extents) * BITS[self.arithmetic.dtype] // 8


def convolution_refusal(function: Function, chain: Chain, *, rounds: bool = False) -> str | None:
    """Return why CUTLASS does not compute the chain, or None when it does.

    Args:
        function: of the chain.
        chain: a convolution and what follows it.
        rounds: float32 may be rounded to TF32.
    """
    node = function.graph.nodes[chain.anchor]
    if reason := operand_refusal(function, node) or convolution_node_refusal(function, node):
        return reason
    values, window = ConvolutionValues(function, chain), Window(function, chain.anchor)
    arithmetic = Arithmetic(values.dtype, rounds)
    _, _, *kernel = function.graph.types[node.inputs[1]].shape
    if len(kernel) > 2:
        return f"a convolution over {len(kernel)} dimensions: of CUTLASS's only those over two are used"
    if window.groups != 1:
        return f"a convolution of {window.groups} groups: CUTLASS's is one product"
    if max(kernel) > LARGEST_WINDOW:
        return f"a window of {max(kernel)}: CUTLASS's iterator has {LARGEST_WINDOW} places"
    if _most_bytes(values, arithmetic) >= MOST_BYTES:
        return "a tensor of 2 GiB or more: CUTLASS counts in 31 bits"
    return steps_refusal(
        function, chain, lambda step: activation_refusal(step.name, step.number, arithmetic)
    )


def read_convolution(
    function: Function, chain: Chain, operands: Operands, tile: Tile, *, rounds: bool = False
) -> Convolution:
    """Return what to instantiate for a chain that is not refused."""
    values = ConvolutionValues(function, chain)
    weights, bias = folded(function, chain)
    activation = chain.find(StepKind.ACTIVATION)
    return Convolution(
        Arithmetic(values.dtype, rounds), tile, tuple(values.input_extents), tuple(values.extents),
        Window(function, chain.anchor), weights, bias, activation.name if activation else "",
        operands.number(values.x), operands.number(values.residual), len(operands.inputs),
    )  # fmt: skip


def _places(one: Convolution) -> dict[str, str]:
    images, channels, height, width = one.input_extents
    _, outputs, rows, columns = one.extents
    _, _, window_height, window_width = one.weights.shape
    has_residual, activation = one.residual != ABSENT, ACTIVATIONS[one.activation]
    places = {
        "x": one.x, "weights": one.inputs, "bias": one.inputs + 1, "scratch": one.inputs + 2,
        "output": one.inputs + 3, "count": one.inputs + 4,
        "residual": one.residual if has_residual else one.inputs + 3,
        "result_offset": one.result_offset, "images": images, "channels": channels,
        "filled_channels": one.channels, "outputs": outputs, "filled_outputs": one.outputs,
        "height": height, "width": width, "rows": rows, "columns": columns,
        "window_height": window_height, "window_width": window_width,
        "pad_height": one.window.pads_before[0], "pad_width": one.window.pads_before[1],
        "stride_height": one.window.strides[0], "stride_width": one.window.strides[1],
        "dilation_height": one.window.dilations[0], "dilation_width": one.window.dilations[1],
        "has_bias": "1.0f" if one.bias.any() else "0.0f",
        "has_residual": "true" if has_residual else "false",
        "epilogue": ACTIVATIONS[""] if has_residual else activation,
        "last": activation if has_residual else ACTIVATIONS[""],
        "header": "cutlass/conv/kernel/default_conv2d_fprop.h",
    }  # fmt: skip
    return {**one.arithmetic.places(one.tile), **{name: str(at) for name, at in places.items()}}


def _most_bytes(values: ConvolutionValues, arithmetic: Arithmetic) -> int:
    tensors = (values.input_extents, values.extents)
    bits = BITS[arithmetic.dtype]
    return max(
        images * _filled(channels, arithmetic.step) * prod(pixels) * bits // 8
        for images, channels, *pixels in tensors
    )


def _filled(extent: int, step: int) -> int:
    return -(-extent // step) * step


TEMPLATE = """
#include "cutlass/conv/device/implicit_gemm_convolution.h"

namespace {

constexpr int kImages = @images@, kChannels = @channels@, kFilledChannels = @filled_channels@;
constexpr int kOutputs = @outputs@, kFilledOutputs = @filled_outputs@;
constexpr int kPixels = @height@ * @width@, kResults = @rows@ * @columns@;
constexpr int kSide = 32, kThreadRows = 8, kMostImages = 65535;
constexpr bool kHasResidual = @has_residual@;

using Nhwc = cutlass::layout::TensorNHWC;
using Epilogue = cutlass::epilogue::thread::LinearCombinationGeneric<
    cutlass::epilogue::thread::@epilogue@, Element, @aligned@, float, float>;
using Kernel = typename cutlass::conv::kernel::DefaultConv2dFprop<
    Element, Nhwc, Element, Nhwc, Element, Nhwc, float, cutlass::arch::@class@, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<@block@>, cutlass::gemm::GemmShape<@warp@>,
    cutlass::gemm::GemmShape<@instruction@>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, @stages@,
    cutlass::arch::OpMultiplyAdd, cutlass::conv::IteratorAlgorithm::kOptimized,
    cutlass::conv::StrideSupport::kStrided, @aligned@, @aligned@>::Kernel;
using Convolution = cutlass::conv::device::ImplicitGemmConvolution<Kernel>;

dim3 Squares(int pixels, int channels) {
  return dim3((pixels + kSide - 1) / kSide, (channels + kSide - 1) / kSide,
              kImages < kMostImages ? kImages : kMostImages);
}

void CheckCopy() {
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "a copy: " << cudaGetErrorString(error);
}

}  // namespace

// Planes [kChannels][kPixels] of every image to pixels [kPixels][kFilledChannels], by squares.
extern "C" __global__ void collage_to_channels_last(const Element* from, Element* to) {
  __shared__ Element square[kSide][kSide + 1];
  const int pixel = blockIdx.x * kSide, channel = blockIdx.y * kSide;
  for (int image = blockIdx.z; image < kImages; image += gridDim.z) {
    for (int i = threadIdx.y; i < kSide; i += kThreadRows) {
      const bool is_inside = channel + i < kChannels && pixel + threadIdx.x < kPixels;
      square[i][threadIdx.x] =
          is_inside ? from[(image * kChannels + channel + i) * kPixels + pixel + threadIdx.x]
                    : Element(0.0f);
    }
    __syncthreads();
    for (int i = threadIdx.y; i < kSide; i += kThreadRows) {
      if (pixel + i < kPixels && channel + threadIdx.x < kFilledChannels) {
        to[(image * kPixels + pixel + i) * kFilledChannels + channel + threadIdx.x] =
            square[threadIdx.x][i];
      }
    }
    __syncthreads();
  }
}

// Pixels [kResults][kFilledOutputs] of every image to planes [kOutputs][kResults], with what comes last.
extern "C" __global__ void collage_to_channels_first(const Element* from, const Element* residual,
                                                     Element* to) {
  __shared__ Element square[kSide][kSide + 1];
  cutlass::epilogue::thread::@last@<float> last;
  const int pixel = blockIdx.x * kSide, channel = blockIdx.y * kSide;
  for (int image = blockIdx.z; image < kImages; image += gridDim.z) {
    for (int i = threadIdx.y; i < kSide; i += kThreadRows) {
      if (pixel + i < kResults && channel + threadIdx.x < kFilledOutputs) {
        square[i][threadIdx.x] =
            from[(image * kResults + pixel + i) * kFilledOutputs + channel + threadIdx.x];
      }
    }
    __syncthreads();
    for (int i = threadIdx.y; i < kSide; i += kThreadRows) {
      if (channel + i >= kOutputs || pixel + threadIdx.x >= kResults) continue;
      const int place = (image * kOutputs + channel + i) * kResults + pixel + threadIdx.x;
      float value = static_cast<float>(square[threadIdx.x][i]);
      if (kHasResidual) value += static_cast<float>(residual[place]);
      to[place] = Element(last(value));
    }
    __syncthreads();
  }
}

namespace {

void Run(tvm::ffi::PackedArgs args, cudaStream_t stream) {
  const auto* x = static_cast<const Element*>(Data(args[@x@]));
  auto* weights = static_cast<Element*>(Data(args[@weights@]));
  auto* bias = static_cast<Element*>(Data(args[@bias@]));
  auto* scratch = static_cast<char*>(Data(args[@scratch@]));
  auto* turned = reinterpret_cast<Element*>(scratch);
  auto* result = reinterpret_cast<Element*>(scratch + std::size_t{@result_offset@});
  const auto* residual = static_cast<const Element*>(Data(args[@residual@]));
  auto* output = static_cast<Element*>(Data(args[@output@]));

  const dim3 threads(kSide, kThreadRows, 1);
  collage_to_channels_last<<<Squares(kPixels, kFilledChannels), threads, 0, stream>>>(x, turned);
  CheckCopy();
  cutlass::conv::Conv2dProblemSize problem(
      kImages, @height@, @width@, kFilledChannels, kFilledOutputs, @window_height@, @window_width@,
      @rows@, @columns@, @pad_height@, @pad_width@, @stride_height@, @stride_width@,
      @dilation_height@, @dilation_width@, cutlass::conv::Mode::kCrossCorrelation);
  Launch<Convolution>(
      {problem,
       {turned, Nhwc::packed({kImages, @height@, @width@, kFilledChannels})},
       {weights, Nhwc::packed({kFilledOutputs, @window_height@, @window_width@, kFilledChannels})},
       {bias, Nhwc(Nhwc::Stride(0))},
       {result, Nhwc::packed({kImages, @rows@, @columns@, kFilledOutputs})},
       {1.0f, @has_bias@}},
      stream);
  collage_to_channels_first<<<Squares(kResults, kFilledOutputs), threads, 0, stream>>>(
      result, residual, output);
  CheckCopy();
}

}  // namespace
"""
