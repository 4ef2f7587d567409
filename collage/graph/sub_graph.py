"""Sub-graphs: sets of nodes, with everything that the rules ask about them (RFC 0.7 "SubGraph").

A sub-graph is two things: an `IndexSet` of the nodes inside, and the nested sub-graphs that carry
attributes (a composite inside a kernel). All other properties follow from these and are computed
when first asked, because enumeration makes many more sub-graphs than anyone looks at. Each costs
O(nodes inside) operations on bit sets; no IR is built.

Weights are operands and no nodes, so they never make a node an entry. Graphs written by hand may
have `constant` nodes; those have no inputs and are no entries either.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, index_set, indices, is_subset
from collage.graph.op_pattern import OpPatternKind


@dataclass(frozen=True, slots=True)
class SubGraphConfig:
    """Limits on a valid sub-graph; 0 means no limit."""

    max_exits: int = 0
    max_depth: int = 0
    allow_taps: bool = True


NO_LIMITS = SubGraphConfig()


@dataclass(frozen=True)
class NestedSubGraph:
    """A sub-graph inside another one that becomes a function with these attributes."""

    sub_graph: "SubGraph"
    attrs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SubGraph:
    """A set of nodes of `graph`; two are equal when nodes and nested sub-graphs are.

    >>> from collage.graph.dataflow import DataflowGraph
    >>> SubGraph(DataflowGraph((), {}, (), ()), 0b101).size
    2
    """

    graph: DataflowGraph = field(compare=False, repr=False)
    inside: IndexSet
    nested: tuple[NestedSubGraph, ...] = ()
    label: str = field(default="", compare=False)

    @property
    def size(self) -> int:
        return self.inside.bit_count()

    @cached_property
    def entry(self) -> IndexSet:
        """Nodes inside that read something that is not made inside."""
        before, inside = self.graph.predecessors, self.inside
        return self.inside & self.graph.fed | index_set(
            i for i in indices(inside) if before[i] & ~inside
        )

    @cached_property
    def exit(self) -> IndexSet:
        """Nodes inside that are read outside or returned by the function."""
        after, inside = self.graph.successors, self.inside
        return self.inside & self.graph.external | index_set(
            i for i in indices(inside) if after[i] & ~inside
        )

    @cached_property
    def input(self) -> IndexSet:
        """Nodes outside that are read inside."""
        bits = 0
        for index in indices(self.inside):
            bits |= self.graph.predecessors[index]
        return bits & ~self.inside

    @cached_property
    def output(self) -> IndexSet:
        """Nodes outside that read something made inside."""
        bits = 0
        for index in indices(self.inside):
            bits |= self.graph.successors[index]
        return bits & ~self.inside

    @cached_property
    def downstream(self) -> IndexSet:
        """Nodes outside that depend on a node inside, directly or not."""
        bits = self.output
        for index in indices(self.output):
            bits |= self.graph.downstream[index]
        return bits & ~self.inside

    @cached_property
    def depth(self) -> int:
        """Nodes on the longest path that starts at an entry and stays inside; 0 without entry."""
        longest: dict[int, int] = {}
        for index in indices(self.inside):
            before = [longest.get(i, 0) for i in indices(self.graph.predecessors[index])]
            start = 1 if self.entry >> index & 1 else 0
            reached = max(before, default=0)
            longest[index] = reached + 1 if reached else start
        return max(longest.values(), default=0)

    @cached_property
    def kind(self) -> OpPatternKind:
        """The highest kind of a node inside."""
        return max(
            (self.graph.nodes[i].kind for i in indices(self.inside)),
            default=OpPatternKind.ELEMWISE,
        )

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """Operators inside, in topological order."""
        return tuple(self.graph.nodes[i].op for i in indices(self.inside))

    @cached_property
    def taps(self) -> IndexSet:
        """Exit nodes that are read inside as well."""
        after = self.graph.successors
        return index_set(i for i in indices(self.exit) if after[i] & self.inside)

    @cached_property
    def is_convex(self) -> bool:
        """Tell whether no path leaves and comes back.

        A path that comes back ends in a node inside which a node outside reaches.
        """
        reach = 0
        for index in indices(self.output):
            reach |= self.graph.downstream[index]
        return not reach & self.inside

    @cached_property
    def is_connected(self) -> bool:
        """Tell whether the nodes hang together through edges inside."""
        return len(components(self.graph, self.inside)) <= 1

    @cached_property
    def input_values(self) -> tuple[str, ...]:
        """Activations read from outside, by first use; no weights."""
        graph = self.graph
        found: dict[str, None] = {}
        for index in indices(self.inside):
            for value in graph.nodes[index].inputs:
                maker = graph.producer.get(value)
                made_inside = maker is not None and self.inside >> maker & 1
                if value and value not in graph.constants and not made_inside:
                    found[value] = None
        return tuple(found)

    @cached_property
    def output_values(self) -> tuple[str, ...]:
        """Values that are read outside or returned, by ascending producer."""
        graph = self.graph
        returned = set(graph.outputs)
        return tuple(
            value
            for index in indices(self.exit)
            for value in graph.nodes[index].outputs
            if value in returned or graph.readers.get(value, 0) & ~self.inside
        )

    def validity(self, config: SubGraphConfig) -> str | None:
        """Return why this sub-graph breaks `config` (or is not convex), or None when it is valid."""
        if config.max_exits and self.exit.bit_count() > config.max_exits:
            return f"{self.exit.bit_count()} exits, at most {config.max_exits} allowed"
        if config.max_depth and self.depth > config.max_depth:
            return f"depth {self.depth}, at most {config.max_depth} allowed"
        if reason := self._nested_reason():
            return reason
        if not config.allow_taps and self.taps:
            return f"taps at nodes {list(indices(self.taps))}"
        if not self.is_convex:
            return "not convex: a path leaves and comes back"
        return None

    def _nested_reason(self) -> str | None:
        seen = 0
        for nested in self.nested:
            if not is_subset(nested.sub_graph.inside, self.inside):
                return "a nested sub-graph is not inside"
            if nested.sub_graph.inside & seen:
                return "nested sub-graphs overlap"
            seen |= nested.sub_graph.inside
        return None

    def is_disjoint(self, other: "SubGraph") -> bool:
        return not self.inside & other.inside

    def disjoint_union(self, other: "SubGraph") -> "SubGraph":
        """Join two sub-graphs that share no node; nested sub-graphs of both are kept, in order."""
        if not self.is_disjoint(other):
            raise ValueError("sub-graphs overlap")
        nested = sorted((*self.nested, *other.nested), key=lambda n: n.sub_graph.inside)
        label = "+".join(filter(None, (self.label, other.label)))
        return SubGraph(self.graph, self.inside | other.inside, tuple(nested), label)

    def with_attrs(self, **attrs: str) -> "SubGraph":
        """Return the sub-graph that holds this one as its only nested function."""
        nested = NestedSubGraph(self, tuple(sorted(attrs.items())))
        return SubGraph(self.graph, self.inside, (nested,), self.label)

    def with_label(self, label: str) -> "SubGraph":
        return SubGraph(self.graph, self.inside, self.nested, label)

    def substitute(self, graph: DataflowGraph, mapping: Mapping[int, int]) -> "SubGraph":
        """Return the same sub-graph in another graph; `mapping` renumbers the nodes."""
        nested = tuple(
            NestedSubGraph(n.sub_graph.substitute(graph, mapping), n.attrs) for n in self.nested
        )
        inside = index_set(mapping[i] for i in indices(self.inside))
        return SubGraph(graph, inside, nested, self.label)


def components(graph: DataflowGraph, nodes: IndexSet) -> list[IndexSet]:
    """Split `nodes` into sets that hang together through edges among `nodes`, by first member."""
    found, left = [], nodes
    while left:
        frontier = member = left & -left
        while frontier:
            grown = 0
            for index in indices(frontier):
                grown |= graph.predecessors[index] | graph.successors[index]
            frontier = grown & left & ~member
            member |= frontier
        found.append(member)
        left &= ~member
    return found
