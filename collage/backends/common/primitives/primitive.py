"""Primitives: the steps of a region's program, in oneDNN's terms.

A `RegionPrimitive` refers to values by name. Creating one does not touch the bytes of weights, so a
check whether a node can be translated costs microseconds. Backends number the values and pack the
program.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from collage.runtime.blob import Json

Shape = tuple[int, ...]
Attributes = Mapping[str, Json]

FUSIBLE = frozenset({
    "convolution", "deconvolution", "matmul", "pooling", "eltwise", "binary", "reduction", "resampling",
})  # fmt: skip
"""Primitives with post-ops."""


@dataclass(frozen=True)
class Operand:
    """A named value or a constant `array`, viewed with `shape`."""

    shape: Shape
    name: str = ""
    array: np.ndarray | None = None


@dataclass(frozen=True)
class PostOp:
    """An elementwise operation on a primitive's result before it is stored.

    Attributes:
        algorithm: oneDNN's name.
        alpha: first parameter of an `eltwise` algorithm.
        beta: second parameter.
        operand: second operand of a `binary` algorithm; None for `eltwise`.
    """

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0
    operand: Operand | None = None

    def as_step(self) -> Attributes:
        """Return the attributes of the `eltwise` or `binary` primitive for this operation alone."""
        if self.operand is not None:
            return {"algorithm": self.algorithm}
        return {"algorithm": self.algorithm, "alpha": self.alpha, "beta": self.beta}


@dataclass
class RegionPrimitive:
    """One primitive or view; its result is the value `result`.

    Attributes:
        op: kind of the primitive.
        sources: operands, the activation first.
        shape: shape of the primitive's result; leading dimensions may be joined.
        result: name of the result.
        result_shape: shape of the ONNX value; the same elements in the same order.
        attributes: entries of the step beside operands and post-ops.
        post_ops: operations on the result, in order.
    """

    op: str
    sources: tuple[Operand, ...]
    shape: Shape
    result: str
    result_shape: Shape
    attributes: dict[str, Json] = field(default_factory=dict)
    post_ops: list[PostOp] = field(default_factory=list)

    def fitted(self, operand: Operand) -> Operand | None:
        """View a post-op's operand so that it broadcasts to `shape`; None where it does not."""
        padded = (1,) * (len(self.result_shape) - len(operand.shape)) + operand.shape
        if len(padded) != len(self.result_shape):
            return None
        if self.shape == self.result_shape:
            return reshaped(operand, padded)
        if padded == self.result_shape:
            return reshaped(operand, self.shape)
        if math.prod(padded) == padded[-1] and self.shape[-1] == self.result_shape[-1]:
            return reshaped(operand, (1,) * (len(self.shape) - 1) + padded[-1:])
        return None


def reshaped(source: Operand, shape: Shape) -> Operand:
    """Return the operand with another shape."""
    array = None if source.array is None else source.array.reshape(shape)
    return Operand(shape, source.name, array)
