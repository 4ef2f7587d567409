"""Which single nodes cuDNN computes, with the reason for each that it does not."""

from collections.abc import Callable
from math import prod

from collage.backends.nvidia.operands import Operands
from collage.backends.nvidia.product import DTYPES, attributes, known_type
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import Node
from collage.runtime.blob import Header

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


def single_operation(function: Function, index: int, operands: Operands) -> Header:
    """Describe a node that is one operation.

    Raises:
        BackendError: cuDNN does not compute it.
    """
    if reason := refusal(function, index):
        raise BackendError(reason)
    node, found = function.graph.nodes[index], attributes(function, index)
    plain = {name: value for name, value in found.items() if isinstance(value, int | float | list)}
    return {
        "operation": node.op, "attributes": plain,  # type: ignore[dict-item]
        "operands": [operands.number(name) for name in node.inputs],
    }  # fmt: skip


def _convolution(function: Function, node: Node) -> str | None:
    spatial = len(function.graph.types[node.inputs[0]].shape) - 2
    if not 1 <= spatial <= MOST_SPATIAL:
        return f"a convolution over {spatial} dimensions"
    found = attributes(function, node.index)
    if found.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return f"padding is {found['auto_pad']!r}, not explicit"
    pads = list(found.get("pads", [0] * 2 * spatial))  # type: ignore[call-overload]
    if min(pads) < 0:
        return f"pads are {pads}"
    return None


def _last_axis(function: Function, node: Node) -> str | None:
    rank = len(function.graph.types[node.inputs[0]].shape)
    default = -1 if function.opsets.get("", 1) >= 13 or node.op != "Softmax" else 1
    axis = int(attributes(function, node.index).get("axis", default))  # type: ignore[call-overload]
    return None if axis % rank == rank - 1 else f"{node.op} over axis {axis} of {rank}"


def _layer_norm(function: Function, node: Node) -> str | None:
    graph = function.graph
    if any(name in graph.readers or name in graph.outputs for name in node.outputs[1:] if name):
        return "LayerNormalization whose mean or deviation is used"
    return _last_axis(function, node)


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
    if found.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return f"padding is {found['auto_pad']!r}, not explicit"
    return None


CHECKS: dict[str, Callable[[Function, Node], str | None]] = {
    "AveragePool": _pooling,
    "Conv": _convolution,
    "GlobalAveragePool": _pooling,
    "LayerNormalization": _layer_norm,
    "MaxPool": _pooling,
    "Softmax": _last_axis,
}
