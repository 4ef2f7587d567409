"""The program of the plug-in's oneDNN kernel (`native/onednn/onednn_program.h`), packed into a blob."""

from collections.abc import Sequence

import numpy as np

from collage.backends.common.primitives.primitive import (
    Attributes,
    Operand,
    PostOp,
    RegionPrimitive,
    Shape,
)
from collage.runtime.blob import Json, pack


class ProgramBuilder:
    """Numbers values, inserts reshapes between primitives, and packs the steps."""

    def __init__(self) -> None:
        self._values: list[Shape] = []
        self._weights: list[tuple[int, np.ndarray]] = []
        self._steps: list[Json] = []
        self._named: dict[tuple[str, Shape], int] = {}
        self._shapes: dict[str, Shape] = {}
        self._arrays: dict[tuple[int, Shape, tuple[int, ...]], int] = {}

    def declare(self, name: str, shape: Shape) -> int:
        """Number an input of the program."""
        number = self._number(shape)
        self._named[name, shape] = number
        self._shapes[name] = shape
        return number

    def add(self, primitive: RegionPrimitive) -> None:
        """Append the step of `primitive`, and a reshape where `result_shape` differs."""
        inputs = [self._read(source) for source in primitive.sources]
        post_ops = [self._post(post_op) for post_op in primitive.post_ops]
        number = self._step(
            primitive.op, inputs, primitive.shape, primitive.attributes, post_ops=post_ops
        )
        self._named[primitive.result, primitive.shape] = number
        self._shapes[primitive.result] = primitive.shape
        if primitive.shape != primitive.result_shape:
            self._named[primitive.result, primitive.result_shape] = self._reshape(
                number, primitive.result_shape
            )
            self._shapes[primitive.result] = primitive.result_shape

    def blob(
        self, inputs: Sequence[str], outputs: Sequence[tuple[str, Shape]], header: Attributes
    ) -> bytes:
        """Pack the program from `inputs` to `outputs`, each with its shape."""
        entries: dict[str, Json] = {
            **header,
            "values": [list(shape) for shape in self._values],
            "inputs": [self._named[name, self._shapes[name]] for name in inputs],
            "outputs": [self._named[output] for output in outputs],
            "weights": [number for number, _ in self._weights],
            "steps": self._steps,
        }
        return pack(entries, [array for _, array in self._weights])

    def _number(self, shape: Shape) -> int:
        self._values.append(shape)
        return len(self._values) - 1

    def _step(
        self,
        op: str,
        inputs: list[int],
        shape: Shape,
        attributes: Attributes,
        *,
        post_ops: Sequence[Json] = (),
    ) -> int:
        number = self._number(shape)
        self._steps.append({**attributes, "op": op, "in": inputs, "out": number, "post": post_ops})
        return number

    def _reshape(self, number: int, shape: Shape) -> int:
        return self._step("reshape", [number], shape, {})

    def _read(self, source: Operand) -> int:
        if source.array is not None:
            return self._weight(source.array)
        key = (source.name, source.shape)
        if key not in self._named:
            original = self._named[source.name, self._shapes[source.name]]
            self._named[key] = self._reshape(original, source.shape)
        return self._named[key]

    def _weight(self, array: np.ndarray) -> int:
        key = (array.__array_interface__["data"][0], array.shape, array.strides)
        if key not in self._arrays:
            self._arrays[key] = self._number(array.shape)
            self._weights.append((self._arrays[key], array))
        return self._arrays[key]

    def _post(self, post_op: PostOp) -> Json:
        if post_op.operand is None:
            return {"eltwise": post_op.algorithm, "alpha": post_op.alpha, "beta": post_op.beta}
        return {"binary": post_op.algorithm, "value": self._read(post_op.operand)}
