"""Contraction of disjoint sub-graphs to single nodes: the quotient graph of a plan.

The quotient of convex sub-graphs can still have a cycle when two of them feed each other (upstream defect
D3), so this module orders it and no caller assumes an order.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet, indices
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraph


def quotient_order(graph: DataflowGraph, groups: Sequence[IndexSet]) -> list[int] | None:
    """Order disjoint groups topologically, or return None when they feed each other in a cycle.

    Nodes in no group count as groups of their own but are left out of the result. Ties go to the
    group with the smaller first node. O(nodes + edges).
    """
    covered = 0
    for group in groups:
        covered |= group
    everything = [*groups, *(1 << index for index in indices(graph.everything & ~covered))]
    owner = {index: number for number, group in enumerate(everything) for index in indices(group)}
    after: list[set[int]] = [set() for _ in everything]
    for index, before in enumerate(graph.predecessors):
        for source in indices(before):
            after[owner[source]].add(owner[index])
    waiting = [0] * len(everything)
    for number, successors in enumerate(after):
        successors.discard(number)
        for successor in successors:
            waiting[successor] += 1
    ready = [
        (group & -group, number) for number, group in enumerate(everything) if not waiting[number]
    ]
    heapify(ready)
    order = []
    while ready:
        group = heappop(ready)[1]
        order.append(group)
        for successor in after[group]:
            waiting[successor] -= 1
            if not waiting[successor]:
                heappush(ready, (everything[successor] & -everything[successor], successor))
    if len(order) < len(everything):
        return None
    return [number for number in order if number < len(groups)]


def contract(graph: DataflowGraph, sub_graphs: Sequence[SubGraph]) -> DataflowGraph:
    """Return the graph with each sub-graph as one node, with its input and output values.

    Raises:
        ValueError: the sub-graphs overlap or feed each other in a cycle.
    """
    covered = 0
    for sub_graph in sub_graphs:
        if covered & sub_graph.inside:
            raise ValueError("sub-graphs overlap")
        covered |= sub_graph.inside
    single_nodes = [SubGraph(graph, 1 << index) for index in indices(graph.everything & ~covered)]
    parts = [*sub_graphs, *single_nodes]
    order = quotient_order(graph, [part.inside for part in parts])
    if order is None:
        raise ValueError("sub-graphs feed each other in a cycle")
    nodes = []
    for position, part in enumerate(order):
        nodes.append(_node(graph, parts[part], position, part >= len(sub_graphs)))
    return DataflowGraph(
        tuple(nodes), graph.types, graph.inputs, graph.outputs, constants=graph.constants
    )


def _node(graph: DataflowGraph, part: SubGraph, position: int, keep: bool) -> Node:
    if keep:
        old = graph.nodes[next(indices(part.inside))]
        return Node(position, old.name, old.op, old.kind, inputs=old.inputs, outputs=old.outputs)
    kind = OpPatternKind(part.kind)
    name = part.label or "+".join(part.ops)
    return Node(position, name, "call", kind, inputs=part.input_values, outputs=part.output_values)
