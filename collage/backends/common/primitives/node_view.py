"""What translators read of an ONNX node: shapes, attributes, weights; and how they refuse it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from collage.backends.common.primitives.primitive import Attributes, Operand, RegionPrimitive, Shape
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import NodeAttributes, node_attributes
from collage.graph.dataflow import Node

MAX_PRIMITIVE_RANK = 6
"""oneDNN's optimised implementations take tensors of up to this rank."""


@dataclass(frozen=True)
class NodeView:
    """Node `index` of `function`, as translators read it."""

    function: Function
    index: int

    @property
    def node(self) -> Node:
        return self.function.graph.nodes[self.index]

    @cached_property
    def attributes(self) -> NodeAttributes:
        return node_attributes(self.function, self.index)

    @property
    def opset(self) -> int:
        return self.function.opsets.get("", 1)

    @property
    def result(self) -> str:
        return self.node.outputs[0]

    @property
    def result_shape(self) -> Shape:
        return self.shape(self.result)

    def has(self, position: int) -> bool:
        """Tell whether the optional operand is present."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    def shape(self, name: str) -> Shape:
        """Return the value's shape; a scalar has shape (1,).

        Raises:
            BackendError: the shape, rank or dtype is not supported.
        """
        value_type = self.function.graph.types.get(name)
        if value_type is None:
            raise BackendError(f"the shape of {name!r} depends on data")
        if value_type.dtype != "float32":
            raise BackendError(f"only float32 is computed, and {name!r} is {value_type.dtype}")
        if len(value_type.shape) > MAX_PRIMITIVE_RANK:
            raise BackendError(
                f"{name!r} has rank {len(value_type.shape)}, more than {MAX_PRIMITIVE_RANK}"
            )
        if 0 in value_type.shape:
            raise BackendError(f"{name!r} is empty")
        return value_type.shape or (1,)

    def source(self, position: int, shape: Shape | None = None) -> Operand:
        """Return operand `position`, reshaped to `shape` (default: its own shape)."""
        name = self.node.inputs[position]
        own = self.shape(name)
        array = self.function.weights.get(name)
        if array is not None:
            array = np.asarray(array).reshape(shape or own)
        return Operand(shape or own, name, array)

    def weight(self, position: int, role: str) -> np.ndarray:
        """Return a constant float operand. Raises BackendError where it is computed."""
        name = self.node.inputs[position]
        self.shape(name)
        if name not in self.function.weights:
            raise BackendError(f"{role} {name!r} is no constant")
        return self.function.weights[name]

    def scalar(self, position: int) -> float | None:
        """Return the number in a constant float operand of one element; None for any other operand."""
        array = self.function.weights.get(self.node.inputs[position])
        if array is None or array.size != 1 or array.dtype != np.float32:
            return None
        return float(array.reshape(())[()])

    def constant_integers(self, position: int, role: str) -> tuple[int, ...]:
        """Return a constant integer operand. Raises BackendError where it is computed."""
        name = self.node.inputs[position]
        if name not in self.function.weights:
            raise BackendError(f"{role} are computed at run time")
        return tuple(int(number) for number in self.function.weights[name].reshape(-1))

    def is_used(self, position: int) -> bool:
        """Tell whether output `position` has a reader."""
        graph = self.function.graph
        if position >= len(self.node.outputs):
            return False
        value = self.node.outputs[position]
        return bool(value) and (value in graph.readers or value in graph.outputs)

    def primitive(
        self,
        op: str,
        sources: Sequence[Operand],
        attributes: Attributes | None = None,
        shape: Shape | None = None,
    ) -> RegionPrimitive:
        """Return a primitive for the node's first output.

        Args:
            op: kind of the primitive.
            sources: its operands, the activation first.
            attributes: entries of the step beside operands and post-ops.
            shape: shape of the primitive's own result; default: the output's.
        """
        result = self.result_shape
        step_shape = shape or result
        if prod(step_shape) != prod(result):
            raise BackendError(
                f"{self.node.op} would make {list(step_shape)} instead of {list(result)}"
            )
        return RegionPrimitive(
            op,
            tuple(sources),
            step_shape,
            self.result,
            result_shape=result,
            attributes=dict(attributes or {}),
        )
