"""Regions for graph backends, which optimise across operators themselves (DESIGN 4.2).

All convex sub-graphs are exponentially many. What pays is: regions that exchange one tensor with
the rest (long ones let the backend keep its layouts and fuse), the arms of a branch on their own
(another backend may do one arm better), and short regions anywhere. So the candidates are

* single nodes;
* intervals between cut points, of every length (O(P^2) for P pieces; above 64 pieces the ends of
  long intervals lie on a grid, see `cuts.intervals`);
* within a piece: the arms that remain without the node where they meet, all arms together, an arm
  with the meeting node, and the same again inside each arm, `MAX_NESTING` deep. That is linear in
  the arms; subsets of three or more arms are left out because their number doubles with each arm
  and they win nothing that one arm, or all, does not;
* connected intervals of the topological order of at most `short` nodes;
* the islands of a quantised model (`rules.islands`);
* the maximal regions of supported nodes, and so the whole function when all are supported.

Nodes joined by values whose shape depends on data count as one node throughout (`graph.units`).
Nodes that the backend does not take break the intervals: each region contains supported nodes
only. Every region is convex by construction, except arms with a meeting node, which are checked.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from collage.graph.cut_points import intervals, pieces
from collage.graph.dataflow import DataflowGraph
from collage.graph.dynamic_shape_groups import contract_units, expanded
from collage.graph.index_set import IndexSet, index_set, indices, is_subset
from collage.graph.sub_graph import SubGraph, components
from collage.rules.base_rules import Singles
from collage.rules.coalesce import coalesce
from collage.rules.qdq_groups import islands
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec

MAX_NESTING = 4
"""Branches within branches that are looked into."""


@dataclass(frozen=True)
class Regions(PartitionRule):
    """The regions of `supported` nodes that a graph backend may take.

    Args of the constructor: `supported`, and `short`, the size up to which any connected interval
    of the topological order is a candidate.
    """

    supported: IndexSet
    short: int = 6

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        small, members = contract_units(graph)
        supported = supported_units(members, self.supported)
        found: dict[IndexSet, str] = {}
        for origin, regions in self._kinds(small, supported):
            for region in regions:
                if region and is_subset(region, supported):
                    found.setdefault(region, origin)
        return [
            Candidate(SubGraph(graph, expanded(inside, members)), spec, f"Regions.{origin}")
            for inside, origin in found.items()
        ]

    def _kinds(
        self, graph: DataflowGraph, supported: IndexSet
    ) -> Iterator[tuple[str, Iterable[IndexSet]]]:
        parts = pieces(graph)
        yield "node", (1 << i for i in indices(supported))
        for run in supported_runs(parts, supported):
            yield "interval", intervals(run)
        for piece in parts:
            yield "branch", branch_regions(graph, piece)
        yield "short", short_intervals(graph, self.short)
        yield "island", islands(graph)
        yield "maximal", maximal_regions(graph, supported)


def supported_units(members: Sequence[IndexSet], supported: IndexSet) -> IndexSet:
    """Return the contracted nodes that stand for supported nodes only."""
    return index_set(i for i, unit in enumerate(members) if is_subset(unit, supported))


def supported_runs(parts: list[IndexSet], supported: IndexSet) -> list[list[IndexSet]]:
    """Return the maximal sequences of consecutive pieces that hold supported nodes only."""
    runs: list[list[IndexSet]] = [[]]
    for part in parts:
        if is_subset(part, supported):
            runs[-1].append(part)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def maximal_regions(graph: DataflowGraph, supported: IndexSet) -> list[IndexSet]:
    """Return the regions of the greedy partition of all supported nodes into few regions."""
    spec = PartitionSpec("")
    singles = Singles(supported).candidates(graph, spec)
    return [candidate.inside for candidate in coalesce(singles)]


def short_intervals(graph: DataflowGraph, longest: int) -> Iterator[IndexSet]:
    """Yield the connected intervals of 2 to `longest` nodes of the topological order."""
    neighbours = [a | b for a, b in zip(graph.predecessors, graph.successors, strict=True)]
    count = len(graph)
    for begin in range(count):
        for end in range(begin + 2, min(begin + longest, count) + 1):
            region = (1 << end) - (1 << begin)
            alone = any(not neighbours[i] & region for i in range(begin, end))
            if not alone and len(components(graph, region)) == 1:
                yield region


def branch_regions(graph: DataflowGraph, piece: IndexSet, nesting: int = 0) -> Iterator[IndexSet]:
    """Yield the regions inside one piece: arms, arms with their meeting node, intervals in arms."""
    if piece.bit_count() < 2 or nesting >= MAX_NESTING:
        return
    meeting = 1 << (piece.bit_length() - 1)
    rest = piece & ~meeting
    yield rest
    arms = components(graph, rest)
    for arm in arms:
        parts = pieces(graph, arm)
        yield from intervals(parts)
        for begin in range(len(parts)):
            tail = index_set(i for part in parts[begin:] for i in indices(part)) | meeting
            if SubGraph(graph, tail).is_convex:
                yield tail
        for part in parts:
            yield from branch_regions(graph, part, nesting + 1)
