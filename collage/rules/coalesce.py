"""Join neighbouring candidates of one backend into as few as possible (RFC 0.7 "MaxCoalesce").

Used to clean up after the search and to make single-backend partitions. Groups are kept in a
union-find, so nothing is merged twice (upstream defect D2), and every merge re-checks validity and
that the quotient of all groups stays acyclic (D3). Merging is greedy in topological order: a node's
group first tries the groups of its producers, latest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices
from collage.graph.sub_graph import NO_LIMITS, SubGraphConfig
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec


class Groups:
    """A partition of all nodes into groups whose quotient graph stays acyclic.

    Nodes that belong to no given group are groups of their own.
    """

    def __init__(self, graph: DataflowGraph, groups: Sequence[IndexSet]) -> None:
        self._graph = graph
        self._root = list(range(len(graph)))
        self.members: dict[int, IndexSet] = {i: 1 << i for i in range(len(graph))}
        self._before = {i: graph.predecessors[i] for i in range(len(graph))}
        self._after = {i: graph.successors[i] for i in range(len(graph))}
        for group in groups:
            self._fuse(list(indices(group)))

    def find(self, index: int) -> int:
        """Return the group of a node, named by one of its nodes."""
        while self._root[index] != index:
            self._root[index] = self._root[self._root[index]]
            index = self._root[index]
        return index

    def merge(self, one: int, other: int) -> None:
        """Join two groups, named by any of their nodes."""
        self._fuse([self.find(one), self.find(other)])

    def _fuse(self, nodes: list[int]) -> None:
        first = nodes[0]
        for other in nodes[1:]:
            self._root[other] = first
            self.members[first] |= self.members.pop(other)
            self._before[first] |= self._before.pop(other)
            self._after[first] |= self._after.pop(other)
        self._before[first] &= ~self.members[first]
        self._after[first] &= ~self.members[first]

    def join(self, nodes: IndexSet) -> bool:
        """Make single nodes one group, unless that closes a cycle."""
        if self._comes_back(nodes, list(indices(nodes))):
            return False
        self._fuse(list(indices(nodes)))
        return True

    def stays_acyclic(self, one: int, other: int) -> bool:
        """Tell whether joining two groups, named by any node, leaves the quotient acyclic."""
        roots = [self.find(one), self.find(other)]
        return not self._comes_back(self.members[roots[0]] | self.members[roots[1]], roots)

    def _comes_back(self, nodes: IndexSet, roots: list[int]) -> bool:
        """Tell whether a path leaves `nodes` (the groups `roots`), crosses others and comes back.

        Walks forward and backward in turns and stops when either side is exhausted, so the smaller
        side decides the time.
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
        self.steps, self.seen, self.frontier = steps, nodes, 0
        for root in roots:
            self.frontier |= steps[root]
        self.frontier &= ~nodes

    def visit(self, group: int, members: IndexSet) -> None:
        self.seen |= members
        self.frontier = (self.frontier | self.steps[group]) & ~self.seen


def coalesce(
    candidates: Sequence[Candidate], config: SubGraphConfig = NO_LIMITS
) -> list[Candidate]:
    """Merge touching disjoint candidates of one spec as far as validity and acyclicity allow.

    Args:
        candidates: pairwise disjoint; they need not cover the graph.
        config: what a merged candidate must fulfil.

    Raises:
        ValueError: the candidates overlap.
    """
    if not candidates:
        return []
    graph = candidates[0].sub_graph.graph
    groups = Groups(graph, [c.inside for c in _disjoint(candidates)])
    owner = {groups.find(next(indices(c.inside))): c for c in candidates}
    changed = True
    while changed:
        changed = False
        for index in range(len(graph)):
            for before in reversed(list(indices(graph.predecessors[index]))):
                changed |= _try_merge(groups, owner, (before, index), config)
    return sorted(owner.values(), key=lambda c: c.order)


def _disjoint(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    seen = 0
    for candidate in candidates:
        if seen & candidate.inside:
            raise ValueError("candidates overlap")
        seen |= candidate.inside
    return candidates


def _try_merge(
    groups: Groups, owner: dict[int, Candidate], edge: tuple[int, int], config: SubGraphConfig
) -> bool:
    up, down = groups.find(edge[0]), groups.find(edge[1])
    if up == down or up not in owner or down not in owner:
        return False
    one, other = owner[up], owner[down]
    if one.spec != other.spec or not groups.stays_acyclic(up, down):
        return False
    union = one.sub_graph.disjoint_union(other.sub_graph).with_label("")
    if config != NO_LIMITS and union.validity(config) is not None:
        return False
    del owner[up], owner[down]
    groups.merge(up, down)
    owner[groups.find(up)] = replace(one, sub_graph=union, origin="MaxCoalesce")
    return True


@dataclass(frozen=True)
class MaxCoalesce(PartitionRule):
    """The sub-rule's candidates joined as far as possible; where they overlap, the larger goes first."""

    rule: PartitionRule
    config: SubGraphConfig = NO_LIMITS

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return coalesce(greedy_partition(self.rule.candidates(graph, spec)), self.config)


def greedy_partition(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Choose disjoint candidates that can run together, largest first, then by first node."""
    if not candidates:
        return []
    graph = candidates[0].sub_graph.graph
    groups = Groups(graph, [])
    chosen, covered = [], 0
    for candidate in sorted(candidates, key=lambda c: (-c.sub_graph.size, c.order)):
        if covered & candidate.inside or not groups.join(candidate.inside):
            continue
        chosen.append(candidate)
        covered |= candidate.inside
    return sorted(chosen, key=lambda c: c.order)
