"""Dynamic-shape groups: nodes that must run in one kernel because they exchange values of dynamic shape.

A value of unknown shape cannot cross a boundary: the executable allocates every boundary value
before it runs. So the producer of such a value and its readers form one group (`NonZero` and its
`Gather`), together with every node on a path between nodes of the group; groups that feed each
other become one. With each group contracted to one node, all values of the graph have a shape
(except outputs of the function, see `returns_dynamic_shape`), and rules need no special case: the
smallest region around a data-dependent value is a single node. A loop driven by the plug-in is the
exception: it allocates its results, so `group_parts` splits its group there.

Time is linear in nodes and operands for a graph without such values, and for each group otherwise.
"""

from collections.abc import Sequence

from collage.graph.contract import contract
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices
from collage.graph.sub_graph import SubGraph


def open_values(graph: DataflowGraph) -> tuple[str, ...]:
    """Return the node outputs of unknown shape."""
    return tuple(
        value
        for node in graph.nodes
        for value in node.outputs
        if value and value not in graph.types
    )


def returns_dynamic_shape(graph: DataflowGraph, nodes: IndexSet) -> bool:
    """Tell whether `nodes` produce an output of the function with unknown shape.

    Their kernel has to allocate its outputs.
    """
    makers = (graph.producer.get(value) for value in graph.outputs if value not in graph.types)
    return any(maker is not None and nodes >> maker & 1 for maker in makers)


def passes_on_dynamic_shape(graph: DataflowGraph, nodes: IndexSet) -> bool:
    """Tell whether `nodes` produce a value of unknown shape for the caller or for other nodes.

    Their kernel has to allocate its outputs.
    """
    return any(
        nodes >> graph.producer[value] & 1
        and (value in graph.outputs or graph.readers.get(value, 0) & ~nodes)
        for value in open_values(graph)
    )


def group_parts(graph: DataflowGraph, driven: IndexSet) -> list[IndexSet]:
    """Return the parts of the groups between their nodes in `driven`, in topological order.

    The kernel of a driven node allocates its outputs, and kernels of ONNX Runtime take inputs of any shape. A
    group holds every node on a path between its nodes, so an interval of its topological order is convex.
    """
    parts: list[IndexSet] = []
    for group in dynamic_shape_groups(graph):
        if not group & driven:
            continue
        part = 0
        for index in indices(group):
            if driven >> index & 1:
                parts.append(part)
                part = 0
            else:
                part |= 1 << index
        parts.append(part)
    return [part for part in parts if part]


def dynamic_shape_groups(graph: DataflowGraph) -> list[IndexSet]:
    """Return the groups of more than one node: disjoint, with an acyclic quotient, by first node."""
    groups: list[IndexSet] = []
    for value in open_values(graph):
        group = graph.readers.get(value, 0)
        if group:
            group |= 1 << graph.producer[value]
            for overlapping in [earlier for earlier in groups if earlier & group]:
                groups.remove(overlapping)
                group |= overlapping
            groups.append(group)
    before, after = graph.predecessors, graph.successors
    closed = {_reach(group, groups, after) & _reach(group, groups, before) for group in groups}
    return sorted(closed, key=lambda group: group & -group)


def _reach(start: IndexSet, groups: Sequence[IndexSet], step: Sequence[IndexSet]) -> IndexSet:
    """Return `start` and all nodes reachable by `step`; a reached group counts as a whole."""
    reached = frontier = start
    while frontier:
        grown = 0
        for index in indices(frontier):
            grown |= step[index]
        for group in groups:
            if group & grown:
                grown |= group
        frontier = grown & ~reached
        reached |= grown
    return reached


def contract_groups(graph: DataflowGraph) -> tuple[DataflowGraph, tuple[IndexSet, ...]]:
    """Return the graph with each group as one node, and the original nodes of each of its nodes."""
    joined = dynamic_shape_groups(graph)
    if not joined:
        return graph, tuple(1 << index for index in range(len(graph)))
    small = contract(graph, [SubGraph(graph, group) for group in joined])
    group_of = {index: group for group in joined for index in indices(group)}
    makers = [graph.producer[node.outputs[0]] for node in small.nodes]
    return small, tuple(group_of.get(maker, 1 << maker) for maker in makers)


def expanded(nodes: IndexSet, members: Sequence[IndexSet]) -> IndexSet:
    """Return the original nodes of a set of contracted nodes."""
    nodes_inside = 0
    for index in indices(nodes):
        nodes_inside |= members[index]
    return nodes_inside
