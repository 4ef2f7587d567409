"""Join candidates into larger ones up to a fixed point (RFC 0.7 "CombineByPrimitives").

Each round looks at the pairs with at least one new side, so it finds the union of an old producer and a new
consumer (upstream tested the wrong index there and lost these unions: defect D1). The depth is that of the
union, not the sum of both sides (D14). Three limits keep enumeration finite and fast: depth, nodes, and the
number of candidates with the same first node. Later rounds make larger unions, so the last limit cuts the
largest ones; a graph with a wide fan-in has exponentially many.
"""

import abc
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, first, index_set, indices
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraph
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, Refusal

Kind = OpPatternKind


@dataclass
class Pool:
    """The candidates so far, indexed by their entry and exit nodes.

    Attributes:
        graph: the function's dataflow graph.
        sub_graphs: the candidates.
        by_entry: indices of the candidates by entry node.
        by_exit: indices of the candidates by exit node.
        old: number of candidates already paired with each other in earlier rounds.
        full: first nodes at their limit of candidates.
    """

    graph: DataflowGraph
    sub_graphs: list[SubGraph] = field(default_factory=list)
    by_entry: dict[int, list[int]] = field(default_factory=dict)
    by_exit: dict[int, list[int]] = field(default_factory=dict)
    old: int = 0
    full: IndexSet = 0

    def is_open(self, nodes: IndexSet) -> bool:
        """Tell whether one more candidate may begin at the first of `nodes`."""
        return not nodes & -nodes & self.full

    def add(self, sub_graph: SubGraph) -> None:
        number = len(self.sub_graphs)
        self.sub_graphs.append(sub_graph)
        for index in indices(sub_graph.entry):
            self.by_entry.setdefault(index, []).append(number)
        for index in indices(sub_graph.exit):
            self.by_exit.setdefault(index, []).append(number)

    def fresh(self) -> Iterable[int]:
        """Indices of the new candidates of this round."""
        return range(self.old, len(self.sub_graphs))

    def touching(self) -> Iterator[tuple[SubGraph, SubGraph]]:
        """Yield the (producer, consumer) pairs to join, at least one of them new."""
        for up, producer in enumerate(self.sub_graphs):
            consumers = {
                number
                for index in indices(producer.output)
                for number in self.by_entry.get(index, ())
            }
            for down in sorted(consumers):
                consumer = self.sub_graphs[down]
                if up < self.old and down < self.old:
                    continue
                if self.is_open(producer.inside | consumer.inside) and touch(producer, consumer):
                    yield producer, consumer


def touch(up: SubGraph, down: SubGraph) -> bool:
    """Tell whether `up` feeds `down` directly and their union is convex."""
    if not up.is_disjoint(down) or not up.output & down.entry:
        return False
    return SubGraph(up.graph, up.inside | down.inside).is_convex


