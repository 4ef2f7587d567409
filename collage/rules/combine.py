"""Join candidates into larger ones until nothing new appears (RFC 0.7 "CombineByPrimitives").

Each round looks at the pairs in which at least one side is new, so a union of an old producer with
a new consumer is found (upstream tested the wrong index there and lost them: defect D1). Depth is
that of the union and not the sum of both sides (D14). Enumeration is finite and fast through three
limits: depth, nodes, and the number of candidates that begin at one node. Rounds make ever larger
unions, so the last limit cuts the largest ones; a graph with a wide fan-in has exponentially many.
"""

import abc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, first, indices
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraph
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec

Kind = OpPatternKind


@dataclass
class Pool:
    """The candidates so far, indexed by the nodes at which they can be joined.

    `old` counts those that earlier rounds have already paired with each other.
    """

    graph: DataflowGraph
    items: list[SubGraph] = field(default_factory=list)
    by_entry: dict[int, list[int]] = field(default_factory=dict)
    by_exit: dict[int, list[int]] = field(default_factory=dict)
    old: int = 0
    full: IndexSet = 0
    """Nodes at which no more candidates may begin."""

    def is_open(self, nodes: IndexSet) -> bool:
        """Tell whether one more candidate may begin where `nodes` do."""
        return not nodes & -nodes & self.full

    def add(self, sub_graph: SubGraph) -> None:
        number = len(self.items)
        self.items.append(sub_graph)
        for index in indices(sub_graph.entry):
            self.by_entry.setdefault(index, []).append(number)
        for index in indices(sub_graph.exit):
            self.by_exit.setdefault(index, []).append(number)

    def fresh(self) -> Iterable[int]:
        """Numbers of the candidates that are new in this round."""
        return range(self.old, len(self.items))

    def touching(self) -> Iterator[tuple[SubGraph, SubGraph]]:
        """Yield (producer, consumer) pairs, at least one of them new, that may be joined."""
        for up, producer in enumerate(self.items):
            found = {d for o in indices(producer.output) for d in self.by_entry.get(o, ())}
            for down in sorted(found):
                consumer = self.items[down]
                if up < self.old and down < self.old:
                    continue
                if self.is_open(producer.inside | consumer.inside) and touch(producer, consumer):
                    yield producer, consumer


def touch(up: SubGraph, down: SubGraph) -> bool:
    """Tell whether `up` feeds `down` directly and joining them closes no path through others."""
    if not up.is_disjoint(down) or not up.output & down.entry:
        return False
    return SubGraph(up.graph, up.inside | down.inside).is_convex


