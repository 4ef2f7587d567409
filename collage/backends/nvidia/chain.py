"""Chains: a matrix product or convolution with its epilogue.

GPU libraries fuse an epilogue into a product: a scale, a bias, a residual, an activation. `Chains` follows
values with a single reader from a product (the anchor) and yields every prefix. The library's own `accept`
selects the prefixes; `accept`, the candidates and the compiler use the same `Chain`, so they never disagree.
Views between the steps are free.

Time is linear in the length of the chains.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Protocol

from collage.backends.common.primitives.composite_activations import (
    activations_within,
    all_activations,
)
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet, indices, is_subset
from collage.graph.sub_graph import SubGraph
from collage.rules.base_rules import is_host_node
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, Refusal

PRODUCTS = ("MatMul", "Gemm")
SIMPLE = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Elu": "elu", "Softplus": "softplus",
}  # fmt: skip
"""Activations of one node, by operator."""


class StepKind(Enum):
    """Kind of a step; the values are the words of labels and reasons."""

    SCALE = "scale"
    FACTOR = "channel factor"
    BIAS = "bias"
    RESIDUAL = "residual"
    ACTIVATION = "activation"
    VIEW = "view"


@dataclass(frozen=True)
class ChainStep:
    """One step of an epilogue.

    Attributes:
        kind: kind of the step.
        nodes: nodes of the step.
        value: name of its result.
        operand: name of its second operand, "" for none.
        number: constant factor of a scale; parameter of an activation.
        name: name of an activation, "" for other steps.
    """

    kind: StepKind
    nodes: IndexSet
    value: str
    operand: str = ""
    number: float = 1.0
    name: str = ""


@dataclass(frozen=True)
class Chain:
    """The node `anchor` of operator `op` and its epilogue, in order."""

    anchor: int
    op: str
    steps: tuple[ChainStep, ...] = ()

    @property
    def nodes(self) -> IndexSet:
        bits = 1 << self.anchor
        for step in self.steps:
            bits |= step.nodes
        return bits

    @property
    def work(self) -> tuple[ChainStep, ...]:
        """The steps with arithmetic: all but views."""
        return tuple(step for step in self.steps if step.kind is not StepKind.VIEW)

    @property
    def label(self) -> str:
        """E.g. "matmul+bias+gelu_tanh"."""
        return "+".join([self.op.lower(), *(step.name or step.kind.value for step in self.work)])

    def find(self, kind: StepKind) -> ChainStep | None:
        """Return the first step of `kind`."""
        return next((step for step in self.steps if step.kind is kind), None)


Accept = Callable[[Chain], str | None]
"""Returns why a library does not compute the chain, None where it does."""


class ChainRefusal(Protocol):
    """Returns why a library does not compute a chain; `rounds` allows TF32 for float32."""

    def __call__(self, function: Function, chain: Chain, *, rounds: bool = False) -> str | None: ...


class Chains:
    """The chains of one function."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._graph = function.graph
        self._activations = all_activations(function)

    def of(self, anchor: int) -> Iterator[Chain]:
        """Yield every chain from `anchor` that does not end with a view, shortest first."""
        node = self._graph.nodes[anchor]
        chain, value = Chain(anchor, node.op), node.outputs[0]
        channel = -1 if node.op in PRODUCTS else 1
        yield chain
        while step := self._next(value, channel):
            chain, value = Chain(anchor, node.op, (*chain.steps, step)), step.value
            if step.kind is not StepKind.VIEW:
                yield chain

    def read(self, nodes: IndexSet, anchors: tuple[str, ...]) -> Chain:
        """Return the chain of exactly `nodes`. Raises BackendError without one."""
        starts = [i for i in indices(nodes) if self._graph.nodes[i].op in anchors]
        for anchor in starts:
            for chain in self.of(anchor):
                if chain.nodes == nodes:
                    return chain
        ops = ", ".join(self._graph.nodes[i].op for i in indices(nodes))
        raise BackendError(f"{ops}: this is no {' or '.join(anchors)} with an epilogue")

    def _next(self, value: str, channel: int) -> ChainStep | None:
        graph = self._graph
        readers = graph.readers.get(value, 0)
        if value in graph.outputs or not readers or value not in graph.types:
            return None
        if activation := self._composite_activation(value, readers):
            return activation
        if readers.bit_count() != 1:
            return None
        node = graph.nodes[readers.bit_length() - 1]
        if any(name not in graph.types for name in node.outputs if name):
            return None
        return self._single(node, value, channel)

    def _composite_activation(self, value: str, readers: IndexSet) -> ChainStep | None:
        """Return an activation of several nodes; it includes all readers of the value."""
        outputs = frozenset(self._graph.outputs)
        for activation in self._activations:
            if activation.value != value or not is_subset(readers, activation.nodes):
                continue
            for private in activations_within(
                self._function, [activation], activation.nodes, outputs
            ):
                root = self._graph.nodes[private.nodes.bit_length() - 1]
                result, post_op = root.outputs[0], private.post_op
                return ChainStep(
                    StepKind.ACTIVATION,
                    private.nodes,
                    result,
                    "",
                    number=post_op.alpha,
                    name=post_op.algorithm,
                )
        return None

    def _single(self, node: Node, value: str, channel: int) -> ChainStep | None:
        nodes, result = 1 << node.index, node.outputs[0]
        if node.op in SIMPLE:
            return ChainStep(StepKind.ACTIVATION, nodes, result, name=SIMPLE[node.op])
        if node.op in ("Add", "Mul", "Div"):
            return self._binary(node, value, channel)
        if channel == -1 and is_host_node(self._graph, node) and self._keeps_rows(value, result):
            return ChainStep(StepKind.VIEW, nodes, result)
        return None

    def _keeps_rows(self, value: str, result: str) -> bool:
        before, after = self._graph.types[value].shape, self._graph.types[result].shape
        return bool(before) and bool(after) and before[-1] == after[-1]

    def _binary(self, node: Node, value: str, channel: int) -> ChainStep | None:
        left, right = node.inputs
        operand = right if left == value else left
        types, nodes, result = self._graph.types, 1 << node.index, node.outputs[0]
        if operand == value or operand not in types or types[result] != types[value]:
            return None
        number = self._number(operand)
        if node.op == "Div":
            if number and left == value:
                return ChainStep(StepKind.SCALE, nodes, result, number=1 / number)
            return None
        if number is not None:
            return (
                ChainStep(StepKind.SCALE, nodes, result, number=number)
                if node.op == "Mul"
                else None
            )
        if operand in self._function.weights and self._is_per_channel(operand, value, channel):
            kind = StepKind.BIAS if node.op == "Add" else StepKind.FACTOR
            return ChainStep(kind, nodes, result, operand)
        if node.op == "Add" and _broadcasts_rows(types[operand].shape, types[value].shape):
            return ChainStep(StepKind.RESIDUAL, nodes, result, operand)
        return None

    def _number(self, name: str) -> float | None:
        array = self._function.weights.get(name)
        return float(array.reshape(())) if array is not None and array.size == 1 else None

    def _is_per_channel(self, name: str, value: str, channel: int) -> bool:
        shape, value_shape = self._graph.types[name].shape, self._graph.types[value].shape
        padded = (1,) * (len(value_shape) - len(shape)) + shape
        return padded[channel] == value_shape[channel] == prod(shape)


