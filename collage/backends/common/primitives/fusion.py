"""Fusion of a region's nodes into primitives with post-ops.

The units of fusion are single nodes and composite activations. A primitive absorbs the reader of its result
while that unit is the only reader, the result is no output of the region, and the unit is elementwise in the
result or a reshape of it. A constant summand per channel becomes the primitive's bias. A group is emitted at
the position of its last node: by then the other operand of a residual sum exists.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collage.backends.common.primitives.composite_activations import (
    CompositeActivation,
    activations_within,
)
from collage.backends.common.primitives.elementwise import ELEMENTWISE, node_post_ops
from collage.backends.common.primitives.node_view import NodeView
from collage.backends.common.primitives.primitive import FUSIBLE, PostOp, RegionPrimitive
from collage.backends.common.primitives.translate import RESHAPES, bias_source, translate
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet, indices

MAX_POST_OPS = 32
"""oneDNN's limit."""

Unit = int | CompositeActivation


@dataclass(frozen=True)
class Group:
    """Primitives with all absorbed units; `last` is the index of the last node."""

    primitives: list[RegionPrimitive]
    last: int


def region_primitives(
    function: Function,
    nodes: IndexSet,
    outputs: tuple[str, ...],
    activations: Sequence[CompositeActivation],
) -> list[RegionPrimitive]:
    """Return the primitives of a region in execution order.

    Args:
        function: function of the region.
        nodes: nodes of the region.
        outputs: names of its outputs.
        activations: composite activations of the whole function (`all_activations`).

    Raises:
        BackendError: a node cannot run here.
    """
    inside = activations_within(function, activations, nodes, frozenset(outputs))
    groups = sorted(_Fuser(function, nodes, outputs, inside).groups(), key=lambda group: group.last)
    return [primitive for group in groups for primitive in group.primitives]


class _Fuser:
    def __init__(
        self,
        function: Function,
        nodes: IndexSet,
        outputs: tuple[str, ...],
        activations: Iterator[CompositeActivation],
    ) -> None:
        self._function = function
        self._outputs = frozenset(outputs)
        self._units: dict[int, Unit] = {}
        for index in indices(nodes):
            self._units[index] = index
        for activation in activations:
            for index in indices(activation.nodes):
                self._units[index] = activation
        self._nodes = nodes
        self._absorbed: IndexSet = 0

    def groups(self) -> Iterator[Group]:
        for index in indices(self._nodes):
            if self._absorbed >> index & 1:
                continue
            unit = self._units[index]
            self._absorb(unit)
            primitives, last = self._start(unit)
            if len(primitives) == 1 and primitives[0].op in FUSIBLE:
                last = max(last, self._absorb_readers(primitives[0]))
            yield Group(primitives, last)

    def _absorb(self, unit: Unit) -> None:
        self._absorbed |= 1 << unit if isinstance(unit, int) else unit.nodes

    def _start(self, unit: Unit) -> tuple[list[RegionPrimitive], int]:
        if isinstance(unit, int):
            return translate(NodeView(self._function, unit)), unit
        last = unit.nodes.bit_length() - 1
        view = NodeView(self._function, last)
        first = next(indices(unit.nodes))
        source = NodeView(self._function, first).source(
            self._function.graph.nodes[first].inputs.index(unit.value)
        )
        return [view.primitive("eltwise", [source], unit.post_op.as_step())], last

    def _absorb_readers(self, primitive: RegionPrimitive) -> int:
        """Absorb readers into `primitive`; return the index of the last one's last node, or -1."""
        last = -1
        while (unit := self._only_reader(primitive.result)) is not None:
            post_ops = self._post_ops(primitive, unit)
            if post_ops is None or len(primitive.post_ops) + len(post_ops) > MAX_POST_OPS:
                break
            self._absorb(unit)
            last = unit if isinstance(unit, int) else unit.nodes.bit_length() - 1
            primitive.result = self._function.graph.nodes[last].outputs[0]
            primitive.result_shape = self._function.graph.types[primitive.result].shape or (1,)
            primitive.post_ops += post_ops
        return last

    def _only_reader(self, value: str) -> Unit | None:
        if value in self._outputs:
            return None
        readers = list(indices(self._function.graph.readers.get(value, 0) & self._nodes))
        units = {id(self._units[reader]): self._units[reader] for reader in readers}
        if len(units) != 1:
            return None
        (unit,) = units.values()
        free = isinstance(unit, CompositeActivation) or not self._absorbed >> unit & 1
        return unit if free else None

    def _post_ops(self, primitive: RegionPrimitive, unit: Unit) -> list[PostOp] | None:
        if not isinstance(unit, int):
            return [unit.post_op] if unit.value == primitive.result else None
        view = NodeView(self._function, unit)
        inputs = view.node.inputs
        position = inputs.index(primitive.result)
        if inputs.count(primitive.result) != 1:
            return None
        try:
            if view.node.op in RESHAPES and position == 0:
                translate(view)
                return []
            if view.node.op not in ELEMENTWISE or view.result_shape != primitive.result_shape:
                return None
            post_ops = node_post_ops(view, position)
        except BackendError:  # it stays a primitive of its own
            return None
        return self._fitted(primitive, post_ops)

    def _fitted(self, primitive: RegionPrimitive, post_ops: list[PostOp]) -> list[PostOp] | None:
        fitted = []
        for post_op in post_ops:
            if post_op.operand is None:
                fitted.append(post_op)
                continue
            bias = bias_source(primitive, post_op.operand) if post_op.algorithm == "add" else None
            if bias is not None:
                primitive.sources = (*primitive.sources, bias)
                continue
            operand = primitive.fitted(post_op.operand)
            if operand is None or post_op.operand.name == primitive.result:
                return None
            fitted.append(PostOp(post_op.algorithm, operand=operand))
        return fitted
