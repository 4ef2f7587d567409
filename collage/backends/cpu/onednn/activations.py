"""Activations that ONNX spells with several nodes and oneDNN computes in one.

Exporters write GELU and SiLU as products of simpler operators. Each spelling is a pattern; its
constants are part of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose, pi, sqrt

import numpy as np

from collage.backends.cpu.onednn.program import Post
from collage.backends.cpu.onednn.view import NodeView
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet, indices, is_subset
from collage.rules.pattern import Match, Pattern, State, Wildcard, matches, op


@dataclass(frozen=True)
class Activation:
    """`nodes` compute `post` of `value`; nothing else reads what they make on the way."""

    nodes: IndexSet
    value: str
    post: Post


@dataclass(frozen=True, eq=False)
class Number(Pattern):
    """A constant of one element that holds `number`."""

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


def spellings(function: Function) -> list[tuple[Pattern, Post]]:
    """The known spellings; each pattern has one wildcard, the activation's operand."""

    def number(value: float) -> Pattern:
        return Number(function.weights, value)

    def is_sixth(graph: DataflowGraph, node: Node) -> bool:
        view = NodeView(function, node.index)
        return isclose(view.number("alpha", 0.2), 1 / 6, rel_tol=1e-3)

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
        (gelu(x, op("Add", op("Erf", scaled), number(1))), Post("gelu_erf")),
        (gelu(y, op("Add", tanh, number(1))), Post("gelu_tanh")),
        (op("Mul", z, op("Sigmoid", z)), Post("swish", 1.0)),
        (op("Mul", z, op("Sigmoid", op("Mul", z, number(1.702)))), Post("swish", 1.702)),
        (op("Mul", z, op("HardSigmoid", z, where=is_sixth)), Post("hardswish", 1 / 6, 0.5)),
        (op("Div", op("Mul", z, shifted), number(6)), Post("hardswish", 1 / 6, 0.5)),
        (op("Mul", z, op("Div", shifted, number(6))), Post("hardswish", 1 / 6, 0.5)),
    ]


def all_activations(function: Function) -> list[Activation]:
    """Every activation of the function that is spelled with several nodes, largest first."""
    found = []
    for pattern, post in spellings(function):
        for match in matches(pattern, function.graph):
            value = _operand(match)
            if value is not None:
                found.append(Activation(match.nodes, value, post))
    return sorted(found, key=lambda one: (-one.nodes.bit_count(), one.nodes))


def _operand(match: Match) -> str | None:
    graph = match.graph
    made = {value for index in indices(match.nodes) for value in graph.nodes[index].outputs}
    read = {value for index in indices(match.nodes) for value in graph.nodes[index].inputs if value}
    outside = read - made - graph.constants
    return outside.pop() if len(outside) == 1 else None


def activations_within(
    function: Function, known: Sequence[Activation], nodes: IndexSet, outputs: frozenset[str]
) -> Iterator[Activation]:
    """Yield those of `known`, disjoint, inside `nodes`, whose intermediate values nobody else reads."""
    taken = 0
    for found in known:
        inside = is_subset(found.nodes, nodes) and not found.nodes & taken
        if inside and _is_private(function, found.nodes, outputs):
            taken |= found.nodes
            yield found


def _is_private(function: Function, nodes: IndexSet, outputs: frozenset[str]) -> bool:
    graph = function.graph
    root = nodes.bit_length() - 1
    for index in indices(nodes & ~(1 << root)):
        for value in graph.nodes[index].outputs:
            if value in outputs or graph.readers.get(value, 0) & ~nodes:
                return False
    return True
