"""Cut points: places in the topological order where one tensor crosses.

Between two neighbours in the order, the values made before and read after are live. Where only one
is, a region can begin or end and exchange one tensor with the rest. Any interval of a topological
order is convex, so cutting at the wrong place costs candidates and never correctness; what is not
counted as live can therefore be chosen freely:

* weights: they are there anyway;
* ambient values: function inputs, and what few nodes make of them for several readers, that are
  live over a long stretch (an attention mask, rotary tables). Counting them would hide every cut point of a
  transformer;
* values that are only returned: no later region reads them.

Time is linear in nodes and operands.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, index_set, indices

AMBIENT_SPAN = 32
"""Nodes over which a value must be live, at least, to count as ambient."""
AMBIENT_RATIO = 4
"""An ambient value is live over this many times as many nodes as it depends on."""


def cut_points(graph: DataflowGraph, nodes: IndexSet | None = None) -> list[int]:
    """Return positions p with 0 < p < len(order) where at most one tensor crosses.

    Args:
        graph: the graph.
        nodes: cut only this set; positions then count its nodes, and what enters it is not live.
    """
    order = list(indices(graph.everything if nodes is None else nodes))
    position = {index: p for p, index in enumerate(order)}
    inside = index_set(order)
    change = [0] * (len(order) + 1)
    for value, maker in _values(graph, order, with_inputs=nodes is None):
        readers = graph.readers.get(value, 0) & inside
        if not readers:
            continue
        begin = position[maker] + 1 if maker is not None else 0
        end = position[readers.bit_length() - 1] + 1
        read_often = maker is None or readers.bit_count() > 1
        if not (read_often and _is_ambient(graph, maker, end - begin)):
            change[begin] += 1
            change[end] -= 1
    live = list(accumulate(change))
    return [p for p in range(1, len(order)) if live[p] <= 1]


def _values(
    graph: DataflowGraph, order: Sequence[int], with_inputs: bool
) -> Iterator[tuple[str, int | None]]:
    if with_inputs:
        yield from ((value, None) for value in graph.inputs)
    for index in order:
        yield from ((value, index) for value in graph.nodes[index].outputs)


def _is_ambient(graph: DataflowGraph, maker: int | None, span: int) -> bool:
    if span < AMBIENT_SPAN or maker is None:
        return span >= AMBIENT_SPAN
    ancestors = seen = 1 << maker
    limit = span // AMBIENT_RATIO
    while ancestors:
        before = 0
        for i in indices(ancestors):
            before |= graph.predecessors[i]
        ancestors = before & ~seen
        seen |= before
        if seen.bit_count() > limit:
            return False
    return True


def pieces(graph: DataflowGraph, nodes: IndexSet | None = None) -> list[IndexSet]:
    """Split the graph (or `nodes`) at its cut points, in topological order."""
    order = list(indices(graph.everything if nodes is None else nodes))
    if not order:
        return []
    bounds = [0, *cut_points(graph, nodes), len(order)]
    return [index_set(order[a:b]) for a, b in pairwise(bounds)]


def intervals(parts: Sequence[IndexSet], whole: int = 64, fine: int = 16) -> list[IndexSet]:
    """Return the unions of consecutive parts.

    Up to `whole` parts that is every interval. Of longer sequences, intervals longer than `fine`
    begin and end only at multiples of a power of two that grows with their length, which keeps
    the number at O(parts * fine).
    """
    prefix = [0]
    for part in parts:
        prefix.append(prefix[-1] | part)
    count, found = len(parts), []
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            if count <= whole or _on_grid(begin, end, count, fine):
                found.append(prefix[end] & ~prefix[begin])
    return found


def _on_grid(begin: int, end: int, count: int, fine: int) -> bool:
    step, length = 1, end - begin
    while length > fine * step:
        step *= 2
    return begin % step == 0 and (end % step == 0 or end == count)