class Combiner(abc.ABC):
    """One way to join candidates; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        """Yield unions that involve at least one new candidate; repeats are dropped later."""


@dataclass(frozen=True)
class AllSimple(Combiner):
    """Join a producer and a consumer whose kinds are at most those of one of `kinds`."""

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
ANYTHING = ((Kind.OUT_ELEMWISE_FUSABLE, Kind.OUT_ELEMWISE_FUSABLE),)


@dataclass(frozen=True)
class TupleArg(Combiner):
    """Join an injective consumer of a tuple, the tuple, and one injective producer per field.

    A field that is an argument or a constant, or that only heavier candidates make, prevents it.
    """

    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        for number, consumer in enumerate(pool.items):
            if consumer.kind > Kind.INJECTIVE:
                continue
            for index in indices(consumer.input):
                if pool.graph.nodes[index].op == "tuple":
                    yield from self._with_fields(pool, number, index)

    def _with_fields(self, pool: Pool, number: int, index: int) -> Iterator[SubGraph]:
        graph = pool.graph
        choices = [
            [
                n
                for n in pool.by_exit.get(graph.producer.get(field_value, -1), ())
                if pool.items[n].kind <= Kind.INJECTIVE and n != number
            ]
            for field_value in graph.nodes[index].inputs
        ]
        for fields in product(*choices):
            members = [pool.items[n] for n in dict.fromkeys((number, *fields))]
            if max(number, *fields) < pool.old or _overlap(members, 1 << index):
                continue
            joined = SubGraph(graph, 1 << index)
            for member in members:
                joined = joined.disjoint_union(member)
            yield joined


def _overlap(members: Iterable[SubGraph], seen: IndexSet) -> bool:
    for member in members:
        if seen & member.inside:
            return True
        seen |= member.inside
    return False


@dataclass(frozen=True)
class TupleProj(Combiner):
    """Join an injective candidate and one projection of its result."""

    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        for number in pool.fresh():
            base = pool.items[number]
            if base.kind > Kind.INJECTIVE:
                continue
            for index in indices(base.output):
                if pool.graph.nodes[index].op == "tuple_get_item":
                    yield base.disjoint_union(SubGraph(pool.graph, 1 << index))


@dataclass(frozen=True)
class Constants(Combiner):
    """Join a candidate and all constant nodes that it reads."""

    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        for number in pool.fresh():
            base = pool.items[number]
            constants = 0
            for index in indices(base.input):
                if pool.graph.nodes[index].op == "constant":
                    constants |= 1 << index
            if constants:
                yield base.disjoint_union(SubGraph(pool.graph, constants))


@dataclass(frozen=True)
class ByAnchor(Combiner):
    """Join around anchors (convolutions, matrix products), which `AllSimple` never puts together.

    Vertical: an anchored producer and its anchored consumer. Horizontal: two candidates with the
    same anchor operator that read one common value and do not depend on each other (Q, K and V).
    """

    horizontal: bool = False

    def unions(self, pool: Pool) -> Iterator[SubGraph]:
        pairs = self._siblings(pool) if self.horizontal else pool.touching()
        for one, other in pairs:
            if one.kind == other.kind == Kind.OUT_ELEMWISE_FUSABLE:
                yield one.disjoint_union(other)

    def _siblings(self, pool: Pool) -> Iterator[tuple[SubGraph, SubGraph]]:
        readers: dict[str, list[int]] = {}
        for number, item in enumerate(pool.items):
            for value in item.input_values:
                for earlier in readers.get(value, ()):
                    if number >= pool.old and self._fit(pool.items[earlier], item):
                        yield pool.items[earlier], item
                readers.setdefault(value, []).append(number)

    @staticmethod
    def _fit(one: SubGraph, other: SubGraph) -> bool:
        if not one.is_disjoint(other) or not _anchors(one) or _anchors(one) != _anchors(other):
            return False
        return not one.downstream & other.inside and not other.downstream & one.inside


def _anchors(sub_graph: SubGraph) -> frozenset[str]:
    nodes = sub_graph.graph.nodes
    return frozenset(
        nodes[i].op for i in indices(sub_graph.inside) if nodes[i].kind == Kind.OUT_ELEMWISE_FUSABLE
    )


@dataclass(frozen=True)
class Combine(PartitionRule):
    """The sub-rule's candidates and all their unions by `combiners`, to a fixed point.

    Limits of 0 mean none. `max_candidates_per_node` bounds the unions that begin at one node; the
    sub-rule's own candidates are always kept.
    """

    rule: PartitionRule
    combiners: tuple[Combiner, ...]
    max_depth: int = 0
    max_nodes: int = 0
    max_candidates_per_node: int = 0

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        base = self.rule.candidates(graph, spec)
        pool = Pool(graph)
        seen = {found.sub_graph for found in base}
        for found in base:
            pool.add(found.sub_graph)
        begun = [0] * len(graph)
        while pool.old < len(pool.items):
            added = []
            for union in (u for combiner in self.combiners for u in combiner.unions(pool)):
                if union not in seen and pool.is_open(union.inside) and self._fits(union):
                    seen.add(union)
                    added.append(union)
                    self._count(pool, begun, first(union.inside))
            pool.old = len(pool.items)
            for union in sorted(added, key=_small_first):
                pool.add(union)
        joined = (Candidate(s, spec, "Combine") for s in pool.items[len(base) :])
        return [*base, *joined]

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
