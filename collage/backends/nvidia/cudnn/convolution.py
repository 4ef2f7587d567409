"""A convolution and what cuDNN fuses with it: y = activation(x * w + bias + residual).

What is folded into the weights and the bias says `nvidia.convolution`.

Two kinds of engines compute this (cuDNN developer guide, "Graph API", "Pre-compiled single
operation engines" and "Runtime fusion engines"; each was asked of cuDNN 9.19 for an H200, see
docs/nvidia.md):

* a convolution, alone or with a residual, a bias and ReLU added in this very order, in any layout:
  as the model has it, channels first;
* a convolution with any pointwise operations after it, compiled at run time. The channels must lie
  side by side in the weights and the residual, and in x or y at least: y is copied there and back
  where tensor cores compute (16 bits and TF32), x where float32 does, without them.
"""

import numpy as np

from collage.backends.nvidia.chain import Chain, Chains, Step, StepKind
from collage.backends.nvidia.convolution import ConvolutionValues, Window, folded, steps_refusal
from collage.backends.nvidia.cudnn.operations import dtype_of, refusal
from collage.backends.nvidia.cudnn.region import Region, channels_last, strides_of
from collage.backends.nvidia.product import attributes
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet

PLAIN = ("", "relu")
"""Activations of the engines that take any layout."""
FUSED = frozenset({
    "sigmoid", "tanh", "elu", "softplus", "gelu_erf", "gelu_tanh", "swish", "hardswish",
})  # fmt: skip
"""Those of the engines that are compiled."""


def convolution_refusal(function: Function, chain: Chain, *, rounds: bool = False) -> str | None:
    """Return why cuDNN does not compute the chain in one graph, or None when it does.

    Args:
        function: of the chain.
        chain: a convolution and what follows it.
        rounds: float32 may be rounded to TF32.
    """
    if reason := refusal(function, chain.anchor):
        return reason
    return steps_refusal(
        function, chain, lambda step: _activation_refusal(function, chain, step, rounds=rounds)
    )


def read_convolution(
    function: Function, nodes: IndexSet, rank: int, *, rounds: bool = False
) -> Region:
    """Describe a region for the plug-in; arguments as in `cudnn.describe`.

    Raises:
        BackendError: the region is no convolution that cuDNN computes in one graph.
    """
    chain = Chains(function).read(nodes, ("Conv",))
    if reason := convolution_refusal(function, chain, rounds=rounds):
        raise BackendError(reason)
    region = Region(function, nodes)
    activation = chain.find(StepKind.ACTIVATION)
    if (activation.name if activation else "") in PLAIN:
        _plain(region, function, chain, rank)
    else:
        _fused(region, function, chain, rank, rounds=rounds)
    return region


def _activation_refusal(
    function: Function, chain: Chain, step: Step, *, rounds: bool
) -> str | None:
    if step.name not in FUSED and step.name not in PLAIN:
        return f"cuDNN has no {step.name}"
    node = function.graph.nodes[step.nodes.bit_length() - 1]
    if node.op == "Elu" and attributes(function, node.index).get("alpha", 1.0) != 1.0:
        return "elu with an alpha that is not 1"
    dtype = dtype_of(function, chain.anchor)
    _, weights, *_ = function.graph.nodes[chain.anchor].inputs
    _, channels, *kernel = function.graph.types[weights].shape
    depthwise = channels == 1 and attributes(function, chain.anchor).get("group", 1) != 1
    if step.name in FUSED and dtype == "bfloat16" and depthwise:
        return f"{step.name} after a depthwise convolution in bfloat16: cuDNN has no engine"
    if step.name in FUSED and dtype == "float32" and len(kernel) > 2 and not rounds:
        return f"{step.name} over {len(kernel)} dimensions in float32: cuDNN would use TF32"
    return None


def _plain(region: Region, function: Function, chain: Chain, rank: int) -> None:
    """x * w, + residual, + bias, relu, channels first: each but the first may be missing."""
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


def _fused(region: Region, function: Function, chain: Chain, rank: int, *, rounds: bool) -> None:
    """x * w + bias, + residual, activation, channels last inside."""
    weights, bias = folded(function, chain)
    names, dtype = ConvolutionValues(function, chain), dtype_of(function, chain.anchor)
    order = channels_last(len(names.extents))
    inner = strides_of(names.extents, order)
    on_tensor_cores = dtype != "float32" or rounds
    dense = on_tensor_cores and Window(function, chain.anchor).groups == 1
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
    made = region.virtual(names.extents, inner)
    _convolve(region, function, chain, (x, region.constant(weights, order), made))
    for operand in (region.constant(_per_channel(bias, len(names.extents))), residual):
        if operand is not None:
            summed = region.virtual(names.extents, inner)
            region.pointwise("add", x=made, b=operand, y=summed)
            made = summed
    activation = chain.find(StepKind.ACTIVATION)
    assert activation is not None
    _activate(region, activation, made, y)
    if on_tensor_cores:
        region.copy(y, result)


def _activate(region: Region, step: Step, x: int, y: int) -> None:
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
    region: Region, function: Function, chain: Chain, operands: tuple[int, int, int]
) -> None:
    window, (x, w, y) = Window(function, chain.anchor), operands
    region.operation(
        "convolution", x=x, w=w, y=y, pads_before=window.pads_before, pads_after=window.pads_after,
        strides=window.strides, dilations=window.dilations,
    )  # fmt: skip


def _per_channel(bias: np.ndarray, rank: int) -> np.ndarray:
    return bias.reshape((1, -1, *[1] * (rank - 2)))
