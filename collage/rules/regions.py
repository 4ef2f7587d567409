"""Regions for graph backends: these backends optimise across operators themselves (DESIGN 4.2).

The number of convex sub-graphs is exponential. Three kinds are profitable: regions with one tensor at each
boundary (in long ones the backend keeps its layouts and fuses), the arms of a branch on their own (another
backend may be faster for one arm), and short regions anywhere. So the candidates are

* single nodes;
* intervals between cut points, of every length (O(P^2) for P pieces; above 64 pieces the ends of long
  intervals lie on a grid, see `cut_points.intervals`); where blocks repeat, those across several blocks begin
  and end at borders of blocks (`graph.repeats`);
* within a piece: the arms without their meeting node, all arms together, an arm with the meeting node, and
  the same again inside each arm, `MAX_NESTING` deep. This is linear in the arms; subsets of three or more
  arms are left out, because their number doubles with each arm and they gain nothing over one arm or all;
* connected intervals of the topological order of at most `short` nodes;
* the QDQ groups of a quantised model (`rules.qdq_groups`);
* the maximal regions of supported nodes, and so the whole function if all nodes are supported.

A dynamic-shape group counts as one node throughout (`graph.dynamic_shape_groups`). Unsupported nodes break
the intervals: each region contains supported nodes only. Every region is convex by construction, except arms
with a meeting node; these are checked.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from collage.graph.cut_points import intervals, pieces
from collage.graph.dataflow import DataflowGraph
from collage.graph.dynamic_shape_groups import contract_groups, expanded
from collage.graph.index_set import IndexSet, index_set, indices, is_subset
from collage.graph.repeats import repeated_runs
from collage.graph.sub_graph import SubGraph, components
from collage.rules.base_rules import Singles
from collage.rules.coalesce import coalesce
from collage.rules.qdq_groups import find_qdq_groups
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec

MAX_NESTING = 4
"""Largest nesting depth of branches within branches."""


@dataclass(frozen=True)
class Regions(PartitionRule):
    """The regions of a graph backend.

    Attributes:
        supported: supported nodes.
        short: largest number of nodes of a connected interval anywhere; default 6.
    """

    supported: IndexSet
    short: int = 6

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        small, members = contract_groups(graph)
        supported = supported_groups(members, self.supported)
        origins: dict[IndexSet, str] = {}
        for origin, regions in self._kinds(small, supported):
            for region in regions:
                if region and is_subset(region, supported):
                    origins.setdefault(region, origin)
        return [
            Candidate(SubGraph(graph, expanded(inside, members)), spec, f"Regions.{origin}")
            for inside, origin in origins.items()
        ]

    def _kinds(
        self, graph: DataflowGraph, supported: IndexSet
    ) -> Iterator[tuple[str, Iterable[IndexSet]]]:
        parts = pieces(graph)
        yield "node", (1 << index for index in indices(supported))
        for run in supported_runs(parts, supported):
            signatures = [_signature(graph, part) for part in run]
            yield "interval", intervals(run, repeated_runs(signatures))
        for piece in parts:
            yield "branch", branch_regions(graph, piece)
        yield "short", short_intervals(graph, self.short)
        yield "island", find_qdq_groups(graph)
        yield "maximal", maximal_regions(graph, supported)


def _signature(graph: DataflowGraph, part: IndexSet) -> Hashable:
    """Return what equal parts of repeated blocks share: operators, and types of their results."""
    nodes = [graph.nodes[index] for index in indices(part)]
    return tuple((node.op, *(graph.types.get(value) for value in node.outputs)) for node in nodes)


def supported_groups(members: Sequence[IndexSet], supported: IndexSet) -> IndexSet:
    """Return the contracted nodes with supported members only."""
    return index_set(index for index, group in enumerate(members) if is_subset(group, supported))


def supported_runs(parts: list[IndexSet], supported: IndexSet) -> list[list[IndexSet]]:
    """Return the maximal sequences of consecutive pieces with supported nodes only."""
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
    neighbours = [
        before | after for before, after in zip(graph.predecessors, graph.successors, strict=True)
    ]
    count = len(graph)
    for begin in range(count):
        for end in range(begin + 2, min(begin + longest, count) + 1):
            region = (1 << end) - (1 << begin)
            has_isolated_node = any(not neighbours[index] & region for index in range(begin, end))
            if not has_isolated_node and len(components(graph, region)) == 1:
                yield region


def branch_regions(graph: DataflowGraph, piece: IndexSet, nesting: int = 0) -> Iterator[IndexSet]:
    """Yield the regions inside one piece: arms, arms with their meeting node, intervals in arms."""
    if piece.bit_count() < 2 or nesting >= MAX_NESTING:
        return
    meeting = 1 << (piece.bit_length() - 1)
    all_arms = piece & ~meeting
    yield all_arms
    arms = components(graph, all_arms)
    for arm in arms:
        parts = pieces(graph, arm)
        yield from intervals(parts)
        for begin in range(len(parts)):
            tail = index_set(index for part in parts[begin:] for index in indices(part)) | meeting
            if SubGraph(graph, tail).is_convex:
                yield tail
        for part in parts:
            yield from branch_regions(graph, part, nesting + 1)