class Combiner(abc.ABC):
    """One way to join candidates; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        """Yield unions with at least one new candidate; `Combine` drops repeats."""


@dataclass(frozen=True)
class AllSimple(Combiner):
    """Join a producer and a consumer with kinds up to those of one pair of `kinds`."""

    kinds: tuple[tuple[OpPatternKind, OpPatternKind], ...]

    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        for up, down in pool.touching():
            if any(up.kind <= high and down.kind <= low for high, low in self.kinds):
                yield up.disjoint_union(down)


def ByKind(up: OpPatternKind, down: OpPatternKind) -> AllSimple:
    """Join by one pair of kinds."""
    return AllSimple(((up, down),))


FUSE_OPS_KINDS = (
    (Kind.OUT_ELEMWISE_FUSABLE, Kind.BROADCAST),
    (Kind.BROADCAST, Kind.COMM_REDUCE),
    (Kind.INJECTIVE, Kind.INJECTIVE),
)


@dataclass(frozen=True)
class TupleArg(Combiner):
    """Join an injective consumer of a tuple, the tuple, and one injective producer per field.

    No union exists for a field without an injective producer: an argument, a constant, or a heavier kind.
    """

    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        for number, consumer in enumerate(pool.sub_graphs):
            if consumer.kind > Kind.INJECTIVE:
                continue
            for index in indices(consumer.input):
                if pool.graph.nodes[index].op == "tuple":
                    yield from self._with_fields(pool, number, index)

    def _with_fields(self, pool: Pool, number: int, index: int) -> Iterator[SubGraph]:
        graph = pool.graph
        choices = [
            [
                member
                for member in pool.by_exit.get(graph.producer.get(field_value, -1), ())
                if pool.sub_graphs[member].kind <= Kind.INJECTIVE and member != number
            ]
            for field_value in graph.nodes[index].inputs
        ]
        for fields in product(*choices):
            members = [pool.sub_graphs[member] for member in dict.fromkeys((number, *fields))]
            if max(number, *fields) < pool.old or _overlap(members, 1 << index):
                continue
            joined = SubGraph(graph, 1 << index)
            for member in members:
                joined = joined.disjoint_union(member)
            yield joined


def _overlap(members: Iterable[SubGraph], covered: IndexSet) -> bool:
    for member in members:
        if covered & member.inside:
            return True
        covered |= member.inside
    return False


@dataclass(frozen=True)
class TupleProj(Combiner):
    """Join an injective candidate and one projection of its result."""

    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        for number in pool.fresh():
            base = pool.sub_graphs[number]
            if base.kind > Kind.INJECTIVE:
                continue
            for index in indices(base.output):
                if pool.graph.nodes[index].op == "tuple_get_item":
                    yield base.disjoint_union(SubGraph(pool.graph, 1 << index))


@dataclass(frozen=True)
class Constants(Combiner):
    """Join a candidate and all constant nodes among its inputs."""

    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        for number in pool.fresh():
            base = pool.sub_graphs[number]
            constants = 0
            for index in indices(base.input):
                if pool.graph.nodes[index].op == "constant":
                    constants |= 1 << index
            if constants:
                yield base.disjoint_union(SubGraph(pool.graph, constants))


@dataclass(frozen=True)
class ByAnchor(Combiner):
    """Join candidates with anchors (convolutions, matrix products); `AllSimple` never joins these.

    Vertical: an anchored producer and its anchored consumer. Horizontal: independent candidates with one
    anchor each, of one operator and with a common first operand (Q, K and V). All siblings are joined
    together, once with the smallest and once with the largest candidate of each anchor: the number of
    subsets doubles with each sibling, and a common operand that is read once gains most for all.
    """

    horizontal: bool = False

    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        if self.horizontal:
            yield from self._siblings(pool)
            return
        for up, down in pool.touching():
            if up.kind == down.kind == Kind.OUT_ELEMWISE_FUSABLE:
                yield up.disjoint_union(down)

    def _siblings(self, pool: Pool) -> Iterator[SubGraph]:
        by_anchor: dict[int, list[SubGraph]] = {}
        for sub_graph in pool.sub_graphs:
            anchors = _anchors(sub_graph)
            if anchors.bit_count() == 1:
                by_anchor.setdefault(first(anchors), []).append(sub_graph)
        siblings: dict[tuple[str, str], list[int]] = {}
        for anchor in sorted(by_anchor):
            node = pool.graph.nodes[anchor]
            siblings.setdefault((node.inputs[0] if node.inputs else "", node.op), []).append(anchor)
        for (value, _), group in siblings.items():
            if not value or len(group) < 2:
                continue
            sizes = [sorted(by_anchor[anchor], key=_small_first) for anchor in group]
            for members in ([each[0] for each in sizes], [each[-1] for each in sizes]):
                if _is_independent(members):
                    yield functools.reduce(SubGraph.disjoint_union, members)


def _anchors(sub_graph: SubGraph) -> IndexSet:
    nodes = sub_graph.graph.nodes
    return index_set(
        index
        for index in indices(sub_graph.inside)
        if nodes[index].kind == Kind.OUT_ELEMWISE_FUSABLE
    )


def _is_independent(members: Sequence[SubGraph]) -> bool:
    """Tell whether the candidates are disjoint and none needs a result of another."""
    if _overlap(members, 0):
        return False
    union = functools.reduce(lambda nodes, member: nodes | member.inside, members, 0)
    return not any(member.downstream & union for member in members)


@dataclass(frozen=True)
class Combine(PartitionRule):
    """The sub-rule's candidates and all their unions by `combiners`, up to a fixed point.

    Attributes:
        rule: the sub-rule.
        combiners: the ways to join candidates.
        max_depth: largest depth of a union; 0 for no limit.
        max_nodes: largest number of nodes of a union; 0 for no limit.
        max_candidates_per_node: largest number of unions with the same first node; 0 for no limit.
        keeps_parts: whether the sub-rule's own candidates are listed too.
    """

    rule: PartitionRule
    combiners: tuple[Combiner, ...]
    max_depth: int = 0
    max_nodes: int = 0
    max_candidates_per_node: int = 0
    keeps_parts: bool = True

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        base = self.rule.candidates(graph, spec)
        pool = Pool(graph)
        known = {candidate.sub_graph for candidate in base}
        for candidate in base:
            pool.add(candidate.sub_graph)
        begun = [0] * len(graph)
        while pool.old < len(pool.sub_graphs):
            added = []
            for union in (union for combiner in self.combiners for union in combiner.unions(pool)):
                if union not in known and pool.is_open(union.inside) and self._fits(union):
                    known.add(union)
                    added.append(union)
                    self._count(pool, begun, first(union.inside))
            pool.old = len(pool.sub_graphs)
            for union in sorted(added, key=_small_first):
                pool.add(union)
        joined = [
            Candidate(sub_graph, spec, "Combine") for sub_graph in pool.sub_graphs[len(base) :]
        ]
        return [*base, *joined] if self.keeps_parts else joined

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        return self.rule.refusals(graph)

    def _count(self, pool: Pool, begun: list[int], start: int) -> None:
        begun[start] += 1
        if begun[start] == self.max_candidates_per_node:
            pool.full |= 1 << start

    def _fits(self, union: SubGraph) -> bool:
        if self.max_nodes and union.size > self.max_nodes:
            return False
        return not self.max_depth or union.depth <= self.max_depth


def _small_first(sub_graph: SubGraph) -> tuple[int, int, str]:
    return (sub_graph.size, sub_graph.inside, repr(sub_graph.nested))
