"""A convolution and what cuDNN fuses with it: y = relu(x * w + bias + residual).

Scales, factors and biases before the residual are folded into the weights and the bias, which are
constants. In 16 bits only biases are: a weight that is rounded twice is another weight.
"""

from collections.abc import Sequence

import numpy as np

from collage.backends.cudnn.operations import dtype_of, refusal, spatial_extents
from collage.backends.nvidia.chain import Chain, Chains, Step, StepKind
from collage.backends.nvidia.operands import ABSENT
from collage.backends.nvidia.product import attributes, known_type
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_values
from collage.graph.index_set import IndexSet
from collage.runtime.blob import Header

FOLDED = (StepKind.SCALE, StepKind.FACTOR, StepKind.BIAS)


def convolution_refusal(function: Function, chain: Chain) -> str | None:
    """Return why cuDNN does not compute the chain in one call, or None when it does."""
    if reason := refusal(function, chain.anchor):
        return reason
    node, done = function.graph.nodes[chain.anchor], ""
    exact = dtype_of(function, chain.anchor) == "float32"
    for step in chain.work:
        what = step.name or step.kind.value
        if done == "relu" or (done and step.kind in FOLDED):
            return f"{what} after the {done}"
        if step.kind is StepKind.ACTIVATION:
            if step.name != "relu":
                return f"cuDNN fuses relu, not {step.name}"
            done = "relu"
        elif step.kind is StepKind.RESIDUAL:
            if done:
                return "two residuals"
            if known_type(function, step.operand) != known_type(function, node.outputs[0]):
                return "a residual of another shape"
            if step.operand in function.weights:
                return "a residual that is a constant"
            done = "residual"
        elif step.kind is not StepKind.BIAS and not exact:
            return f"{what} folded into 16-bit weights"
    return None


def read_convolution(function: Function, nodes: IndexSet) -> tuple[Header, list[np.ndarray]]:
    """Describe a region for the plug-in; the arrays are weights and bias.

    Raises:
        BackendError: the region is no convolution that cuDNN computes in one call.
    """
    chain = Chains(function).read(nodes, ("Conv",))
    if reason := convolution_refusal(function, chain):
        raise BackendError(reason)
    node, found = function.graph.nodes[chain.anchor], attributes(function, chain.anchor)
    residual = chain.find(StepKind.RESIDUAL)
    inputs, _ = region_values(function, nodes)
    weights, bias = _folded(function, node.inputs, chain.work)
    spatial = weights.ndim - 2
    x, y = (known_type(function, name).shape for name in (node.inputs[0], node.outputs[0]))
    header = {
        "operation": "convolution", "dtype": dtype_of(function, chain.anchor),
        "x": spatial_extents(x), "y": spatial_extents(y), "w": spatial_extents(weights.shape),
        "strides": _per_dimension(found.get("strides"), spatial, 1),
        "dilations": _per_dimension(found.get("dilations"), spatial, 1),
        "pads": _per_dimension(found.get("pads"), spatial, 0), "group": found.get("group", 1),
        "input": inputs.index(node.inputs[0]), "inputs": len(inputs),
        "residual": inputs.index(residual.operand) if residual else ABSENT,
        "activation": "relu" if chain.find(StepKind.ACTIVATION) else "none",
    }  # fmt: skip
    return header, [weights, bias]  # type: ignore[return-value]


def _folded(
    function: Function, operands: Sequence[str], steps: Sequence[Step]
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias of the convolution with the steps before the residual."""
    kept = function.weights[operands[1]]
    weights = kept.astype(np.float32)
    bias = np.zeros(len(kept), np.float32)
    if len(operands) > 2 and operands[2]:
        bias += function.weights[operands[2]].astype(np.float32)
    for step in steps:
        if step.kind is StepKind.BIAS:
            bias += function.weights[step.operand].astype(np.float32).reshape(-1)
        elif step.kind in FOLDED:
            scaled = step.kind is StepKind.SCALE
            given = np.asarray(step.number) if scaled else function.weights[step.operand]
            factor = given.astype(np.float32).reshape(-1)
            weights = (weights.reshape(len(kept), -1).T * factor).T.reshape(kept.shape)
            bias = bias * factor
    return np.ascontiguousarray(weights.astype(kept.dtype)), bias.astype(kept.dtype)


def _per_dimension(given: object, spatial: int, otherwise: int) -> list[int]:
    """One number for each of at least two spatial dimensions; of pads, those at the beginning."""
    numbers = list(given)[:spatial] if given else [otherwise] * spatial  # type: ignore[call-overload]
    return [otherwise] * (2 - spatial) + numbers
