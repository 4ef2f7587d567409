"""Which single nodes cuDNN computes, with the reason for each that it does not."""

from collections.abc import Callable
from math import prod

import numpy as np

from collage.backends.nvidia.convolution import (
    MOST_SPATIAL,
    convolution_node_refusal,
    explicit_pads,
    operand_refusal,
    padding_refusal,
    spatial_extents,
)
from collage.backends.nvidia.cudnn.norm import EPSILON, channel_norm_refusal, row_norm_refusal
from collage.backends.nvidia.product import attributes
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import Node
from collage.runtime.blob import Header, Json


def refusal(function: Function, index: int) -> str | None:
    """Return why cuDNN does not compute the node, or None when it does."""
    node = function.graph.nodes[index]
    check = CHECKS.get(node.op)
    if check is None:
        return f"cuDNN has no {node.op}; pointwise operators at most after a convolution"
    return operand_refusal(function, node) or check(function, node)


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
    pads = explicit_pads(function, node, spatial)
    if isinstance(pads, list) and pads[:spatial] != pads[spatial:]:
        return f"pads are {pads}: cuDNN's pooling pads both sides alike"
    return padding_refusal(pads)


CHECKS: dict[str, Callable[[Function, Node], str | None]] = {
    "AveragePool": _pooling,
    "BatchNormalization": channel_norm_refusal,
    "Conv": convolution_node_refusal,
    "GlobalAveragePool": _pooling,
    "InstanceNormalization": channel_norm_refusal,
    "LayerNormalization": row_norm_refusal,
    "MaxPool": _pooling,
    "RMSNormalization": row_norm_refusal,
    "SimplifiedLayerNormalization": row_norm_refusal,
    "Softmax": _last_axis,
}
