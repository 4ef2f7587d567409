"""Regions whose cost depends on values: the user's sample is then a part of the cost's identity.

The cost of nearly every region depends on shapes alone, so that models and machines share it. It depends on
values where the amount of work does: loops, branches, operators whose output shape is computed from values,
recurrent layers with sequence lengths, and operators of unknown domains.
"""

from collections.abc import Sequence

import onnx

from collage.frontend.onnx_proto import sub_graphs
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices

_WORK_BY_VALUE = frozenset({
    "BeamSearch", "Compress", "DecoderMaskedMultiHeadAttention", "GreedySearch", "GroupQueryAttention",
    "MoE", "NonMaxSuppression", "NonZero", "PackedAttention", "PackedMultiHeadAttention", "PagedAttention",
    "QMoE", "Sampling", "SparseAttention", "SparseToDenseMatMul", "Unique", "WhisperBeamSearch",
})  # fmt: skip
_SEQUENCE_LENGTHS = {"LSTM": 4, "GRU": 4, "RNN": 4}
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})


def cost_depends_on_values(
    graph: DataflowGraph, onnx_nodes: Sequence[onnx.NodeProto], nodes: IndexSet
) -> bool:
    """Tell whether the work of a region depends on the values of its inputs."""
    return any(_node_depends(graph, onnx_nodes[index], index) for index in indices(nodes))


def _node_depends(graph: DataflowGraph, proto: onnx.NodeProto, index: int) -> bool:
    node = graph.nodes[index]
    if proto.op_type in _WORK_BY_VALUE or proto.domain not in _KNOWN_DOMAINS:
        return True
    if any(True for _ in sub_graphs(proto)):
        return True
    place = _SEQUENCE_LENGTHS.get(proto.op_type)
    if place is not None and len(proto.input) > place and proto.input[place]:
        return True
    return any(value not in graph.types for value in node.outputs if value)
