"""What translators read of an ONNX node: shapes, attributes, weights; and how they refuse it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import onnx

from collage.backends.cpu.onednn.program import Attributes, Draft, Shape, Source
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import Node

MAX_RANK = 6
"""oneDNN's optimised implementations take tensors of up to this rank."""


@dataclass(frozen=True)
class NodeView:
    """A node of `function` that is to be translated."""

    function: Function
    index: int

    @property
    def node(self) -> Node:
        return self.function.graph.nodes[self.index]

    @cached_property
    def attributes(self) -> dict[str, object]:
        proto = self.function.onnx_nodes[self.index]
        return {one.name: onnx.helper.get_attribute_value(one) for one in proto.attribute}

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
        """Tell whether the optional operand is there."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    def shape(self, name: str) -> Shape:
        """The value's shape; a scalar has shape (1,).

        Raises:
            BackendError: the shape, rank or dtype cannot be taken.
        """
        found = self.function.graph.types.get(name)
        if found is None:
            raise BackendError(f"the shape of {name!r} depends on data")
        if found.dtype != "float32":
            raise BackendError(f"only float32 is computed, and {name!r} is {found.dtype}")
        if len(found.shape) > MAX_RANK:
            raise BackendError(f"{name!r} has rank {len(found.shape)}, more than {MAX_RANK}")
        if 0 in found.shape:
            raise BackendError(f"{name!r} is empty")
        return found.shape or (1,)

    def source(self, position: int, shape: Shape | None = None) -> Source:
        """Operand `position`, seen with `shape` when it is given."""
        name = self.node.inputs[position]
        own = self.shape(name)
        array = self.function.weights.get(name)
        if array is not None:
            array = np.asarray(array).reshape(shape or own)
        return Source(shape or own, name, array)

    def weight(self, position: int, what: str) -> np.ndarray:
        """A float operand that has to be a constant. Raises BackendError when it is none."""
        name = self.node.inputs[position]
        self.shape(name)
        if name not in self.function.weights:
            raise BackendError(f"{what} {name!r} is no constant")
        return self.function.weights[name]

    def scalar(self, position: int) -> float | None:
        """The number that a constant float operand of one element holds, else None."""
        array = self.function.weights.get(self.node.inputs[position])
        if array is None or array.size != 1 or array.dtype != np.float32:
            return None
        return float(array.reshape(())[()])

    def constant_integers(self, position: int, what: str) -> tuple[int, ...]:
        """A constant integer operand. Raises BackendError when it is computed."""
        name = self.node.inputs[position]
        if name not in self.function.weights:
            raise BackendError(f"{what} are computed at run time")
        return tuple(int(one) for one in self.function.weights[name].reshape(-1))

    def integer(self, name: str, otherwise: int) -> int:
        return int(self.attributes.get(name, otherwise))  # type: ignore[call-overload, no-any-return]

    def number(self, name: str, otherwise: float) -> float:
        return float(self.attributes.get(name, otherwise))  # type: ignore[arg-type]

    def text(self, name: str, otherwise: str) -> str:
        found = self.attributes.get(name, otherwise)
        return found.decode() if isinstance(found, bytes) else str(found)

    def integers(self, name: str, otherwise: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.attributes.get(name, otherwise))  # type: ignore[arg-type]

    def is_used(self, position: int) -> bool:
        """Tell whether anything reads output `position`."""
        graph = self.function.graph
        if position >= len(self.node.outputs):
            return False
        value = self.node.outputs[position]
        return bool(value) and (value in graph.readers or value in graph.outputs)

    def draft(
        self,
        op: str,
        sources: Sequence[Source],
        attributes: Attributes | None = None,
        shape: Shape | None = None,
    ) -> Draft:
        """A draft that makes the node's first output, `shape` being what the step makes of it."""
        result = self.result_shape
        made = shape or result
        if prod(made) != prod(result):
            raise BackendError(f"{self.node.op} would make {list(made)} instead of {list(result)}")
        return Draft(op, tuple(sources), made, self.result, result, dict(attributes or {}))
