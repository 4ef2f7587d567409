"""Chains: a matrix product or convolution, and what follows it while its result is stored.

Libraries for GPUs fuse an epilogue into the product: a scale, a bias, a residual, an activation. `Chains`
walks from a product (the anchor) along values that nobody else reads and yields each prefix of the walk.
Which prefixes a library computes is the library's own `accept`; that function, the candidates and the
compiler all see the same `Chain`, so they cannot disagree. Views between the steps are free.

Time is linear in the length of the chains.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Protocol

from collage.backends.cpu.onednn.activations import activations_within, all_activations
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
"""Activations of one node."""


class StepKind(Enum):
    """What a step does to the value; the words are those of labels and reasons."""

    SCALE = "scale"
    FACTOR = "channel factor"
    BIAS = "bias"
    RESIDUAL = "residual"
    ACTIVATION = "activation"
    VIEW = "view"


@dataclass(frozen=True)
class Step:
    """One step: `operand` is its second value, `number` a constant factor, `name` an activation's."""

    kind: StepKind
    nodes: IndexSet
    value: str
    operand: str = ""
    number: float = 1.0
    name: str = ""


@dataclass(frozen=True)
class Chain:
    """The node `anchor` and the steps after it, in order."""

    anchor: int
    op: str
    steps: tuple[Step, ...] = ()

    @property
    def nodes(self) -> IndexSet:
        bits = 1 << self.anchor
        for step in self.steps:
            bits |= step.nodes
        return bits

    @property
    def work(self) -> tuple[Step, ...]:
        """The steps that compute."""
        return tuple(step for step in self.steps if step.kind is not StepKind.VIEW)

    @property
    def label(self) -> str:
        """E.g. "matmul+bias+gelu_tanh"."""
        return "+".join([self.op.lower(), *(step.name or step.kind.value for step in self.work)])

    def find(self, kind: StepKind) -> Step | None:
        """Return the first step of `kind`."""
        return next((step for step in self.steps if step.kind is kind), None)


Accept = Callable[[Chain], str | None]
"""Why a library does not compute the chain, or None when it does."""


class ChainRefusal(Protocol):
    """The same of any function, where `rounds` says that float32 may be rounded to TF32."""

    def __call__(self, function: Function, chain: Chain, *, rounds: bool = False) -> str | None: ...


