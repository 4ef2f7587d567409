"""Cut points: positions in the topological order with one live tensor.

Between two neighbours in the order, the values produced before and read after are live. At a position with
only one live value, a region can begin or end with one tensor at its boundary. Any interval of a topological
order is convex, so a wrong cut point costs candidates and never correctness. This allows three exceptions;
not counted as live are

* weights: they are always available;
* ambient values, live over many nodes: function inputs, and values computed from them by few nodes for
several
  readers (an attention mask, rotary tables). Counting them would hide every cut point of a transformer;
* returned values without a later reader.

Time is linear in nodes and operands.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, index_set, indices
from collage.graph.repeats import RepeatedRun

AMBIENT_SPAN = 32
"""Smallest number of nodes over which an ambient value is live."""
AMBIENT_RATIO = 4
"""Smallest ratio of the nodes over which an ambient value is live to the nodes on which it depends."""


def cut_points(graph: DataflowGraph, nodes: IndexSet | None = None) -> list[int]:
    """Return the positions p with 0 < p < len(order) and at most one live tensor.

    Args:
        graph: the graph.
        nodes: cut only this set: positions count its nodes, and its inputs are not live; default all nodes.
    """
    order = list(indices(graph.everything if nodes is None else nodes))
    position = {index: place for place, index in enumerate(order)}
    inside = index_set(order)
    change = [0] * (len(order) + 1)
    for value, maker in _values(graph, order, with_inputs=nodes is None):
        readers = graph.readers.get(value, 0) & inside
        if not readers:
            continue
        begin = position[maker] + 1 if maker is not None else 0
        end = position[readers.bit_length() - 1] + 1
        is_read_often = maker is None or readers.bit_count() > 1
        if not (is_read_often and _is_ambient(graph, maker, end - begin)):
            change[begin] += 1
            change[end] -= 1
    live = list(accumulate(change))
    return [place for place in range(1, len(order)) if live[place] <= 1]


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
    ancestors = visited = 1 << maker
    limit = span // AMBIENT_RATIO
    while ancestors:
        before = 0
        for index in indices(ancestors):
            before |= graph.predecessors[index]
        ancestors = before & ~visited
        visited |= before
        if visited.bit_count() > limit:
            return False
    return True


def pieces(graph: DataflowGraph, nodes: IndexSet | None = None) -> list[IndexSet]:
    """Split the graph (or `nodes`) at its cut points, in topological order."""
    order = list(indices(graph.everything if nodes is None else nodes))
    if not order:
        return []
    bounds = [0, *cut_points(graph, nodes), len(order)]
    return [index_set(order[begin:end]) for begin, end in pairwise(bounds)]


def intervals(
    parts: Sequence[IndexSet],
    runs: Sequence[RepeatedRun] = (),
    *,
    complete: int = 64,
    fine: int = 16,
) -> list[IndexSet]:
    """Return the unions of consecutive parts, all of them for at most `complete` parts.

    In longer sequences, intervals longer than `fine` begin and end at multiples of a power of two only; the
    power grows with their length, so the number is O(parts * fine). Where blocks repeat, intervals across
    several blocks begin and end at their borders; in longer sequences such intervals are added.

    Args:
        parts: disjoint parts, in order.
        runs: equal blocks of parts (`collage.graph.repeats`).
        complete: largest number of parts with all intervals.
        fine: largest length of an interval anywhere in a longer sequence.
    """
    prefix = [0]
    for part in parts:
        prefix.append(prefix[-1] | part)
    bounds = [
        (begin, end)
        for begin, end in _bounds(len(parts), complete, fine)
        if not any(run.excludes(begin, end) for run in runs)
    ]
    for run in runs:
        bounds += [
            (run.begin + run.period * first, run.begin + run.period * last)
            for first, last in _bounds(run.blocks, complete, fine)
        ]
    return [prefix[end] & ~prefix[begin] for begin, end in dict.fromkeys(bounds)]


def _bounds(count: int, complete: int, fine: int) -> Iterator[tuple[int, int]]:
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            if count <= complete or _on_grid(begin, end, count, fine):
                yield begin, end


def _on_grid(begin: int, end: int, count: int, fine: int) -> bool:
    step, length = 1, end - begin
    while length > fine * step:
        step *= 2
    return begin % step == 0 and (end % step == 0 or end == count)
