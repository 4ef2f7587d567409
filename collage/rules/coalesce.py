"""Join neighbouring candidates of one backend into as few as possible (RFC 0.7 "MaxCoalesce").

Used for the result of the search and for single-backend partitions. Groups form a union-find, so nothing is
merged twice (upstream defect D2), and every merge checks validity and an acyclic quotient of all groups again
(D3). Merging is greedy in topological order: the group of a node first tries the groups of its producers,
latest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices
from collage.graph.sub_graph import NO_LIMITS, SubGraphConfig
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, Refusal


class Groups:
    """A partition of all nodes into groups with an acyclic quotient graph.

    Nodes outside of the initial groups are groups of their own.
    """

    def __init__(self, graph: DataflowGraph, groups: Sequence[IndexSet]) -> None:
        self._graph = graph
        self._root = list(range(len(graph)))
        self.members: dict[int, IndexSet] = {index: 1 << index for index in range(len(graph))}
        self._before = {index: graph.predecessors[index] for index in range(len(graph))}
        self._after = {index: graph.successors[index] for index in range(len(graph))}
        for group in groups:
            self._fuse(list(indices(group)))

    def find(self, index: int) -> int:
        """Return the group of a node, named by one of its nodes."""
        while self._root[index] != index:
            self._root[index] = self._root[self._root[index]]
            index = self._root[index]
        return index

    def merge(self, left: int, right: int) -> None:
        """Join two groups, named by any of their nodes."""
        self._fuse([self.find(left), self.find(right)])

    def _fuse(self, nodes: list[int]) -> None:
        first = nodes[0]
        for member in nodes[1:]:
            self._root[member] = first
            self.members[first] |= self.members.pop(member)
            self._before[first] |= self._before.pop(member)
            self._after[first] |= self._after.pop(member)
        self._before[first] &= ~self.members[first]
        self._after[first] &= ~self.members[first]

    def join(self, nodes: IndexSet) -> bool:
        """Make single nodes one group, and return True, unless the group closes a cycle."""
        if self._comes_back(nodes, list(indices(nodes))):
            return False
        self._fuse(list(indices(nodes)))
        return True

    def stays_acyclic(self, left: int, right: int) -> bool:
        """Tell whether the quotient stays acyclic with two groups, named by any node, joined."""
        roots = [self.find(left), self.find(right)]
        return not self._comes_back(self.members[roots[0]] | self.members[roots[1]], roots)

    def _comes_back(self, nodes: IndexSet, roots: list[int]) -> bool:
        """Tell whether a path leaves `nodes` (the groups `roots`), crosses further groups and comes back.

        The search alternates between forward and backward steps and stops with the first empty frontier, so
        the smaller side determines the time.
        """
        sides = [_Walk(nodes, self._after, roots), _Walk(nodes, self._before, roots)]
        while all(side.frontier for side in sides):
            for side in sides:
                group = self.find(side.frontier.bit_length() - 1)
                if side.steps[group] & nodes:
                    return True
                side.visit(group, self.members[group])
        return False


class _Walk:
    """One direction of a search through groups: `steps` are the neighbours of each group."""

    def __init__(self, nodes: IndexSet, steps: dict[int, IndexSet], roots: list[int]) -> None:
        self.steps, self.visited, self.frontier = steps, nodes, 0
        for root in roots:
            self.frontier |= steps[root]
        self.frontier &= ~nodes

    def visit(self, group: int, members: IndexSet) -> None:
        self.visited |= members
        self.frontier = (self.frontier | self.steps[group]) & ~self.visited


def coalesce(
    candidates: Sequence[Candidate], config: SubGraphConfig = NO_LIMITS
) -> list[Candidate]:
    """Merge touching disjoint candidates of one spec as far as validity and acyclicity allow.

    Args:
        candidates: pairwise disjoint candidates; they need not cover the graph.
        config: limits of a merged candidate; default none.

    Raises:
        ValueError: the candidates overlap.
    """
    if not candidates:
        return []
    graph = candidates[0].sub_graph.graph
    groups = Groups(graph, [candidate.inside for candidate in _disjoint(candidates)])
    owner = {groups.find(next(indices(candidate.inside))): candidate for candidate in candidates}
    changed = True
    while changed:
        changed = False
        for index in range(len(graph)):
            for before in reversed(list(indices(graph.predecessors[index]))):
                changed |= _try_merge(groups, owner, (before, index), config)
    return sorted(owner.values(), key=lambda candidate: candidate.order)


def _disjoint(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    covered = 0
    for candidate in candidates:
        if covered & candidate.inside:
            raise ValueError("candidates overlap")
        covered |= candidate.inside
    return candidates


def _try_merge(
    groups: Groups, owner: dict[int, Candidate], edge: tuple[int, int], config: SubGraphConfig
) -> bool:
    up, down = groups.find(edge[0]), groups.find(edge[1])
    if up == down or up not in owner or down not in owner:
        return False
    producer, consumer = owner[up], owner[down]
    if producer.spec != consumer.spec or not groups.stays_acyclic(up, down):
        return False
    union = producer.sub_graph.disjoint_union(consumer.sub_graph).with_label("")
    if config != NO_LIMITS and union.validity(config) is not None:
        return False
    del owner[up], owner[down]
    groups.merge(up, down)
    owner[groups.find(up)] = replace(producer, sub_graph=union, origin="MaxCoalesce")
    return True


@dataclass(frozen=True)
class MaxCoalesce(PartitionRule):
    """The sub-rule's candidates joined as far as possible; among overlapping ones the largest wins."""

    rule: PartitionRule
    config: SubGraphConfig = NO_LIMITS

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return coalesce(greedy_partition(self.rule.candidates(graph, spec)), self.config)

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        return self.rule.refusals(graph)


def greedy_partition(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Choose disjoint candidates with an acyclic quotient, largest first, then by first node."""
    if not candidates:
        return []
    graph = candidates[0].sub_graph.graph
    groups = Groups(graph, [])
    chosen, covered = [], 0
    by_size = sorted(candidates, key=lambda candidate: (-candidate.sub_graph.size, candidate.order))
    for candidate in by_size:
        if covered & candidate.inside or not groups.join(candidate.inside):
            continue
        chosen.append(candidate)
        covered |= candidate.inside
    return sorted(chosen, key=lambda candidate: candidate.order)
