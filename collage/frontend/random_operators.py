"""Operators that draw random numbers, and the values that depend on a draw.

Two runs of such a node differ, so its numbers are judged by shape, dtype and moments, and it stands alone: a
kernel with other nodes could not be compared. Only ONNX Runtime computes it, as in the original model.
"""

from typing import TYPE_CHECKING

import onnx

from collage.frontend.onnx_proto import nodes_within, op_name
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, index_set, indices

if TYPE_CHECKING:
    from collage.frontend.model import Function

DRAWING = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
    "Multinomial", "com.microsoft.BiasDropout", "com.microsoft.BitmaskDropout",
    "com.microsoft.BitmaskBiasDropout", "com.microsoft.Sampling",
})  # fmt: skip


def draws(node: onnx.NodeProto) -> bool:
    """Tell whether the node, or a node of its bodies, draws random numbers."""
    return any(op_name(inner) in DRAWING for inner in nodes_within(node))


def drawing_nodes(function: "Function") -> IndexSet:
    """Return the nodes that draw random numbers."""
    return index_set(index for index, node in enumerate(function.onnx_nodes) if draws(node))


def drawn_values(graph: DataflowGraph, drawing: IndexSet) -> frozenset[str]:
    """Return the values that depend on a draw."""
    nodes = drawing
    for index in indices(drawing):
        nodes |= graph.downstream[index]
    return frozenset(value for index in indices(nodes) for value in graph.nodes[index].outputs)
