"""CUDA source of one convolution: CUTLASS's implicit GEMM between two layout copies.

CUTLASS convolves channels-last tensors with channels in multiples of its memory access; ONNX has channels
first, in any number. So a kernel is three launches: a copy of the input to channels last, padded with zeros,
the templates, and a copy of the result to channels first. Weights and bias are converted at compilation. The
bias is the GEMM's epilogue; so is the activation, except after a residual: residual and activation are then
part of the last copy. The copies are part of the measured cost.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from collage.backends.common.window import Window
from collage.backends.nvidia.chain import Chain, StepKind
from collage.backends.nvidia.compiler import CudaSource
from collage.backends.nvidia.convolution import (
    ConvolutionValues,
    convolution_groups,
    convolution_node_refusal,
    convolution_window,
    folded,
    operand_refusal,
    steps_refusal,
)
from collage.backends.nvidia.cutlass.source import (
    BITS,
    FUNCTORS,
    Arithmetic,
    Tile,
    activation_refusal,
    cutlass_source,
)
from collage.backends.nvidia.operands import ABSENT, Operands
from collage.frontend.model import Function

LARGEST_WINDOW = 32
"""Largest window extent of CUTLASS's iterators: they have one bit per position."""
MOST_BYTES = 1 << 31
CUTLASS_ALIGNMENT = 256


@dataclass(frozen=True)
class CutlassConvolution:
    """A convolution to instantiate.

    Attributes:
        arithmetic: dtype and precision.
        tile: tile shape.
        input_extents: images, channels, height, width of the input.
        extents: images, channels, height, width of the output.
        window: the sliding window.
        weights: [outputs, inputs, height, width].
        bias: [outputs].
        activation: name of the activation, "" for none.
        x: number of the input.
        residual: number of the residual, ABSENT for none.
        inputs: number of inputs.
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
        """Padded channels of the input."""
        return _filled(self.input_extents[1], self.arithmetic.step)

    @property
    def outputs(self) -> int:
        """Padded channels of the result."""
        return _filled(self.extents[1], self.arithmetic.step)

    @property
    def constants(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights [outputs, height, width, channels] and bias [outputs], padded with zeros."""
        outputs, channels, *window = self.weights.shape
        padding = (0, self.outputs - outputs), (0, self.channels - channels)
        turned = np.pad(self.weights, (*padding, *[(0, 0)] * len(window))).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(turned), np.pad(self.bias, padding[0])

    @property
    def result_offset(self) -> int:
        """Offset of the result in scratch memory, in bytes: after the input."""
        images, _, *pixels = self.input_extents
        return _filled(self._bytes(images, *pixels, self.channels), CUTLASS_ALIGNMENT)

    @property
    def scratch(self) -> int:
        """Bytes of device memory for both channels-last tensors."""
        images, _, *pixels = self.extents
        return self.result_offset + self._bytes(images, *pixels, self.outputs)

    def source(self) -> CudaSource:
        """Generate the CUDA C++; its arguments are inputs, constants, scratch memory and result.

        Raises:
            BackendError: the CUTLASS headers are missing.
        """
        return cutlass_source(CONVOLUTION_TEMPLATE, _placeholders(self))

    def _bytes(self, *extents: int) -> int:
        return prod(extents) * BITS[self.arithmetic.dtype] // 8


def convolution_refusal(function: Function, chain: Chain, *, rounds: bool = False) -> str | None:
    """Return why CUTLASS does not compute the chain, None where it does.

    Args:
        function: function of the chain.
        chain: a convolution and its epilogue.
        rounds: whether TF32 is allowed for float32.
    """
    node = function.graph.nodes[chain.anchor]
    if reason := operand_refusal(function, node) or convolution_node_refusal(function, node):
        return reason
    values, groups = ConvolutionValues(function, chain), convolution_groups(function, chain.anchor)
    arithmetic = Arithmetic(values.dtype, rounds)
    _, _, *kernel = function.graph.types[node.inputs[1]].shape
    if len(kernel) > 2:
        return f"a convolution over {len(kernel)} dimensions: of CUTLASS's only those over two are used"
    if groups != 1:
        return f"a convolution of {groups} groups: CUTLASS's is one product"
    if max(kernel) > LARGEST_WINDOW:
        return f"a window of {max(kernel)}: CUTLASS's iterator has {LARGEST_WINDOW} places"
    if _most_bytes(values, arithmetic) >= MOST_BYTES:
        return "a tensor of 2 GiB or more: CUTLASS counts in 31 bits"
    return steps_refusal(
        function, chain, lambda step: activation_refusal(step.name, step.number, arithmetic)
    )


def read_convolution(
    function: Function, chain: Chain, operands: Operands, tile: Tile, *, rounds: bool = False
) -> CutlassConvolution:
    """Return the convolution to instantiate for an accepted chain."""
    values = ConvolutionValues(function, chain)
    weights, bias = folded(function, chain)
    activation = chain.find(StepKind.ACTIVATION)
    return CutlassConvolution(
        Arithmetic(values.dtype, rounds),
        tile,
        tuple(values.input_extents),
        tuple(values.extents),
        window=convolution_window(function, chain.anchor),
        weights=weights,
        bias=bias,
        activation=activation.name if activation else "",
        x=operands.number(values.x),
        residual=operands.number(values.residual),
        inputs=len(operands.inputs),
    )


def _placeholders(convolution: CutlassConvolution) -> dict[str, str]:
    images, channels, height, width = convolution.input_extents
    _, outputs, rows, columns = convolution.extents
    _, _, window_height, window_width = convolution.weights.shape
    has_residual, activation = convolution.residual != ABSENT, FUNCTORS[convolution.activation]
    places = {
        "x": convolution.x, "weights": convolution.inputs, "bias": convolution.inputs + 1,
        "scratch": convolution.inputs + 2,
        "output": convolution.inputs + 3, "count": convolution.inputs + 4,
        "residual": convolution.residual if has_residual else convolution.inputs + 3,
        "result_offset": convolution.result_offset, "images": images, "channels": channels,
        "filled_channels": convolution.channels, "outputs": outputs, "filled_outputs": convolution.outputs,
        "height": height, "width": width, "rows": rows, "columns": columns,
        "window_height": window_height, "window_width": window_width,
        "pad_height": convolution.window.pads_begin[0], "pad_width": convolution.window.pads_begin[1],
        "stride_height": convolution.window.strides[0], "stride_width": convolution.window.strides[1],
        "dilation_height": convolution.window.dilations[0], "dilation_width": convolution.window.dilations[1],
        "has_bias": "1.0f" if convolution.bias.any() else "0.0f",
        "has_residual": "true" if has_residual else "false",
        "epilogue": FUNCTORS[""] if has_residual else activation,
        "last": activation if has_residual else FUNCTORS[""],
        "header": "cutlass/conv/kernel/default_conv2d_fprop.h",
    }  # fmt: skip
    return {
        **convolution.arithmetic.placeholders(convolution.tile),
        **{name: str(value) for name, value in places.items()},
    }


def _most_bytes(values: ConvolutionValues, arithmetic: Arithmetic) -> int:
    tensors = (values.input_extents, values.extents)
    bits = BITS[arithmetic.dtype]
    return max(
        images * _filled(channels, arithmetic.step) * prod(pixels) * bits // 8
        for images, channels, *pixels in tensors
    )


def _filled(extent: int, step: int) -> int:
    return -(-extent // step) * step


CONVOLUTION_TEMPLATE = """
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
