"""The dataflow graph of one function: plain data shared by rules, search and reports.

A node is one operator call, numbered in topological order; a value is a named tensor. A value is a function
input, a constant (weight), or an output of exactly one node. A node may have several outputs, so tuples and
projections are no nodes of an imported model; hand-written graphs may still have `tuple`, `tuple_get_item`
and `constant` nodes (the RFC's tables do).
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
    """Type of a value with a data-dependent shape: -1 for such a dimension, None for any rank."""

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
    """Nodes in topological order; `types` has no entry for values of unknown shape."""

    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Index of each value's producer; function inputs and constants have none."""
        return {value: node.index for node in self.nodes for value in node.outputs}

    @cached_property
    def predecessors(self) -> tuple[IndexSet, ...]:
        """For each node, the producers of its inputs."""
        predecessors = []
        for node in self.nodes:
            bits = 0
            for value in node.inputs:
                if value in self.producer:
                    bits |= 1 << self.producer[value]
            predecessors.append(bits)
        return tuple(predecessors)

    @cached_property
    def successors(self) -> tuple[IndexSet, ...]:
        """For each node, the readers of its outputs."""
        successors = [0] * len(self.nodes)
        for index, before in enumerate(self.predecessors):
            for source in indices(before):
                successors[source] |= 1 << index
        return tuple(successors)

    @cached_property
    def downstream(self) -> tuple[IndexSet, ...]:
        """For each node, all nodes strictly reachable from it."""
        downstream = [0] * len(self.nodes)
        for index in reversed(range(len(self.nodes))):
            reach = self.successors[index]
            for after in indices(reach):
                reach |= downstream[after]
            downstream[index] = reach
        return tuple(downstream)

    @cached_property
    def external(self) -> IndexSet:
        """Nodes with an output of the function."""
        results = set(self.outputs)
        return index_set(node.index for node in self.nodes if not results.isdisjoint(node.outputs))

    @cached_property
    def readers(self) -> Mapping[str, IndexSet]:
        """Readers of each value; a value without a reader has no entry."""
        readers: dict[str, int] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value:
                    readers[value] = readers.get(value, 0) | 1 << node.index
        return readers

    def is_private(self, value: str, nodes: IndexSet) -> bool:
        """Tell whether only `nodes` read a value, and it is no output."""
        return is_subset(self.readers.get(value, 0), nodes) and value not in self.outputs

    @cached_property
    def fed(self) -> IndexSet:
        """Readers of function inputs."""
        arguments = set(self.inputs)
        return index_set(node.index for node in self.nodes if not arguments.isdisjoint(node.inputs))

    @cached_property
    def everything(self) -> IndexSet:
        """All nodes."""
        return (1 << len(self.nodes)) - 1
