"""Layered layout of a dataflow graph, from top to bottom (Sugiyama's method).

Layers are longest paths from the inputs. Long edges get a bend in each layer, to run beside the boxes.
Barycentre sweeps order each layer; a column is the middle of its neighbours, with minimum distances. The
cost is linear in nodes and bends, except for sorting. Deterministic: ties keep the given order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BOX_WIDTH, BOX_HEIGHT = 190.0, 40.0
GAP_X, GAP_Y, BEND_WIDTH = 26.0, 34.0, 14.0
LAYOUT_SWEEPS = 4
BEND_WEIGHT = 1e-6
"""Weight of bends relative to boxes: with equal weights a long chain drifts to one side."""
MAX_BENT_LAYERS = 60
"""Longer edges have no bends: an edge over a thousand layers would need a thousand."""


@dataclass(frozen=True)
class Layout:
    """Centres (x, y) of nodes, and the inner points of each edge (source, target)."""

    centres: tuple[tuple[float, float], ...]
    bends: dict[tuple[int, int], tuple[tuple[float, float], ...]]
    width: float
    height: float


def lay_out(predecessors: Sequence[Sequence[int]]) -> Layout:
    """Place the nodes of an acyclic graph; predecessors have smaller numbers."""
    count = len(predecessors)
    layer = _layers(predecessors)
    above: list[list[int]] = [[] for _ in range(count)]
    chains: dict[tuple[int, int], list[int]] = {}
    for target, sources in enumerate(predecessors):
        for source in sorted(set(sources)):
            chains[source, target] = _chain(source, target, layer, above)
    ranks: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for vertex, depth in enumerate(layer):
        ranks[depth].append(vertex)
    below: list[list[int]] = [[] for _ in above]
    for vertex, sources in enumerate(above):
        for source in sources:
            below[source].append(vertex)
    xs = _columns(ranks, above, below, count)
    left_edge = min((x for x in xs), default=0.0) - BOX_WIDTH / 2 - GAP_X
    points = [
        (round(x - left_edge, 1), round(depth * (BOX_HEIGHT + GAP_Y) + BOX_HEIGHT, 1))
        for x, depth in zip(xs, layer, strict=True)
    ]
    bends = {edge: tuple(points[vertex] for vertex in chain) for edge, chain in chains.items()}
    width = max((x for x, _ in points), default=0.0) + BOX_WIDTH / 2 + GAP_X
    height = len(ranks) * (BOX_HEIGHT + GAP_Y) + BOX_HEIGHT / 2
    return Layout(tuple(points[:count]), bends, round(width, 1), round(height, 1))


def _layers(predecessors: Sequence[Sequence[int]]) -> list[int]:
    layer: list[int] = []
    for sources in predecessors:
        layer.append(max((layer[source] + 1 for source in sources), default=0))
    return layer


def _chain(source: int, target: int, layer: list[int], above: list[list[int]]) -> list[int]:
    """Add the bends of one edge as extra vertices and return them."""
    span = layer[target] - layer[source]
    chain: list[int] = []
    last = source
    if 1 < span <= MAX_BENT_LAYERS:
        for depth in range(layer[source] + 1, layer[target]):
            chain.append(len(layer))
            layer.append(depth)
            above.append([last])
            last = chain[-1]
    if span <= MAX_BENT_LAYERS:
        above[target].append(last)
    return chain


def _columns(
    ranks: list[list[int]], above: list[list[int]], below: list[list[int]], boxes: int
) -> list[float]:
    xs = [0.0] * len(above)
    for rank in ranks:
        _place(rank, {vertex: float(i) * BOX_WIDTH for i, vertex in enumerate(rank)}, xs, boxes)
    for sweep in range(LAYOUT_SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for rank in ranks if down else reversed(ranks):
            targets = {vertex: _target(vertex, near[vertex], xs, boxes) for vertex in rank}
            rank.sort(key=lambda vertex: (targets[vertex], xs[vertex]))
            _place(rank, targets, xs, boxes)
    return xs


def _target(vertex: int, near: Sequence[int], xs: Sequence[float], boxes: int) -> float:
    """Return the mean position of neighbouring boxes, else of bends: this keeps chains straight."""
    leaders = [neighbour for neighbour in near if neighbour < boxes] or near
    return sum(xs[neighbour] for neighbour in leaders) / len(leaders) if leaders else xs[vertex]


def _place(rank: list[int], targets: dict[int, float], xs: list[float], boxes: int) -> None:
    """Keep the order, leave room, and stay as near to the wanted columns as the mean allows."""
    placed: list[float] = []
    edge = float("-inf")
    for vertex in rank:
        half = (BOX_WIDTH + GAP_X if vertex < boxes else BEND_WIDTH) / 2
        x = max(targets[vertex], edge + half)
        placed.append(x)
        edge = x + half
    weights = [1.0 if vertex < boxes else BEND_WEIGHT for vertex in rank]
    off = sum(w * (targets[v] - x) for v, x, w in zip(rank, placed, weights, strict=True))
    shift = off / sum(weights)
    for vertex, x in zip(rank, placed, strict=True):
        xs[vertex] = x + shift
