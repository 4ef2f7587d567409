"""Convolutions with an epilogue in cuDNN: y = activation(x * w + bias + residual).

`nvidia.convolution` folds constants into weights and bias.

Two kinds of engines compute this (cuDNN developer guide, "Graph API", "Pre-compiled single
operation engines" and "Runtime fusion engines"; checked with cuDNN 9.19 for an H200, see
docs/nvidia.md):

* a convolution, alone or with residual, bias and ReLU in this order, in any layout: channels first, as in
  the model;
* a convolution with any pointwise operations, compiled at run time. Channels must be innermost in the
  weights and the residual, and in x or y: y is copied on tensor cores (16 bits and TF32), x in float32
  without them.
"""

import numpy as np

from collage.backends.nvidia.chain import Chain, Chains, ChainStep, StepKind
from collage.backends.nvidia.convolution import (
    ConvolutionValues,
    convolution_groups,
    convolution_window,
    folded,
    steps_refusal,
)
from collage.backends.nvidia.cudnn.graph_builder import CudnnGraphBuilder, channels_last, strides_of
from collage.backends.nvidia.cudnn.operations import dtype_of, refusal
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.graph.index_set import IndexSet

PLAIN = ("", "relu")
"""Activations of the pre-compiled engines."""
FUSED = frozenset({
    "sigmoid", "tanh", "elu", "softplus", "gelu_erf", "gelu_tanh", "swish", "hardswish",
})  # fmt: skip
"""Activations of the engines compiled at run time."""


def convolution_refusal(function: Function, chain: Chain, *, rounds: bool = False) -> str | None:
    """Return why cuDNN does not compute the chain in one graph, None where it does.

    Args:
        function: function of the chain.
        chain: a convolution and its epilogue.
        rounds: whether TF32 is allowed for float32.
    """
    if reason := refusal(function, chain.anchor):
        return reason
    return steps_refusal(
        function, chain, lambda step: _activation_refusal(function, chain, step, rounds=rounds)
    )


def read_convolution(
    function: Function, nodes: IndexSet, rank: int, *, rounds: bool = False
) -> CudnnGraphBuilder:
    """Return the operation graph of a region; arguments as in `cudnn.describe`.

    Raises:
        BackendError: cuDNN does not compute the region in one graph.
    """
    chain = Chains(function).read(nodes, ("Conv",))
    if reason := convolution_refusal(function, chain, rounds=rounds):
        raise BackendError(reason)
    region = CudnnGraphBuilder(function, nodes)
    activation = chain.find(StepKind.ACTIVATION)
    if (activation.name if activation else "") in PLAIN:
        _plain(region, function, chain, rank)
    else:
        _fused(region, function, chain, rank, rounds=rounds)
    return region


def _activation_refusal(
    function: Function, chain: Chain, step: ChainStep, *, rounds: bool
) -> str | None:
    if step.name not in FUSED and step.name not in PLAIN:
        return f"cuDNN has no {step.name}"
    node = function.graph.nodes[step.nodes.bit_length() - 1]
    if node.op == "Elu" and node_attributes(function, node.index).number("alpha", 1.0) != 1.0:
        return "elu with an alpha that is not 1"
    dtype = dtype_of(function, chain.anchor)
    _, weights, *_ = function.graph.nodes[chain.anchor].inputs
    _, channels, *kernel = function.graph.types[weights].shape
    depthwise = channels == 1 and convolution_groups(function, chain.anchor) != 1
    if step.name in FUSED and dtype == "bfloat16" and depthwise:
        return f"{step.name} after a depthwise convolution in bfloat16: cuDNN has no engine"
    if step.name in FUSED and dtype == "float32" and len(kernel) > 2 and not rounds:
        return f"{step.name} over {len(kernel)} dimensions in float32: cuDNN would use TF32"
    return None


