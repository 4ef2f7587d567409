"""Base rules: candidates straight from the graph (RFC 0.7 "FusionRule", base rules)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.dynamic_shape_groups import contract_units
from collage.graph.index_set import IndexSet, is_subset
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraph
from collage.rules.pattern import Match, Pattern, matches
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, unique

HOST_OPS = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout",
    "constant", "tuple", "tuple_get_item",
})  # fmt: skip
"""Operators that move no data: another view of the same bytes, or a name."""


@dataclass(frozen=True)
class DFPattern(PartitionRule):
    """Every match of a pattern for which `refuse` has no reason; matches may overlap.

    `refuse` gets the match and returns why it is not taken, or None.
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
    """Every single node for which `unsupported(graph, index)` has no reason."""

    unsupported: Callable[[DataflowGraph, int], str | None] = field(repr=False)

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, 1 << node.index), spec, "OpPredicate")
            for node in graph.nodes
            if self.unsupported(graph, node.index) is None
        ]


@dataclass(frozen=True)
class Singles(PartitionRule):
    """Every single node of a given set; nodes that must run together count as one (`graph.units`)."""

    nodes: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, unit), spec, "Singles")
            for unit in contract_units(graph)[1]
            if is_subset(unit, self.nodes)
        ]


@dataclass(frozen=True)
class OpCallByKind(PartitionRule):
    """Every call to an operator that can fuse at all: no tuple, no opaque operator."""

    highest: OpPatternKind = OpPatternKind.OUT_ELEMWISE_FUSABLE

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, 1 << node.index), spec, "OpCallByKind")
            for node in graph.nodes
            if node.kind <= self.highest and node.op not in ("constant", "tuple", "tuple_get_item")
        ]


@dataclass(frozen=True)
class Host(PartitionRule):
    """Every single node that needs no kernel: views, names, tuples, constants."""

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, 1 << node.index), spec, "Host")
            for node in graph.nodes
            if is_host_node(graph, node)
        ]


def is_host_node(graph: DataflowGraph, node: Node) -> bool:
    """Tell whether `node` is a view whose result has a known shape; other outputs must be unused.

    A shape that is computed at run time needs the whole-model plan, and a second output (the mask
    of Dropout) needs a kernel.
    """
    if node.op not in HOST_OPS:
        return False
    if node.op in ("constant", "tuple", "tuple_get_item"):
        return True
    used = [v for v in node.outputs[1:] if v in graph.readers or v in graph.outputs]
    shape_is_known = all(v in graph.constants for v in node.inputs[1:] if v)
    return not used and shape_is_known and {node.inputs[0], node.outputs[0]} <= graph.types.keys()
