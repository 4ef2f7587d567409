"""Sub-graphs: sets of nodes with the properties read by rules (RFC 0.7 "SubGraph").

A sub-graph is an `IndexSet` of the nodes inside, and nested sub-graphs with attributes (a composite inside
a kernel). All other properties follow from these and are computed on first use, since most enumerated
sub-graphs are never looked at. Each takes O(nodes inside) operations on bit sets; no IR is built.

Weights are operands and no nodes, so they never make a node an entry. Hand-written graphs may have `constant`
nodes; these have no inputs and are no entries either.
"""

from dataclasses import dataclass, field
from functools import cached_property

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, index_set, indices, is_subset
from collage.graph.op_pattern import OpPatternKind


@dataclass(frozen=True, slots=True)
class SubGraphConfig:
    """Limits on a valid sub-graph.

    Attributes:
        max_exits: largest number of exit nodes; 0 for no limit.
        max_depth: largest depth; 0 for no limit.
        allow_escaping: values read inside may be read outside too (RFC "allow_taps"); default True.
    """

    max_exits: int = 0
    max_depth: int = 0
    allow_escaping: bool = True


NO_LIMITS = SubGraphConfig()


@dataclass(frozen=True)
class NestedSubGraph:
    """A sub-graph inside another one; it becomes a function with these attributes."""

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
        """Nodes inside with an input from outside."""
        before, inside = self.graph.predecessors, self.inside
        return self.inside & self.graph.fed | index_set(
            index for index in indices(inside) if before[index] & ~inside
        )

    @cached_property
    def exit(self) -> IndexSet:
        """Nodes inside with a reader outside or an output of the function."""
        after, inside = self.graph.successors, self.inside
        return self.inside & self.graph.external | index_set(
            index for index in indices(inside) if after[index] & ~inside
        )

    @cached_property
    def input(self) -> IndexSet:
        """Producers outside of inputs."""
        bits = 0
        for index in indices(self.inside):
            bits |= self.graph.predecessors[index]
        return bits & ~self.inside

    @cached_property
    def output(self) -> IndexSet:
        """Readers outside of outputs."""
        bits = 0
        for index in indices(self.inside):
            bits |= self.graph.successors[index]
        return bits & ~self.inside

    @cached_property
    def downstream(self) -> IndexSet:
        """Nodes outside with a direct or indirect dependency on a node inside."""
        bits = self.output
        for index in indices(self.output):
            bits |= self.graph.downstream[index]
        return bits & ~self.inside

    @cached_property
    def depth(self) -> int:
        """Number of nodes on the longest path inside from an entry; 0 without an entry."""
        longest: dict[int, int] = {}
        for index in indices(self.inside):
            predecessors = indices(self.graph.predecessors[index])
            before = [longest.get(predecessor, 0) for predecessor in predecessors]
            start = 1 if self.entry >> index & 1 else 0
            reached = max(before, default=0)
            longest[index] = reached + 1 if reached else start
        return max(longest.values(), default=0)

    @cached_property
    def kind(self) -> OpPatternKind:
        """The highest kind of a node inside."""
        return max(
            (self.graph.nodes[index].kind for index in indices(self.inside)),
            default=OpPatternKind.ELEMWISE,
        )

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """Operators inside, in topological order."""
        return tuple(self.graph.nodes[index].op for index in indices(self.inside))

    @cached_property
    def escaping(self) -> IndexSet:
        """Escaping intermediates: exit nodes with a reader inside as well."""
        after = self.graph.successors
        return index_set(index for index in indices(self.exit) if after[index] & self.inside)

    @cached_property
    def is_convex(self) -> bool:
        """Tell whether no path leaves and comes back, into a node inside from a node outside."""
        reach = 0
        for index in indices(self.output):
            reach |= self.graph.downstream[index]
        return not reach & self.inside

    @cached_property
    def is_connected(self) -> bool:
        """Tell whether the nodes are connected through edges inside."""
        return len(components(self.graph, self.inside)) <= 1

    @cached_property
    def input_values(self) -> tuple[str, ...]:
        """Activations read from outside, by first use; no weights."""
        graph = self.graph
        values: dict[str, None] = {}
        for index in indices(self.inside):
            for value in graph.nodes[index].inputs:
                maker = graph.producer.get(value)
                made_inside = maker is not None and self.inside >> maker & 1
                if value and value not in graph.constants and not made_inside:
                    values[value] = None
        return tuple(values)

    @cached_property
    def output_values(self) -> tuple[str, ...]:
        """Values with a reader outside and outputs of the function, by ascending producer."""
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
        if not config.allow_escaping and self.escaping:
            return f"intermediates of nodes {list(indices(self.escaping))} escape"
        if not self.is_convex:
            return "not convex: a path leaves and comes back"
        return None

    def _nested_reason(self) -> str | None:
        covered = 0
        for nested in self.nested:
            if not is_subset(nested.sub_graph.inside, self.inside):
                return "a nested sub-graph is not inside"
            if nested.sub_graph.inside & covered:
                return "nested sub-graphs overlap"
            covered |= nested.sub_graph.inside
        return None

    def is_disjoint(self, sub_graph: "SubGraph") -> bool:
        return not self.inside & sub_graph.inside

    def disjoint_union(self, sub_graph: "SubGraph") -> "SubGraph":
        """Join two disjoint sub-graphs; nested sub-graphs of both are kept, in order."""
        if not self.is_disjoint(sub_graph):
            raise ValueError("sub-graphs overlap")
        nested = sorted(
            (*self.nested, *sub_graph.nested),
            key=lambda nested_graph: nested_graph.sub_graph.inside,
        )
        label = "+".join(filter(None, (self.label, sub_graph.label)))
        return SubGraph(self.graph, self.inside | sub_graph.inside, tuple(nested), label)

    def with_attrs(self, **attrs: str) -> "SubGraph":
        """Return the sub-graph with this one as its only nested function."""
        nested = NestedSubGraph(self, tuple(sorted(attrs.items())))
        return SubGraph(self.graph, self.inside, (nested,), self.label)

    def with_label(self, label: str) -> "SubGraph":
        return SubGraph(self.graph, self.inside, self.nested, label)


def components(graph: DataflowGraph, nodes: IndexSet) -> list[IndexSet]:
    """Split `nodes` into components connected through edges among `nodes`, by first member."""
    members, remaining = [], nodes
    while remaining:
        frontier = member = remaining & -remaining
        while frontier:
            grown = 0
            for index in indices(frontier):
                grown |= graph.predecessors[index] | graph.successors[index]
            frontier = grown & remaining & ~member
            member |= frontier
        members.append(member)
        remaining &= ~member
    return members
