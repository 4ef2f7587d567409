"""The dataflow graph of one function: plain data that rules, search and reports share.

A node is one operator call, numbered in topological order; a value is a named tensor. A value is a
function input, a constant (weight), or an output of exactly one node. A node may have several
outputs, so tuples and projections do not become nodes of an imported model; graphs made by hand may
still have `tuple` and `tuple_get_item` nodes and `constant` nodes (the RFC's tables do).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from collage.graph.index_set import IndexSet, index_set, indices, is_subset
from collage.graph.op_pattern import OpPatternKind

DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape (every dimension known) and dtype (numpy's name) of a value."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES.get(self.dtype, 1)


@dataclass(frozen=True, slots=True)
class OpenType:
    """Type of a value whose shape depends on data: -1 for such a dimension, None for any rank."""

    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call.

    `inputs` are value names in operand order; an omitted optional operand is "". Weights are
    operands too; they are no nodes (see `DataflowGraph.constants`).
    """

    index: int
    name: str
    op: str
    kind: OpPatternKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class DataflowGraph:
    """Nodes in topological order; `types` lacks the values whose shape is not known."""

    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Index of the node that makes a value; function inputs and constants have none."""
        return {value: node.index for node in self.nodes for value in node.outputs}

    @cached_property
    def predecessors(self) -> tuple[IndexSet, ...]:
        """Per node: the nodes whose outputs it reads."""
        found = []
        for node in self.nodes:
            bits = 0
            for value in node.inputs:
                if value in self.producer:
                    bits |= 1 << self.producer[value]
            found.append(bits)
        return tuple(found)

    @cached_property
    def successors(self) -> tuple[IndexSet, ...]:
        """Per node: the nodes that read its outputs."""
        found = [0] * len(self.nodes)
        for index, before in enumerate(self.predecessors):
            for source in indices(before):
                found[source] |= 1 << index
        return tuple(found)

    @cached_property
    def downstream(self) -> tuple[IndexSet, ...]:
        """Per node: all nodes strictly reachable from it."""
        found = [0] * len(self.nodes)
        for index in reversed(range(len(self.nodes))):
            reach = self.successors[index]
            for after in indices(reach):
                reach |= found[after]
            found[index] = reach
        return tuple(found)

    @cached_property
    def external(self) -> IndexSet:
        """Nodes with an output that the function returns."""
        results = set(self.outputs)
        return index_set(node.index for node in self.nodes if not results.isdisjoint(node.outputs))

    @cached_property
    def readers(self) -> Mapping[str, IndexSet]:
        """Per value: the nodes that read it; a value that nobody reads is missing."""
        found: dict[str, int] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value:
                    found[value] = found.get(value, 0) | 1 << node.index
        return found

    def is_private(self, value: str, nodes: IndexSet) -> bool:
        """Tell whether nobody but `nodes` reads a value, and it is no output."""
        return is_subset(self.readers.get(value, 0), nodes) and value not in self.outputs

    @cached_property
    def fed(self) -> IndexSet:
        """Nodes that read a function input."""
        arguments = set(self.inputs)
        return index_set(node.index for node in self.nodes if not arguments.isdisjoint(node.inputs))

    @cached_property
    def everything(self) -> IndexSet:
        """All nodes."""
        return (1 << len(self.nodes)) - 1
