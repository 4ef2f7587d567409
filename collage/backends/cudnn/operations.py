"""Which single nodes cuDNN computes, with the reason for each that it does not."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from collage.backends.cudnn.norm import EPSILON, channel_norm_refusal, row_norm_refusal
from collage.backends.nvidia.product import DTYPES, attributes, known_type
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import Node
from collage.runtime.blob import Header, Json

MOST_SPATIAL = 3


def refusal(function: Function, index: int) -> str | None:
    """Return why cuDNN does not compute the node, or None when it does."""
    node = function.graph.nodes[index]
    check = CHECKS.get(node.op)
    if check is None:
        return f"cuDNN has no {node.op}; pointwise operators at most after a convolution"
    try:
        for name in filter(None, (*node.inputs, *node.outputs[:1])):
            if prod(known_type(function, name).shape) == 0:
                return f"{name!r} is empty"
    except BackendError as error:
        return str(error)
    dtype = function.graph.types[node.inputs[0]].dtype
    if dtype not in DTYPES:
        return f"{node.op} computes in {dtype}; {', '.join(DTYPES)} are taken"
    return check(function, node)


def single_operation(function: Function, index: int) -> tuple[Header, list[np.ndarray]]:
    """Describe a softmax over the last axis, pooling or a batch norm: a call of cuDNN's descriptor interface.

    The graph interface has pooling channels-last only, softmax as five operations, batch norm for
    training. The arrays are the batch norm's parameters.

    Raises:
        BackendError: cuDNN does not compute it.
    """
    if reason := refusal(function, index):
        raise BackendError(reason)
    node, found = function.graph.nodes[index], attributes(function, index)
    x, y = (function.graph.types[name].shape for name in (node.inputs[0], node.outputs[0]))
    header: dict[str, Json] = {"dtype": dtype_of(function, index)}
    if node.op == "Softmax":
        rows = [prod(x[:-1]), x[-1], 1, 1]
        return {**header, "operation": "softmax", "x": rows, "y": rows}, []
    if node.op == "BatchNormalization":
        extents = spatial_extents(x)
        epsilon = float(found.get("epsilon", EPSILON))  # type: ignore[arg-type]
        parameters = [function.weights[name].astype(np.float32) for name in node.inputs[1:]]
        header |= {"operation": "batch_norm", "x": extents, "y": extents, "epsilon": epsilon}
        return header, parameters
    spatial, whole = len(x) - 2, node.op == "GlobalAveragePool"
    counts_pads = found.get("count_include_pad", 0)
    header |= {
        "operation": "pooling", "x": list(x), "y": list(y),
        "mode": "max" if node.op == "MaxPool" else "average" if counts_pads else "average_inside",
        "window": list(x[2:] if whole else found["kernel_shape"]),  # type: ignore[call-overload]
        "pads": list(found.get("pads", [0] * spatial))[:spatial],  # type: ignore[call-overload]
        "strides": list(found.get("strides", [1] * spatial)),  # type: ignore[call-overload]
    }  # fmt: skip
    return header, []


def dtype_of(function: Function, index: int) -> str:
    """Return the dtype that a node computes in: that of its first input."""
    return function.graph.types[function.graph.nodes[index].inputs[0]].dtype


def spatial_extents(shape: Sequence[int]) -> list[int]:
    """Return the extents with at least two spatial dimensions, as cuDNN wants them."""
    return [*shape[:2], *[1] * (4 - len(shape)), *shape[2:]]


def _convolution(function: Function, node: Node) -> str | None:
    spatial = len(function.graph.types[node.inputs[0]].shape) - 2
    if not 1 <= spatial <= MOST_SPATIAL:
        return f"a convolution over {spatial} dimensions"
    if any(name and name not in function.weights for name in node.inputs[1:]):
        return "a convolution whose weights are computed"
    if node.inputs[0] in function.weights:
        return "a convolution of a constant"
    return _padding(_pads(function, node, spatial))


def _pads(function: Function, node: Node, spatial: int) -> list[int] | str:
    """The pads, before all dimensions and then after them, or why they are not known."""
    found = attributes(function, node.index)
    if found.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return f"padding is {found['auto_pad']!r}, not explicit"
    return list(found.get("pads", [0] * 2 * spatial))  # type: ignore[call-overload]


def _padding(pads: list[int] | str) -> str | None:
    if isinstance(pads, str):
        return pads
    return f"pads are {pads}" if min(pads) < 0 else None


def _last_axis(function: Function, node: Node) -> str | None:
    rank = len(function.graph.types[node.inputs[0]].shape)
    if node.inputs[0] in function.weights:
        return f"{node.op} of a constant"
    default = -1 if function.opsets.get("", 1) >= 13 or node.op != "Softmax" else 1
    axis = int(attributes(function, node.index).get("axis", default))  # type: ignore[call-overload]
    return None if axis % rank == rank - 1 else f"{node.op} over axis {axis} of {rank}"


def _pooling(function: Function, node: Node) -> str | None:
    graph, found = function.graph, attributes(function, node.index)
    spatial = len(graph.types[node.inputs[0]].shape) - 2
    if not 2 <= spatial <= MOST_SPATIAL:
        return f"pooling over {spatial} dimensions"
    if any(name in graph.readers or name in graph.outputs for name in node.outputs[1:] if name):
        return "MaxPool whose indices are used"
    if found.get("ceil_mode", 0):
        return f"{node.op} with ceil_mode"
    if any(one != 1 for one in found.get("dilations", [])):  # type: ignore[attr-defined]
        return f"{node.op} with dilations"
    pads = _pads(function, node, spatial)
    if isinstance(pads, list) and pads[:spatial] != pads[spatial:]:
        return f"pads are {pads}: cuDNN's pooling pads both sides alike"
    return _padding(pads)


CHECKS: dict[str, Callable[[Function, Node], str | None]] = {
    "AveragePool": _pooling,
    "BatchNormalization": channel_norm_refusal,
    "Conv": _convolution,
    "GlobalAveragePool": _pooling,
    "InstanceNormalization": channel_norm_refusal,
    "LayerNormalization": row_norm_refusal,
    "MaxPool": _pooling,
    "RMSNormalization": row_norm_refusal,
    "SimplifiedLayerNormalization": row_norm_refusal,
    "Softmax": _last_axis,
}
