"""Activations of several ONNX nodes: GELU, SiLU and HardSwish as exporters write them.

Libraries compute each in one operation. Each form is a pattern; its constants are part of the pattern.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose, pi, sqrt

import numpy as np

from collage.backends.common.primitives.primitive import PostOp
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet, indices, is_subset
from collage.rules.pattern import Match, Pattern, State, Wildcard, matches, op


@dataclass(frozen=True)
class CompositeActivation:
    """`nodes` compute `post_op` of `value`; their intermediate values have no other reader."""

    nodes: IndexSet
    value: str
    post_op: PostOp


@dataclass(frozen=True, eq=False)
class Number(Pattern):
    """A constant of one element, equal to `number`."""

    weights: Mapping[str, np.ndarray]
    number: float

    def fit(self, graph: DataflowGraph, value: str, state: State) -> Iterator[State]:
        array = self.weights.get(value)
        if array is None or array.size != 1:
            return
        coarse = array.dtype.name == "bfloat16"  # to numpy, no kind of float
        if array.dtype.kind != "f" and not coarse:
            return
        tolerance = 4e-3 if coarse else 1e-3
        if isclose(float(array.reshape(())[()]), self.number, rel_tol=tolerance):
            yield state


def activation_patterns(function: Function) -> list[tuple[Pattern, PostOp]]:
    """Return the patterns; each has one wildcard, the activation's operand."""

    def number(value: float) -> Pattern:
        return Number(function.weights, value)

    def is_sixth(graph: DataflowGraph, node: Node) -> bool:
        alpha = node_attributes(function, node.index).number("alpha", 0.2)
        return isclose(alpha, 1 / 6, rel_tol=1e-3)

    def gelu(x: Pattern, inner: Pattern) -> Pattern:
        """x * inner * 0.5 in any order."""
        half = number(0.5)
        return (
            op("Mul", op("Mul", x, inner), half)
            | op("Mul", x, op("Mul", inner, half))
            | op("Mul", op("Mul", x, half), inner)
        )

    x, y, z = Wildcard(), Wildcard(), Wildcard()
    scaled = op("Div", x, number(sqrt(2))) | op("Mul", x, number(1 / sqrt(2)))
    cube = op("Pow", y, number(3)) | op("Mul", op("Mul", y, y), y)
    sum_of_cubes = op("Add", y, op("Mul", cube, number(0.044715)))
    tanh = op("Tanh", op("Mul", sum_of_cubes, number(sqrt(2 / pi))))
    shifted = op("Clip", op("Add", z, number(3)), number(0), number(6))
    return [
        (gelu(x, op("Add", op("Erf", scaled), number(1))), PostOp("gelu_erf")),
        (gelu(y, op("Add", tanh, number(1))), PostOp("gelu_tanh")),
        (op("Mul", z, op("Sigmoid", z)), PostOp("swish", 1.0)),
        (op("Mul", z, op("Sigmoid", op("Mul", z, number(1.702)))), PostOp("swish", 1.702)),
        (op("Mul", z, op("HardSigmoid", z, where=is_sixth)), PostOp("hardswish", 1 / 6, 0.5)),
        (op("Div", op("Mul", z, shifted), number(6)), PostOp("hardswish", 1 / 6, 0.5)),
        (op("Mul", z, op("Div", shifted, number(6))), PostOp("hardswish", 1 / 6, 0.5)),
    ]


def all_activations(function: Function) -> list[CompositeActivation]:
    """Return the function's activations of several nodes, largest first."""
    activations = []
    for pattern, post_op in activation_patterns(function):
        for match in matches(pattern, function.graph):
            value = _operand(match)
            if value is not None:
                activations.append(CompositeActivation(match.nodes, value, post_op))
    return sorted(
        activations, key=lambda activation: (-activation.nodes.bit_count(), activation.nodes)
    )


def _operand(match: Match) -> str | None:
    graph = match.graph
    results = {value for index in indices(match.nodes) for value in graph.nodes[index].outputs}
    read = {value for index in indices(match.nodes) for value in graph.nodes[index].inputs if value}
    outside = read - results - graph.constants
    return outside.pop() if len(outside) == 1 else None


def activations_within(
    function: Function,
    activations: Sequence[CompositeActivation],
    nodes: IndexSet,
    outputs: frozenset[str],
) -> Iterator[CompositeActivation]:
    """Yield disjoint activations inside `nodes` without outside readers of intermediate values."""
    covered = 0
    for activation in activations:
        inside = is_subset(activation.nodes, nodes) and not activation.nodes & covered
        if inside and _is_private(function, activation.nodes, outputs):
            covered |= activation.nodes
            yield activation


def _is_private(function: Function, nodes: IndexSet, outputs: frozenset[str]) -> bool:
    graph = function.graph
    root = nodes.bit_length() - 1
    for index in indices(nodes & ~(1 << root)):
        for value in graph.nodes[index].outputs:
            if value in outputs or graph.readers.get(value, 0) & ~nodes:
                return False
    return True
