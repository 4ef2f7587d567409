"""Checks of the indices that a region takes from outside.

ONNX Runtime refuses an index beyond its axis. Kernels of other toolchains read whatever lies there, or answer
zeros. They therefore check the region's inputs that are indices, before they compute. An index that the
region itself computes cannot be checked so: it must have values that are within the axis by construction (a
constant, an ArgMax, a remainder), or the region is refused.

Views, casts between integers and transpositions keep an index's values; they are followed up to the input.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.frontend.region import region_values
from collage.graph.dataflow import Node
from collage.graph.index_set import IndexSet, indices

INDEX_OPERAND = 1
"""Position of the indices in the operands of `INDEXING`."""
ALONG_AXIS = frozenset({"Gather", "GatherElements", "Scatter", "ScatterElements"})
BY_TUPLES = frozenset({"GatherND", "ScatterND"})
INDEXING = ALONG_AXIS | BY_TUPLES
"""Operators that ONNX Runtime refuses to run with an index out of range."""
INDEX_TYPES = ("int32", "int64")
_KEEP_ORDER = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast"})
_KEEP_ELEMENTS = _KEEP_ORDER | {"Transpose", "Expand", "Slice", "Tile"}
Bounds = tuple[float, float]


@dataclass(frozen=True)
class IndexCheck:
    """The condition -size <= index < size for the elements of an input.

    Attributes:
        position: position of the input among the region's inputs.
        sizes: sizes of the axes: one, or one for each element of an index tuple, in turn.
    """

    position: int
    sizes: tuple[int, ...]


def checks_entry(checks: Sequence[IndexCheck]) -> tuple[int, ...]:
    """Return the checks in the form of a blob's header entry `index_checks` (native/core/index_checks.h)."""
    return tuple(n for check in checks for n in (check.position, len(check.sizes), *check.sizes))


@dataclass(frozen=True)
class _Value:
    """A value as a region sees it: values from outside have no producer."""

    function: Function
    nodes: IndexSet
    name: str

    @property
    def node(self) -> Node | None:
        """Producer within the region; None for a value from outside or a constant."""
        producer = self.function.graph.producer.get(self.name, -1)
        if producer < 0 or not self.nodes >> producer & 1:
            return None
        return self.function.graph.nodes[producer]

    @property
    def dtype(self) -> str:
        static_type = self.function.graph.types.get(self.name)
        return static_type.dtype if static_type else ""

    @property
    def shape(self) -> tuple[int, ...]:
        static_type = self.function.graph.types.get(self.name)
        return static_type.shape if static_type else ()

    def of(self, name: str) -> "_Value":
        """Return another value of the region."""
        return _Value(self.function, self.nodes, name)


def index_checks(function: Function, nodes: IndexSet) -> tuple[IndexCheck, ...]:
    """Return the checks that a kernel of the region needs, in order of first use.

    Raises:
        BackendError: an index is computed in the region and may be out of range.
    """
    inputs, _ = region_values(function, nodes)
    checks: dict[IndexCheck, None] = {}
    for index in indices(nodes):
        node = function.graph.nodes[index]
        if node.op not in INDEXING:
            continue
        sizes = indexed_sizes(function, node)
        operand = _Value(function, nodes, node.inputs[INDEX_OPERAND])
        source = _source(operand, uniform=len(sizes) == 1)
        if source.name in inputs:
            checks[IndexCheck(inputs.index(source.name), sizes)] = None
        elif not _is_within(source, sizes):
            raise BackendError(
                f"the indices of {node.op} ({node.name}) are computed in the same kernel, and may be out "
                "of range"
            )
    return tuple(checks)


def indexed_sizes(function: Function, node: Node) -> tuple[int, ...]:
    """Return the sizes of the axes that a node of `INDEXING` indexes.

    Raises:
        BackendError: they are not known before the model runs.
    """
    types = function.graph.types
    if any(name not in types for name in node.inputs[:2]):
        raise BackendError(f"the axes that {node.op} ({node.name}) indexes depend on data")
    shape = types[node.inputs[0]].shape
    attributes = node_attributes(function, node.index)
    if node.op in ALONG_AXIS:
        return (shape[attributes.integer("axis", 0)],)
    depth = types[node.inputs[INDEX_OPERAND]].shape[-1]
    first = attributes.integer("batch_dims", 0) if node.op == "GatherND" else 0
    return tuple(shape[first : first + depth])


def _source(value: _Value, *, uniform: bool) -> _Value:
    """Return the value that the indices come from unchanged.

    Args:
        uniform: whether all elements have one condition, so that their order is free.
    """
    while value.node and (
        value.node.op in _KEEP_ORDER or (uniform and value.node.op == "Transpose")
    ):
        source = value.of(value.node.inputs[0])
        if source.dtype not in INDEX_TYPES:
            break
        value = source
    return value


def _is_within(value: _Value, sizes: tuple[int, ...]) -> bool:
    least, most = _bounds(value)
    return all(-size <= least and most < size for size in sizes)


def _bounds(value: _Value) -> Bounds:
    """Return the smallest and the largest integer that a value of the region may hold."""
    if (array := value.function.weights.get(value.name)) is not None:
        return (float(array.min()), float(array.max())) if array.size else (0, 0)
    return (_produced(value, value.node) if value.node else None) or (-math.inf, math.inf)


def _produced(value: _Value, node: Node) -> Bounds | None:
    """Return the bounds that follow from the operator that produces the value; None where none do."""
    attributes = node_attributes(value.function, node.index)
    first = value.of(node.inputs[0])
    if node.op in _KEEP_ELEMENTS and first.dtype in INDEX_TYPES:
        return _bounds(first)
    if node.op in ("ArgMax", "ArgMin") and first.shape:
        return 0, first.shape[attributes.integer("axis", 0)] - 1
    if node.op == "TopK" and value.name == node.outputs[1] and first.shape:
        return 0, first.shape[attributes.integer("axis", -1)] - 1
    if node.op == "NonZero" and first.shape:
        return 0, max(first.shape) - 1
    if node.op == "Mod" and not attributes.integer("fmod", 0):
        least, most = _bounds(value.of(node.inputs[1]))
        return (0, most - 1) if least > 0 else None
    if node.op in ("Concat", "Where"):
        operands = node.inputs[1:] if node.op == "Where" else node.inputs
        ranges = [_bounds(value.of(operand)) for operand in operands]
        return min(least for least, _ in ranges), max(most for _, most in ranges)
    return None
