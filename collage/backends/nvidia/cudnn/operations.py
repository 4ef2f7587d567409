"""Single nodes in cuDNN, and the reasons for refused ones."""

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
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.graph.dataflow import Node
from collage.runtime.blob import Header, Json


def refusal(function: Function, index: int) -> str | None:
    """Return why cuDNN does not compute the node, None where it does."""
    node = function.graph.nodes[index]
    check = CHECKS.get(node.op)
    if check is None:
        return f"cuDNN has no {node.op}; pointwise operators at most after a convolution"
    return operand_refusal(function, node) or check(function, node)


def single_operation(function: Function, index: int) -> tuple[Header, list[np.ndarray]]:
    """Return the header and arrays of a call of cuDNN's descriptor interface.

    It computes softmax over the last axis, pooling and batch norm: the graph interface has pooling
    channels-last only, softmax as five operations, batch norm for training. The arrays are the batch norm's
    parameters.

    Raises:
        BackendError: cuDNN does not compute the node.
    """
    if reason := refusal(function, index):
        raise BackendError(reason)
    node, attributes = function.graph.nodes[index], node_attributes(function, index)
    x, y = (function.graph.types[name].shape for name in (node.inputs[0], node.outputs[0]))
    header: dict[str, Json] = {"dtype": dtype_of(function, index)}
    if node.op == "Softmax":
        rows = [prod(x[:-1]), x[-1], 1, 1]
        return {**header, "operation": "softmax", "x": rows, "y": rows}, []
    if node.op == "BatchNormalization":
        extents = spatial_extents(x)
        epsilon = attributes.number("epsilon", EPSILON)
        parameters = [function.weights[name].astype(np.float32) for name in node.inputs[1:]]
        header |= {"operation": "batch_norm", "x": extents, "y": extents, "epsilon": epsilon}
        return header, parameters
    spatial, is_global = len(x) - 2, node.op == "GlobalAveragePool"
    counts_pads = attributes.integer("count_include_pad", 0)
    header |= {
        "operation": "pooling", "x": list(x), "y": list(y),
        "mode": "max" if node.op == "MaxPool" else "average" if counts_pads else "average_inside",
        "window": list(x[2:] if is_global else attributes.integers("kernel_shape", ())),
        "pads": list(attributes.integers("pads", [0] * spatial))[:spatial],
        "strides": list(attributes.integers("strides", [1] * spatial)),
    }  # fmt: skip
    return header, []


def dtype_of(function: Function, index: int) -> str:
    """Return the dtype of a node's arithmetic: the dtype of its first input."""
    return function.graph.types[function.graph.nodes[index].inputs[0]].dtype


def _last_axis(function: Function, node: Node) -> str | None:
    rank = len(function.graph.types[node.inputs[0]].shape)
    if node.inputs[0] in function.weights:
        return f"{node.op} of a constant"
    default = -1 if function.opsets.get("", 1) >= 13 or node.op != "Softmax" else 1
    axis = node_attributes(function, node.index).integer("axis", default)
    return None if axis % rank == rank - 1 else f"{node.op} over axis {axis} of {rank}"


def _pooling(function: Function, node: Node) -> str | None:
    graph, attributes = function.graph, node_attributes(function, node.index)
    spatial = len(graph.types[node.inputs[0]].shape) - 2
    if not 2 <= spatial <= MOST_SPATIAL:
        return f"pooling over {spatial} dimensions"
    if any(name in graph.readers or name in graph.outputs for name in node.outputs[1:] if name):
        return "MaxPool whose indices are used"
    if attributes.integer("ceil_mode", 0):
        return f"{node.op} with ceil_mode"
    if any(dilation != 1 for dilation in attributes.integers("dilations", ())):
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
