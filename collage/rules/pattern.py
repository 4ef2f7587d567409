"""A small pattern language over operator names with all matches, not only the first.

TVM's matcher returns one match per pattern and root, so only one of two fitting alternatives is ever a
candidate. Here `matches` walks all alternatives: both sides of `|`, both operand orders of commutative
operators, with and without an optional part. Patterns are data; the same pattern object at two places
requires the same value at both.

    relu = op("Relu", op("Add", op("Conv", wildcard(), is_constant()), wildcard()))

Operands are matched by position. Further operands are free, so `op("Conv", x, w)` fits a convolution with and
without bias. Time is bounded by the number of alternatives: exponential only in the number of `|` and
commutative nodes of one pattern.
"""

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet

COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "add", "multiply"})


@dataclass(frozen=True)
class Match:
    """One match of a pattern: its root node, all matched operator nodes, and the named nodes."""

    graph: DataflowGraph
    root: int
    nodes: IndexSet
    named: Mapping[str, int]

    def node(self, name: str) -> Node:
        """Return the matched node with this name."""
        return self.graph.nodes[self.named[name]]


@dataclass(frozen=True)
class State:
    """A partial match: matched nodes, values of matched patterns, and named nodes."""

    nodes: IndexSet
    bound: Mapping["Pattern", str]
    named: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Pattern(abc.ABC):
    """A condition on a value; compared by identity, so that a reused pattern means the same value."""

    @abc.abstractmethod
    def fit(self, graph: DataflowGraph, value: str, state: State) -> Iterator[State]:
        """Yield the state after each match of `value`, without regard to earlier bindings."""

    def fits(self, graph: DataflowGraph, value: str, state: State) -> Iterator[State]:
        """Yield the state after each match of `value`; a bound pattern fits only its own value."""
        if self in state.bound:
            if state.bound[self] == value:
                yield state
            return
        for match in self.fit(graph, value, state):
            yield State(match.nodes, {**match.bound, self: value}, match.named)

    def __or__(self, alternative: "Pattern") -> "Pattern":
        return AltPattern(self, alternative)

    def optional(self, wrap: Callable[["Pattern"], "Pattern"]) -> "Pattern":
        """Return a pattern for `wrap` of this pattern, and for this pattern alone."""
        return wrap(self) | self


@dataclass(frozen=True, eq=False)
class Wildcard(Pattern):
    """Any value, even an omitted operand; its producer is not part of the match."""

    def fit(self, graph: DataflowGraph, value: str, state: State) -> Iterator[State]:
        yield state


@dataclass(frozen=True, eq=False)
class ConstantPattern(Pattern):
    """A weight."""

    def fit(self, graph: DataflowGraph, value: str, state: State) -> Iterator[State]:
        if value in graph.constants:
            yield state


@dataclass(frozen=True, eq=False)
class AltPattern(Pattern):
    """Either of two patterns."""

    left: Pattern
    right: Pattern

    def fit(self, graph: DataflowGraph, value: str, state: State) -> Iterator[State]:
        yield from self.left.fits(graph, value, state)
        yield from self.right.fits(graph, value, state)


@dataclass(frozen=True, eq=False)
class OpPattern(Pattern):
    """A call to one of `ops` with first operands that fit `operands`."""

    ops: frozenset[str]
    operands: tuple[Pattern, ...] = ()
    commutative: bool = False
    where: Callable[[DataflowGraph, Node], bool] | None = field(default=None, repr=False)
    name: str = ""

    def fit(self, graph: DataflowGraph, value: str, state: State) -> Iterator[State]:
        index = graph.producer.get(value)
        if index is None or not self._is_call(graph, graph.nodes[index]):
            return
        node = graph.nodes[index]
        named = {**state.named, self.name: index} if self.name else state.named
        start = State(state.nodes | 1 << index, state.bound, named)
        for values in self._orders(node.inputs):
            yield from _fit_all(graph, self.operands, values, start)

    def _is_call(self, graph: DataflowGraph, node: Node) -> bool:
        if node.op not in self.ops or len(node.inputs) < len(self.operands):
            return False
        return self.where is None or self.where(graph, node)

    def _orders(self, values: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield values
        if self.commutative and len(values) == 2 and values[0] != values[1]:
            yield values[::-1]


def _fit_all(
    graph: DataflowGraph, patterns: tuple[Pattern, ...], values: tuple[str, ...], state: State
) -> Iterator[State]:
    if not patterns:
        yield state
        return
    for match in patterns[0].fits(graph, values[0], state):
        yield from _fit_all(graph, patterns[1:], values[1:], match)


def op(
    ops: str | tuple[str, ...],
    *operands: Pattern,
    commutative: bool | None = None,
    where: Callable[[DataflowGraph, Node], bool] | None = None,
    name: str = "",
) -> Pattern:
    """Match a call to one of `ops`.

    Args:
        ops: operator names as in `Node.op`.
        operands: patterns of the first operands; further operands are free.
        commutative: try both orders of two operands; default None, True for `COMMUTATIVE` operators.
        where: further condition on the node; default None.
        name: name of the node in `Match.named`; default "", no name.
    """
    names = frozenset({ops} if isinstance(ops, str) else ops)
    swap = names <= COMMUTATIVE if commutative is None else commutative
    return OpPattern(names, operands, swap, where, name=name)


def wildcard() -> Pattern:
    """Match any value; each call makes a new pattern."""
    return Wildcard()


def is_constant() -> Pattern:
    """Match a weight."""
    return ConstantPattern()


def matches(pattern: Pattern, graph: DataflowGraph) -> Iterator[Match]:
    """Yield every match, by ascending root; matches of equal nodes and names are yielded once."""
    for node in graph.nodes:
        yield from matches_at(pattern, graph, node.index)


def matches_at(pattern: Pattern, graph: DataflowGraph, root: int) -> Iterator[Match]:
    """Yield every match with the node `root` as its root, equal ones once."""
    keys = set()
    for value in filter(None, graph.nodes[root].outputs):
        for state in pattern.fits(graph, value, State(0, {}, {})):
            key = (state.nodes, tuple(sorted(state.named.items())))
            if state.nodes >> root & 1 and key not in keys:
                keys.add(key)
                yield Match(graph, root, state.nodes, state.named)
