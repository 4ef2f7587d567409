"""Convolutions for GPU libraries: extents, folded constants, refusals.

Scales, factors and biases before the residual are folded into the constant weights and bias. In 16 bits only
biases are folded: scaled weights would be rounded twice.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from collage.backends.common.window import Window, explicit_window
from collage.backends.nvidia.chain import Chain, ChainStep, StepKind
from collage.backends.nvidia.product import DTYPES, known_type
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.graph.dataflow import Node

MOST_SPATIAL = 3
FOLDED = (StepKind.SCALE, StepKind.FACTOR, StepKind.BIAS)


class ConvolutionValues:
    """Values of a chain and their extents, with at least two spatial dimensions."""

    def __init__(self, function: Function, chain: Chain) -> None:
        node = function.graph.nodes[chain.anchor]
        residual = chain.find(StepKind.RESIDUAL)
        self.x, self.residual = node.inputs[0], residual.operand if residual else ""
        self.y = chain.steps[-1].value if chain.steps else node.outputs[0]
        self.dtype = known_type(function, self.x).dtype
        self.input_extents = spatial_extents(known_type(function, self.x).shape)
        self.extents = spatial_extents(known_type(function, self.y).shape)


def convolution_window(function: Function, index: int) -> Window:
    """Return the window of a convolution, with at least two spatial dimensions."""
    weights = known_type(function, function.graph.nodes[index].inputs[1])
    return explicit_window(node_attributes(function, index), weights.shape[2:]).with_rank(2)


def convolution_groups(function: Function, index: int) -> int:
    """Return the number of groups of a convolution."""
    return node_attributes(function, index).integer("group", 1)


def operand_refusal(function: Function, node: Node) -> str | None:
    """Return why GPU libraries do not take the tensors of a node, None where they do."""
    try:
        for name in filter(None, (*node.inputs, *node.outputs[:1])):
            if prod(known_type(function, name).shape) == 0:
                return f"{name!r} is empty"
    except BackendError as error:
        return str(error)
    dtype = function.graph.types[node.inputs[0]].dtype
    if dtype not in DTYPES:
        return f"{node.op} computes in {dtype}; {', '.join(DTYPES)} are taken"
    return None


def convolution_node_refusal(function: Function, node: Node) -> str | None:
    """Return why GPU libraries do not take a Conv (computed weights, implicit pads), None where they do."""
    spatial = len(function.graph.types[node.inputs[0]].shape) - 2
    if not 1 <= spatial <= MOST_SPATIAL:
        return f"a convolution over {spatial} dimensions"
    if any(name and name not in function.weights for name in node.inputs[1:]):
        return "a convolution whose weights are computed"
    if node.inputs[0] in function.weights:
        return "a convolution of a constant"
    return padding_refusal(explicit_pads(function, node, spatial))


def explicit_pads(function: Function, node: Node, spatial: int) -> list[int] | str:
    """Return the pads before all dimensions, then those after them; or why they are not explicit."""
    attributes = node_attributes(function, node.index)
    if attributes.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return f"padding is {attributes.get('auto_pad')!r}, not explicit"
    return list(attributes.integers("pads", [0] * 2 * spatial))


def padding_refusal(pads: list[int] | str) -> str | None:
    """Return why pads are not supported, None where they are."""
    if isinstance(pads, str):
        return pads
    return f"pads are {pads}" if min(pads) < 0 else None


def steps_refusal(
    function: Function, chain: Chain, activation_refusal: Callable[[ChainStep], str | None]
) -> str | None:
    """Return why the epilogue is not: folded steps, a residual, an activation; None where it is.

    Args:
        function: function of the chain.
        chain: a convolution and its epilogue.
        activation_refusal: returns why the library lacks the activation of a step, or None.
    """
    node, done = function.graph.nodes[chain.anchor], ""
    exact = known_type(function, node.inputs[0]).dtype == "float32"
    for step in chain.work:
        label = step.name or step.kind.value
        if done == "activation":
            return f"{label} after the activation"
        if step.kind is StepKind.ACTIVATION:
            if reason := activation_refusal(step):
                return reason
            done = "activation"
        elif step.kind is StepKind.RESIDUAL:
            if done:
                return "two residuals"
            if known_type(function, step.operand) != known_type(function, node.outputs[0]):
                return "a residual of another shape"
            if step.operand in function.weights:
                return "a residual that is a constant"
            done = "residual"
        elif step.kind is not StepKind.BIAS and done:
            return f"{label} after the {done}"
        elif step.kind is not StepKind.BIAS and not exact:
            return f"{label} folded into 16-bit weights"
    return None


def folded(function: Function, chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    """Return weights [outputs, inputs of a group, ...] and bias [outputs] with folded steps."""
    operands = function.graph.nodes[chain.anchor].inputs
    original = function.weights[operands[1]]
    weights = original.astype(np.float32)
    bias = np.zeros(len(original), np.float32)
    if len(operands) > 2 and operands[2]:
        bias += function.weights[operands[2]].astype(np.float32)
    for step in chain.work:
        if step.kind is StepKind.BIAS:
            bias += function.weights[step.operand].astype(np.float32).reshape(-1)
        elif step.kind in FOLDED:
            scaled = step.kind is StepKind.SCALE
            operand = np.asarray(step.number) if scaled else function.weights[step.operand]
            factor = operand.astype(np.float32).reshape(-1)
            weights = (weights.reshape(len(original), -1).T * factor).T.reshape(original.shape)
            bias = bias * factor
    folded_weights = np.ascontiguousarray(weights.astype(original.dtype))
    return folded_weights.reshape(spatial_extents(folded_weights.shape)), bias.astype(
        original.dtype
    )


def spatial_extents(shape: tuple[int, ...]) -> list[int]:
    """Return the extents with at least two spatial dimensions, as libraries require."""
    return [*shape[:2], *[1] * (4 - len(shape)), *shape[2:]]
