"""Candidates of oneDNN: products with their epilogues, and regions in blocked layouts.

The patterns describe the work of one primitive: a product (or a pooling, a normalisation) with bias,
residual sum and activation in every combination. Such a kernel converts layouts at its borders, so longer
regions are candidates too (up to 1.7x per convolution). Some nodes have no primitive of their own (Erf):
they belong to candidates only together with their whole activation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collage.backends.common.primitives.composite_activations import CompositeActivation
from collage.backends.common.primitives.elementwise import UNARY
from collage.backends.common.primitives.node_view import NodeView
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet, index_set, is_subset
from collage.graph.sub_graph import SubGraph
from collage.rules.base_rules import DFPattern, Singles
from collage.rules.parallel_products import parallel_products
from collage.rules.pattern import Match, Pattern, is_constant, op, wildcard
from collage.rules.regions import Regions
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec
from collage.rules.wrap import Primitive, Union

FUSED_ACTIVATIONS = tuple(sorted(set(UNARY) - {"Round", "Log", "Neg", "Reciprocal"}))
"""ONNX operators in the patterns' epilogues."""


def patterns() -> dict[str, Pattern]:
    """Return the patterns by name."""
    convolution = op(("Conv", "ConvTranspose"), wildcard(), is_constant())
    product = op(("MatMul", "Gemm"), wildcard(), wildcard())
    scaled = product.optional(lambda p: op(("Mul", "Div"), p, is_constant()))
    return {
        "convolution": _with_epilogue(convolution),
        "matmul": _with_epilogue(scaled),
        "pooling": _activated(op(("MaxPool", "AveragePool", "GlobalAveragePool"), wildcard())),
        "sum": _activated(op(("Add", "Mul", "Sub"), wildcard(), wildcard())),
        "scores": op("Softmax", scaled.optional(lambda p: op("Add", p, wildcard()))),
    }


def _with_epilogue(start: Pattern) -> Pattern:
    """Append bias, activation, residual sum and activation, each optional."""
    biased = start.optional(lambda p: op("Add", p, is_constant()))
    summed = _activated(biased).optional(lambda p: op(("Add", "Mul"), p, wildcard()))
    return _activated(summed)


def _activated(start: Pattern) -> Pattern:
    """Append an optional activation: one operator, or the two of SiLU."""
    simple = op(FUSED_ACTIVATIONS, start)
    return start | simple | op("Mul", start, op("Sigmoid", start))


@dataclass(frozen=True)
class WholeActivations(PartitionRule):
    """The sub-rule's candidates without partial activations.

    Attributes:
        rule: the sub-rule.
        alone: nodes with a primitive of their own.
        groups: nodes of each composite activation; its other nodes are allowed only all together.
    """

    rule: PartitionRule
    alone: IndexSet
    groups: tuple[IndexSet, ...]

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        candidates = self.rule.candidates(graph, spec)
        return [candidate for candidate in candidates if self._takes(candidate.inside)]

    def _takes(self, inside: IndexSet) -> bool:
        unsupported = inside & ~self.alone
        for group in self.groups if unsupported else ():
            if is_subset(group, inside):
                unsupported &= ~group
        return not unsupported


@dataclass(frozen=True)
class ActivationRegions(PartitionRule):
    """One candidate for each of `groups`."""

    groups: tuple[IndexSet, ...]

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, group, (), "activation"), spec, "ActivationRegions")
            for group in self.groups
        ]


@dataclass(frozen=True)
class LayoutVariants(PartitionRule):
    """The sub-rule's candidates, limited per variant to convolutions with a suitable layout.

    Blocked channels suit any convolution. Row-major activations suit `pointwise` convolutions at the
    region's borders, so at most one in a region.
    """

    rule: PartitionRule
    convolutions: IndexSet
    pointwise: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        candidates = self.rule.candidates(graph, spec)
        if spec.variant == "blocked":
            return [candidate for candidate in candidates if candidate.inside & self.convolutions]
        if spec.variant == "plain":
            return [
                candidate for candidate in candidates if self._is_one_pointwise(candidate.inside)
            ]
        return candidates

    def _is_one_pointwise(self, inside: IndexSet) -> bool:
        inner = inside & self.convolutions
        return inner.bit_count() == 1 and is_subset(inner, self.pointwise)


def onednn_rule(
    function: Function, supported: IndexSet, activations: Sequence[CompositeActivation]
) -> PartitionRule:
    """Return the rule of a function.

    Args:
        function: the function.
        supported: nodes with a primitive of their own.
        activations: its composite activations.
    """
    groups = tuple(activation.nodes for activation in activations)
    takes = supported
    for group in groups:
        takes |= group

    def refuse(match: Match) -> str | None:
        return None if is_subset(match.nodes, takes) else "a node is not supported"

    table = tuple(DFPattern(name, pattern, refuse) for name, pattern in patterns().items())
    products = index_set(n.index for n in function.graph.nodes if n.op in ("MatMul", "Gemm"))
    parallel = parallel_products(products & takes, takes)
    programs = Primitive(Union((Regions(takes), parallel)))
    regions = Union((*table, programs, ActivationRegions(groups)))
    rule = Union((Singles(supported), WholeActivations(regions, supported, groups)))
    convolutions = [n for n in function.graph.nodes if n.op in ("Conv", "ConvTranspose")]
    pointwise = index_set(n.index for n in convolutions if _is_pointwise(function, n))
    return LayoutVariants(rule, index_set(n.index for n in convolutions), pointwise)


def _is_pointwise(function: Function, node: Node) -> bool:
    weight = function.graph.types.get(node.inputs[1])
    view = NodeView(function, node.index)
    return (
        weight is not None
        and set(weight.shape[2:]) == {1}
        and view.attributes.integer("group", 1) == 1
    )