def _plain(region: CudnnGraphBuilder, function: Function, chain: Chain, rank: int) -> None:
    """Add x * w, residual, bias and relu, channels first; all but the first are optional."""
    weights, bias = folded(function, chain)
    names = ConvolutionValues(function, chain)
    residual = region.named(names.residual, names.extents) if names.residual else None
    steps: list[tuple[str, int | None]] = [("add", residual)] if residual is not None else []
    if bias.any() or residual is not None or chain.find(StepKind.ACTIVATION):
        steps.append(("add", region.constant(_per_channel(bias, len(names.extents)))))
    if chain.find(StepKind.ACTIVATION):
        steps.append(("relu", None))
    values = [region.virtual(names.extents) for _ in steps]
    values.append(region.named(names.y, names.extents))
    region.begin(rank)
    x = region.named(names.x, names.input_extents)
    _convolve(region, function, chain, (x, region.constant(weights), values[0]))
    for (mode, operand), source, target in zip(steps, values[:-1], values[1:], strict=True):
        second = {} if operand is None else {"b": operand}
        region.pointwise(mode, x=source, y=target, **second)


def _fused(
    region: CudnnGraphBuilder, function: Function, chain: Chain, rank: int, *, rounds: bool
) -> None:
    """Add x * w + bias, residual and activation, channels last inside."""
    weights, bias = folded(function, chain)
    names, dtype = ConvolutionValues(function, chain), dtype_of(function, chain.anchor)
    order = channels_last(len(names.extents))
    inner = strides_of(names.extents, order)
    on_tensor_cores = dtype != "float32" or rounds
    dense = on_tensor_cores and convolution_groups(function, chain.anchor) == 1
    x = region.named(names.x, names.input_extents)
    if not dense:
        source, strides = x, strides_of(names.input_extents, order)
        x = region.buffer(dtype, names.input_extents, strides)
        region.copy(source, x)
    residual = None
    if names.residual:
        residual = region.buffer(dtype, names.extents, inner)
        region.copy(region.named(names.residual, names.extents), residual)
    result = region.named(names.y, names.extents)
    y = region.buffer(dtype, names.extents, inner) if on_tensor_cores else result
    region.begin(rank)
    value = region.virtual(names.extents, inner)
    _convolve(region, function, chain, (x, region.constant(weights, order), value))
    for operand in (region.constant(_per_channel(bias, len(names.extents))), residual):
        if operand is not None:
            summed = region.virtual(names.extents, inner)
            region.pointwise("add", x=value, b=operand, y=summed)
            value = summed
    activation = chain.find(StepKind.ACTIVATION)
    assert activation is not None
    _activate(region, activation, value, y)
    if on_tensor_cores:
        region.copy(y, result)


def _activate(region: CudnnGraphBuilder, step: ChainStep, x: int, y: int) -> None:
    if step.name != "hardswish":
        beta = {"beta": float(step.number)} if step.name == "swish" else {}
        region.pointwise(step.name, x=x, y=y, **beta)
        return
    rank = region.rank(x)
    shifted, clipped, product = (region.like(x) for _ in range(3))
    region.pointwise("add", x=x, b=region.number(3.0, rank), y=shifted)
    region.pointwise("relu", x=shifted, y=clipped, upper=6.0)
    region.pointwise("mul", x=x, b=clipped, y=product)
    region.pointwise("mul", x=product, b=region.number(1 / 6, rank), y=y)


def _convolve(
    region: CudnnGraphBuilder, function: Function, chain: Chain, operands: tuple[int, int, int]
) -> None:
    window, (x, w, y) = convolution_window(function, chain.anchor), operands
    region.operation(
        "convolution", x=x, w=w, y=y, pads_before=window.pads_begin, pads_after=window.pads_end,
        strides=window.strides, dilations=window.dilations,
    )  # fmt: skip


def _per_channel(bias: np.ndarray, rank: int) -> np.ndarray:
    return bias.reshape((1, -1, *[1] * (rank - 2)))
