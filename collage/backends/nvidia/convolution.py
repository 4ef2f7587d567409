"""What a convolution is for a GPU library: extents, what is folded into it, or why it is none.

Scales, factors and biases before the residual are folded into the weights and the bias, which are
constants. In 16 bits only biases are: a weight that is rounded twice is another weight.
"""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from collage.backends.nvidia.chain import Chain, Step, StepKind
from collage.backends.nvidia.product import DTYPES, attributes, known_type
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import Node

MOST_SPATIAL = 3
FOLDED = (StepKind.SCALE, StepKind.FACTOR, StepKind.BIAS)


class ConvolutionValues:
    """The values of a chain, and their extents with at least two spatial dimensions."""

    def __init__(self, function: Function, chain: Chain) -> None:
        node = function.graph.nodes[chain.anchor]
        found = chain.find(StepKind.RESIDUAL)
        self.x, self.residual = node.inputs[0], found.operand if found else ""
        self.y = chain.steps[-1].value if chain.steps else node.outputs[0]
        self.dtype = known_type(function, self.x).dtype
        self.input_extents = spatial_extents(known_type(function, self.x).shape)
        self.extents = spatial_extents(known_type(function, self.y).shape)


class Window:
    """How the kernel moves over the input: one number for each of at least two spatial dimensions."""

    def __init__(self, function: Function, index: int) -> None:
        found = attributes(function, index)
        x = known_type(function, function.graph.nodes[index].inputs[0])
        spatial = len(x.shape) - 2
        pads = _pads(found, spatial)
        self.pads_before = _per_dimension(pads[:spatial], spatial, 0)
        self.pads_after = _per_dimension(pads[spatial:], spatial, 0)
        self.strides = _per_dimension(found.get("strides"), spatial, 1)
        self.dilations = _per_dimension(found.get("dilations"), spatial, 1)
        self.groups = int(found.get("group", 1))  # type: ignore[call-overload]


def operand_refusal(function: Function, node: Node) -> str | None:
    """Return why the tensors of a node are none that GPU libraries take, or None when they are."""
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
    """Return why a Conv is none with constant weights and explicit pads, or None when it is."""
    spatial = len(function.graph.types[node.inputs[0]].shape) - 2
    if not 1 <= spatial <= MOST_SPATIAL:
        return f"a convolution over {spatial} dimensions"
    if any(name and name not in function.weights for name in node.inputs[1:]):
        return "a convolution whose weights are computed"
    if node.inputs[0] in function.weights:
        return "a convolution of a constant"
    return padding_refusal(explicit_pads(function, node, spatial))


def explicit_pads(function: Function, node: Node, spatial: int) -> list[int] | str:
    """Return the pads, before all dimensions and then after them, or why they are not known."""
    found = attributes(function, node.index)
    if found.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return f"padding is {found['auto_pad']!r}, not explicit"
    return _pads(found, spatial)


def _pads(found: Mapping[str, object], spatial: int) -> list[int]:
    return list(found.get("pads", [0] * 2 * spatial))  # type: ignore[call-overload]


def padding_refusal(pads: list[int] | str) -> str | None:
    """Return why pads are not taken, or None when they are."""
    if isinstance(pads, str):
        return pads
    return f"pads are {pads}" if min(pads) < 0 else None


def steps_refusal(
    function: Function, chain: Chain, activation_refusal: Callable[[Step], str | None]
) -> str | None:
    """Return why the steps are not: what is folded, a residual, an activation; None when they are.

    Args:
        function: of the chain.
        chain: a convolution and what follows it.
        activation_refusal: why the library lacks the activation of a step, or None.
    """
    node, done = function.graph.nodes[chain.anchor], ""
    exact = known_type(function, node.inputs[0]).dtype == "float32"
    for step in chain.work:
        what = step.name or step.kind.value
        if done == "activation":
            return f"{what} after the activation"
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
            return f"{what} after the {done}"
        elif step.kind is not StepKind.BIAS and not exact:
            return f"{what} folded into 16-bit weights"
    return None


def folded(function: Function, chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    """Return weights [outputs, inputs of a group, ...] and bias [outputs] with the steps folded in."""
    operands = function.graph.nodes[chain.anchor].inputs
    kept = function.weights[operands[1]]
    weights = kept.astype(np.float32)
    bias = np.zeros(len(kept), np.float32)
    if len(operands) > 2 and operands[2]:
        bias += function.weights[operands[2]].astype(np.float32)
    for step in chain.work:
        if step.kind is StepKind.BIAS:
            bias += function.weights[step.operand].astype(np.float32).reshape(-1)
        elif step.kind in FOLDED:
            scaled = step.kind is StepKind.SCALE
            given = np.asarray(step.number) if scaled else function.weights[step.operand]
            factor = given.astype(np.float32).reshape(-1)
            weights = (weights.reshape(len(kept), -1).T * factor).T.reshape(kept.shape)
            bias = bias * factor
    made = np.ascontiguousarray(weights.astype(kept.dtype))
    return made.reshape(spatial_extents(made.shape)), bias.astype(kept.dtype)


def spatial_extents(shape: tuple[int, ...]) -> list[int]:
    """Return the extents with at least two spatial dimensions, as the libraries want them."""
    return [*shape[:2], *[1] * (4 - len(shape)), *shape[2:]]


def _per_dimension(given: object, spatial: int, otherwise: int) -> list[int]:
    numbers = list(given) if given else [otherwise] * spatial  # type: ignore[call-overload]
    return [otherwise] * (2 - spatial) + numbers
