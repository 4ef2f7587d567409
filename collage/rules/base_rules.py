"""Base rules: candidates straight from the graph (RFC 0.7 "FusionRule", base rules)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.dynamic_shape_groups import contract_groups
from collage.graph.index_set import IndexSet, indices, is_subset
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraph
from collage.rules.pattern import Match, Pattern, matches
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, unique

HOST_OPS = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout",
    "constant", "tuple", "tuple_get_item",
})  # fmt: skip
"""Operators without data movement: another view of the same bytes, or a name."""


@dataclass(frozen=True)
class DFPattern(PartitionRule):
    """Every match of a pattern without a reason from `refuse`; matches may overlap.

    Attributes:
        name: label of the candidates.
        pattern: the pattern.
        refuse: returns the reason against a match, or None; default no reason.
    """

    name: str
    pattern: Pattern
    refuse: Callable[[Match], str | None] | None = field(default=None, repr=False)

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return unique(
            Candidate(SubGraph(graph, match.nodes, (), self.name), spec, f"DFPattern({self.name})")
            for match in matches(self.pattern, graph)
            if self.refuse is None or self.refuse(match) is None
        )


@dataclass(frozen=True)
class OpPredicate(PartitionRule):
    """Every single node without a reason from `unsupported(graph, index)`.

    A dynamic-shape group counts as one node; each of its nodes must be without a reason.
    """

    unsupported: Callable[[DataflowGraph, int], str | None] = field(repr=False)

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, group), spec, "OpPredicate")
            for group in contract_groups(graph)[1]
            if all(self.unsupported(graph, index) is None for index in indices(group))
        ]


@dataclass(frozen=True)
class Singles(PartitionRule):
    """Every single node of a set; a dynamic-shape group counts as one (`graph.dynamic_shape_groups`)."""

    nodes: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, group), spec, "Singles")
            for group in contract_groups(graph)[1]
            if is_subset(group, self.nodes)
        ]


@dataclass(frozen=True)
class OpCallByKind(PartitionRule):
    """Every call to a fusable operator: no tuple, no opaque operator.

    Attributes:
        highest: highest kind of a fusable operator.
        nodes: nodes to list; None for all.
    """

    highest: OpPatternKind = OpPatternKind.OUT_ELEMWISE_FUSABLE
    nodes: IndexSet | None = None

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, 1 << node.index), spec, "OpCallByKind")
            for node in graph.nodes
            if node.kind <= self.highest
            and node.op not in ("constant", "tuple", "tuple_get_item")
            and (self.nodes is None or self.nodes >> node.index & 1)
        ]


@dataclass(frozen=True)
class Host(PartitionRule):
    """Every single node without a kernel: views, names, tuples, constants."""

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, 1 << node.index), spec, "Host")
            for node in graph.nodes
            if is_host_node(graph, node)
        ]


def is_host_node(graph: DataflowGraph, node: Node) -> bool:
    """Tell whether `node` is a view with a result of known shape and no other output in use.

    A shape computed at run time needs the whole-model plan, and a second output (the mask of Dropout) needs a
    kernel.
    """
    if node.op not in HOST_OPS:
        return False
    if node.op in ("constant", "tuple", "tuple_get_item"):
        return True
    needed_outputs = [
        value for value in node.outputs[1:] if value in graph.readers or value in graph.outputs
    ]
    shape_is_known = all(value in graph.constants for value in node.inputs[1:] if value)
    return (
        not needed_outputs
        and shape_is_known
        and {node.inputs[0], node.outputs[0]} <= graph.types.keys()
    )