class Chains:
    """The chains of one function."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._graph = function.graph
        self._activations = all_activations(function)

    def of(self, anchor: int) -> Iterator[Chain]:
        """Yield every chain from `anchor` that ends with a step that computes, shortest first."""
        node = self._graph.nodes[anchor]
        chain, value = Chain(anchor, node.op), node.outputs[0]
        channel = -1 if node.op in PRODUCTS else 1
        yield chain
        while step := self._next(value, channel):
            chain, value = Chain(anchor, node.op, (*chain.steps, step)), step.value
            if step.kind is not StepKind.VIEW:
                yield chain

    def read(self, nodes: IndexSet, anchors: tuple[str, ...]) -> Chain:
        """Return the chain that consists of exactly `nodes`. Raises BackendError when there is none."""
        found = [i for i in indices(nodes) if self._graph.nodes[i].op in anchors]
        for anchor in found:
            for chain in self.of(anchor):
                if chain.nodes == nodes:
                    return chain
        ops = ", ".join(self._graph.nodes[i].op for i in indices(nodes))
        raise BackendError(f"{ops}: this is no {' or '.join(anchors)} with an epilogue")

    def _next(self, value: str, channel: int) -> Step | None:
        graph = self._graph
        readers = graph.readers.get(value, 0)
        if value in graph.outputs or not readers or value not in graph.types:
            return None
        if activation := self._spelled(value, readers):
            return activation
        if readers.bit_count() != 1:
            return None
        node = graph.nodes[readers.bit_length() - 1]
        if any(name not in graph.types for name in node.outputs if name):
            return None
        return self._single(node, value, channel)

    def _spelled(self, value: str, readers: IndexSet) -> Step | None:
        """An activation of several nodes: all readers of the value belong to it."""
        outputs = frozenset(self._graph.outputs)
        for known in self._activations:
            if known.value != value or not is_subset(readers, known.nodes):
                continue
            for found in activations_within(self._function, [known], known.nodes, outputs):
                root = self._graph.nodes[found.nodes.bit_length() - 1]
                result, post = root.outputs[0], found.post
                return Step(
                    StepKind.ACTIVATION, found.nodes, result, "", post.alpha, post.algorithm
                )
        return None

    def _single(self, node: Node, value: str, channel: int) -> Step | None:
        nodes, result = 1 << node.index, node.outputs[0]
        if node.op in SIMPLE:
            return Step(StepKind.ACTIVATION, nodes, result, name=SIMPLE[node.op])
        if node.op in ("Add", "Mul", "Div"):
            return self._binary(node, value, channel)
        if channel == -1 and is_host_node(self._graph, node) and self._keeps_rows(value, result):
            return Step(StepKind.VIEW, nodes, result)
        return None

    def _keeps_rows(self, value: str, result: str) -> bool:
        before, after = self._graph.types[value].shape, self._graph.types[result].shape
        return bool(before) and bool(after) and before[-1] == after[-1]

    def _binary(self, node: Node, value: str, channel: int) -> Step | None:
        left, right = node.inputs
        other = right if left == value else left
        types, nodes, result = self._graph.types, 1 << node.index, node.outputs[0]
        if other == value or other not in types or types[result] != types[value]:
            return None
        number = self._number(other)
        if node.op == "Div":
            if number and left == value:
                return Step(StepKind.SCALE, nodes, result, number=1 / number)
            return None
        if number is not None:
            return Step(StepKind.SCALE, nodes, result, number=number) if node.op == "Mul" else None
        if other in self._function.weights and self._is_per_channel(other, value, channel):
            kind = StepKind.BIAS if node.op == "Add" else StepKind.FACTOR
            return Step(kind, nodes, result, other)
        if node.op == "Add" and _broadcasts_rows(types[other].shape, types[value].shape):
            return Step(StepKind.RESIDUAL, nodes, result, other)
        return None

    def _number(self, name: str) -> float | None:
        array = self._function.weights.get(name)
        return float(array.reshape(())) if array is not None and array.size == 1 else None

    def _is_per_channel(self, name: str, value: str, channel: int) -> bool:
        shape, whole = self._graph.types[name].shape, self._graph.types[value].shape
        padded = (1,) * (len(whole) - len(shape)) + shape
        return padded[channel] == whole[channel] == prod(shape)


def _broadcasts_rows(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Tell whether the operand is of the same shape, or one matrix for the whole batch."""
    if shape == whole:
        return True
    leading, matrix = shape[:-2], shape[-2:]
    return len(whole) > 2 and matrix == whole[-2:] and prod(leading) == 1


@dataclass(frozen=True)
class ChainRule(PartitionRule):
    """Every chain from the nodes `anchors` that `accept` has no reason against.

    A library that may round computes more: of the variants `reduced` are the chains that `rounded` has no
    reason against.
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
        """Make the rule of a library that says with `refusal` what it does not compute."""
        return cls(
            Chains(function),
            anchors,
            lambda chain: refusal(function, chain),
            frozenset(reduced),
            lambda chain: refusal(function, chain, rounds=True),
        )

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        accept = (spec.variant in self.reduced and self.rounded) or self.accept
        return [
            Candidate(SubGraph(graph, chain.nodes, (), chain.label), spec, "ChainRule")
            for chain in self._all()
            if accept(chain) is None
        ]

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        found = [(chain, self.accept(chain)) for chain in self._all()]
        return [Refusal(chain.nodes, chain.label, reason) for chain, reason in found if reason]

    def _all(self) -> Iterator[Chain]:
        for anchor in indices(self.anchors):
            yield from self.chains.of(anchor)
