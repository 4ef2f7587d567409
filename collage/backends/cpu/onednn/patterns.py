"""Which regions oneDNN is offered: products with what follows them, and whole blocked regions.

The table holds what one primitive computes: a product (or a pooling, a normalisation) with bias,
residual sum and activation in every combination. Such a kernel converts layouts at its borders, so
longer regions are offered too (up to 1.7x per convolution). Some nodes cannot run alone (Erf): they
are taken only with the whole activation that they belong to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collage.backends.cpu.onednn.activations import Activation
from collage.backends.cpu.onednn.elementwise import UNARY
from collage.backends.cpu.onednn.view import NodeView
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet, index_set, is_subset
from collage.graph.sub_graph import SubGraph
from collage.rules.base_rules import DFPattern, Singles
from collage.rules.parallel_products import Parallel
from collage.rules.pattern import Match, Pattern, is_constant, op, wildcard
from collage.rules.regions import Regions
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec
from collage.rules.wrap import Union

ACTIVATIONS = tuple(sorted(set(UNARY) - {"Round", "Log", "Neg", "Reciprocal"}))


def patterns() -> dict[str, Pattern]:
    """The table: a name and a pattern each."""
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
    """Bias, activation, residual sum, activation; each may be missing."""
    biased = start.optional(lambda p: op("Add", p, is_constant()))
    summed = _activated(biased).optional(lambda p: op(("Add", "Mul"), p, wildcard()))
    return _activated(summed)


def _activated(start: Pattern) -> Pattern:
    """The same, or with one operator or the two of SiLU behind it."""
    simple = op(ACTIVATIONS, start)
    return start | simple | op("Mul", start, op("Sigmoid", start))


@dataclass(frozen=True)
class WholeActivations(PartitionRule):
    """The sub-rule's candidates in which every node can run.

    Args of the constructor: the sub-rule; the nodes that run `alone`; the `groups` of nodes of which
    the others are taken only together.
    """

    rule: PartitionRule
    alone: IndexSet
    groups: tuple[IndexSet, ...]

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        found = self.rule.candidates(graph, spec)
        return [candidate for candidate in found if self._takes(candidate.inside)]

    def _takes(self, inside: IndexSet) -> bool:
        rest = inside & ~self.alone
        for group in self.groups if rest else ():
            if is_subset(group, inside):
                rest &= ~group
        return not rest


@dataclass(frozen=True)
class Wholes(PartitionRule):
    """Each of `groups`, by itself."""

    groups: tuple[IndexSet, ...]

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, group, (), "activation"), spec, "Wholes")
            for group in self.groups
        ]


@dataclass(frozen=True)
class WithLayouts(PartitionRule):
    """The sub-rule's candidates; for a variant those whose convolutions its layout may suit.

    Blocked channels suit any convolution; row-major activations suit `pointwise` ones that read or
    write the region's borders, so at most one in a region.
    """

    rule: PartitionRule
    convolutions: IndexSet
    pointwise: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        found = self.rule.candidates(graph, spec)
        if spec.variant == "blocked":
            return [one for one in found if one.inside & self.convolutions]
        if spec.variant == "plain":
            return [one for one in found if self._is_one_pointwise(one.inside)]
        return found

    def _is_one_pointwise(self, inside: IndexSet) -> bool:
        inner = inside & self.convolutions
        return inner.bit_count() == 1 and is_subset(inner, self.pointwise)


def onednn_rule(
    function: Function, supported: IndexSet, activations: Sequence[Activation]
) -> PartitionRule:
    """Return the rule over the nodes that are `supported` alone, and the function's activations."""
    groups = tuple(one.nodes for one in activations)
    takes = supported
    for group in groups:
        takes |= group

    def refuse(match: Match) -> str | None:
        return None if is_subset(match.nodes, takes) else "a node is not supported"

    table = tuple(DFPattern(name, pattern, refuse) for name, pattern in patterns().items())
    products = index_set(n.index for n in function.graph.nodes if n.op in ("MatMul", "Gemm"))
    parallel = Parallel(products & takes, takes)
    regions = Union((*table, Regions(takes), parallel, Wholes(groups)))
    rule = Union((Singles(supported), WholeActivations(regions, supported, groups)))
    convolutions = [n for n in function.graph.nodes if n.op in ("Conv", "ConvTranspose")]
    pointwise = index_set(n.index for n in convolutions if _is_pointwise(function, n))
    return WithLayouts(rule, index_set(n.index for n in convolutions), pointwise)


def _is_pointwise(function: Function, node: Node) -> bool:
    weight = function.graph.types.get(node.inputs[1])
    view = NodeView(function, node.index)
    return weight is not None and set(weight.shape[2:]) == {1} and view.integer("group", 1) == 1
