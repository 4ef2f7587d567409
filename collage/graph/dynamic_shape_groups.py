"""Units: nodes that must run in one kernel, because data decides the shape of what they exchange.

A value without a known shape cannot cross a border: the executable allocates every border value
before it runs. So the maker of such a value and its readers are one unit (`NonZero` and the `Gather`
behind it), and with them every node on a path between nodes of the unit; units that feed each other
become one. Contracting each unit to one node leaves a graph whose values all have a shape (but for
what the function returns, see `returned_open`), in which any rule may look for regions: the smallest
region around a data-dependent value is then a single node.

Time is linear in nodes and operands for a graph without such values, and for each unit otherwise.
"""

from collections.abc import Sequence

from collage.graph.contract import contract
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices
from collage.graph.sub_graph import SubGraph


def open_values(graph: DataflowGraph) -> tuple[str, ...]:
    """Return the values that nodes make without a shape that is known before the run."""
    return tuple(v for node in graph.nodes for v in node.outputs if v and v not in graph.types)


def returned_open(graph: DataflowGraph, nodes: IndexSet) -> bool:
    """Tell whether `nodes` make a value of unknown shape that the function returns.

    Their kernel has to allocate its outputs.
    """
    makers = (graph.producer.get(v) for v in graph.outputs if v not in graph.types)
    return any(maker is not None and nodes >> maker & 1 for maker in makers)


def joined_units(graph: DataflowGraph) -> list[IndexSet]:
    """Return the units of more than one node: disjoint, in an acyclic quotient, by first node."""
    groups: list[IndexSet] = []
    for value in open_values(graph):
        group = graph.readers.get(value, 0)
        if group:
            group |= 1 << graph.producer[value]
            for other in [g for g in groups if g & group]:
                groups.remove(other)
                group |= other
            groups.append(group)
    before, after = graph.predecessors, graph.successors
    closed = {_reach(g, groups, after) & _reach(g, groups, before) for g in groups}
    return sorted(closed, key=lambda unit: unit & -unit)


def _reach(start: IndexSet, groups: Sequence[IndexSet], step: Sequence[IndexSet]) -> IndexSet:
    """Return `start` and all that follows it by `step`, a group as a whole once it is entered."""
    seen = frontier = start
    while frontier:
        grown = 0
        for index in indices(frontier):
            grown |= step[index]
        for group in groups:
            if group & grown:
                grown |= group
        frontier = grown & ~seen
        seen |= grown
    return seen


def contract_units(graph: DataflowGraph) -> tuple[DataflowGraph, tuple[IndexSet, ...]]:
    """Return the graph with each unit as one node, and the nodes that each of its nodes stands for."""
    joined = joined_units(graph)
    if not joined:
        return graph, tuple(1 << index for index in range(len(graph)))
    small = contract(graph, [SubGraph(graph, unit) for unit in joined])
    unit_of = {index: unit for unit in joined for index in indices(unit)}
    makers = [graph.producer[node.outputs[0]] for node in small.nodes]
    return small, tuple(unit_of.get(maker, 1 << maker) for maker in makers)


def expanded(nodes: IndexSet, members: Sequence[IndexSet]) -> IndexSet:
    """Return the nodes that a set of contracted nodes stands for."""
    found = 0
    for index in indices(nodes):
        found |= members[index]
    return found
