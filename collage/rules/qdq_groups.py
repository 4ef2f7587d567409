"""QDQ groups of a quantised model: the computation of one tensor of small integers.

A model in QDQ form writes an int8 product as DequantizeLinear of every operand, the product in float, its
epilogue, and QuantizeLinear of the result. Graph backends recognise this and run one int8 kernel, but only
with the whole group in one region: a boundary inside it leaves a float product and the conversions. Cut
points and short intervals contain a group if it is contiguous in the topological order; this module finds
wide groups and groups with interleaved arms too.

A QDQ group is a QuantizeLinear with all its ancestors up to DequantizeLinear nodes, these included, and up to
any other QuantizeLinear, these excluded. Complexity: linear in the nodes of all groups.
"""

from collections.abc import Iterator

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices
from collage.graph.quantisation import DEQUANTIZE, QUANTIZE
from collage.graph.sub_graph import SubGraph


def find_qdq_groups(graph: DataflowGraph) -> Iterator[IndexSet]:
    """Yield the convex QDQ groups of at least three nodes, by their last node."""
    for node in graph.nodes:
        if node.op == QUANTIZE:
            group = _group_of(graph, node.index)
            if group.bit_count() > 2 and SubGraph(graph, group).is_convex:
                yield group


def _group_of(graph: DataflowGraph, last: int) -> IndexSet:
    group = frontier = 1 << last
    while frontier:
        before = 0
        for index in indices(frontier):
            if graph.nodes[index].op != DEQUANTIZE:
                before |= graph.predecessors[index]
        frontier = 0
        for index in indices(before & ~group):
            if graph.nodes[index].op != QUANTIZE:
                frontier |= 1 << index
        group |= frontier
    return group
