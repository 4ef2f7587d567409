"""Islands of a quantised model: what computes one tensor of small integers from others.

A model in QDQ form spells a product of int8 as DequantizeLinear of every operand, the product in
float, what follows it, and QuantizeLinear of the result. Graph backends see through that and run one
int8 kernel, but only when they get the whole island: a border inside it leaves a float product and
the conversions. Cut points and short intervals find an island that the topological order leaves in
one piece; a wide one, or one whose arms are interleaved with others, is found here.

An island is a QuantizeLinear with everything that leads to it, back to DequantizeLinear nodes, which
belong to it, and short of any other QuantizeLinear. Complexity: linear in the nodes of all islands.
"""

from collections.abc import Iterator

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices
from collage.graph.sub_graph import SubGraph

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def islands(graph: DataflowGraph) -> Iterator[IndexSet]:
    """Yield the convex islands of at least three nodes, by their last node."""
    for node in graph.nodes:
        if node.op == QUANTIZE:
            island = _island(graph, node.index)
            if island.bit_count() > 2 and SubGraph(graph, island).is_convex:
                yield island


def _island(graph: DataflowGraph, last: int) -> IndexSet:
    island = frontier = 1 << last
    while frontier:
        before = 0
        for index in indices(frontier):
            if graph.nodes[index].op != DEQUANTIZE:
                before |= graph.predecessors[index]
        frontier = 0
        for index in indices(before & ~island):
            if graph.nodes[index].op != QUANTIZE:
                frontier |= 1 << index
        island |= frontier
    return island