def _broadcasts_rows(shape: tuple[int, ...], value_shape: tuple[int, ...]) -> bool:
    """Tell whether the operand has the same shape or is one matrix for the whole batch."""
    if shape == value_shape:
        return True
    leading, matrix = shape[:-2], shape[-2:]
    return len(value_shape) > 2 and matrix == value_shape[-2:] and prod(leading) == 1


@dataclass(frozen=True)
class ChainRule(PartitionRule):
    """Every accepted chain from the nodes `anchors`.

    With TF32 allowed, a library computes more chains.

    Attributes:
        chains: chains of the function.
        anchors: products and convolutions.
        accept: refusal in full precision.
        reduced: names of the reduced-precision variants.
        rounded: refusal for those variants; default: `accept`.
    """

    chains: Chains
    anchors: IndexSet
    accept: Accept
    reduced: frozenset[str] = frozenset()
    rounded: Accept | None = None

    @classmethod
    def of(
        cls, function: Function, anchors: IndexSet, refusal: ChainRefusal, reduced: Iterable[str]
    ) -> "ChainRule":
        """Return the rule of a library with the given refusal."""
        return cls(
            Chains(function),
            anchors,
            lambda chain: refusal(function, chain),
            frozenset(reduced),
            rounded=lambda chain: refusal(function, chain, rounds=True),
        )

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        accept = (spec.variant in self.reduced and self.rounded) or self.accept
        return [
            Candidate(SubGraph(graph, chain.nodes, (), chain.label), spec, "ChainRule")
            for chain in self._all()
            if accept(chain) is None
        ]

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        refused = [(chain, self.accept(chain)) for chain in self._all()]
        return [Refusal(chain.nodes, chain.label, reason) for chain, reason in refused if reason]

    def _all(self) -> Iterator[Chain]:
        for anchor in indices(self.anchors):
            yield from self.chains.of(anchor)
