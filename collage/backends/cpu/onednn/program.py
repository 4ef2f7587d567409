"""The program that the plug-in's oneDNN kernel runs (`native/onednn/onednn_program.h`).

A `Draft` says in names what one ONNX node needs of oneDNN; `ProgramBuilder` numbers the values,
inserts the reshapes that the drafts ask for, and packs everything into a blob. Drafts are made
without touching weights' bytes, so asking whether a node can be translated costs microseconds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from collage.runtime.blob import Json, pack

Shape = tuple[int, ...]
Attributes = Mapping[str, Json]

FUSIBLE = frozenset({
    "convolution", "deconvolution", "matmul", "pooling", "eltwise", "binary", "reduction", "resampling",
})  # fmt: skip
"""Steps that may carry post-operations."""


@dataclass(frozen=True)
class Source:
    """An operand: a named value, or a constant `array`, seen with `shape`."""

    shape: Shape
    name: str = ""
    array: np.ndarray | None = None


@dataclass(frozen=True)
class Post:
    """What happens to a step's result before it is written; `operand` for binary algorithms."""

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0
    operand: Source | None = None

    def as_step(self) -> Attributes:
        """The attributes of the step that does only this."""
        if self.operand is not None:
            return {"algorithm": self.algorithm}
        return {"algorithm": self.algorithm, "alpha": self.alpha, "beta": self.beta}


@dataclass
class Draft:
    """One primitive or view that makes the value `result`.

    Attributes:
        shape: of the primitive's result, where leading dimensions may be joined.
        result_shape: of the value as ONNX has it; the same elements in the same order.
    """

    op: str
    sources: tuple[Source, ...]
    shape: Shape
    result: str
    result_shape: Shape
    attributes: dict[str, Json] = field(default_factory=dict)
    posts: list[Post] = field(default_factory=list)

    def fitted(self, operand: Source) -> Source | None:
        """View a post-operation's operand so that it broadcasts to `shape`; None if it cannot."""
        padded = (1,) * (len(self.result_shape) - len(operand.shape)) + operand.shape
        if len(padded) != len(self.result_shape):
            return None
        if self.shape == self.result_shape:
            return seen_as(operand, padded)
        if padded == self.result_shape:
            return seen_as(operand, self.shape)
        if math.prod(padded) == padded[-1] and self.shape[-1] == self.result_shape[-1]:
            return seen_as(operand, (1,) * (len(self.shape) - 1) + padded[-1:])
        return None


def seen_as(source: Source, shape: Shape) -> Source:
    """The same operand with another shape."""
    array = None if source.array is None else source.array.reshape(shape)
    return Source(shape, source.name, array)


class ProgramBuilder:
    """Numbers values and collects steps."""

    def __init__(self) -> None:
        self._values: list[Shape] = []
        self._weights: list[tuple[int, np.ndarray]] = []
        self._steps: list[Json] = []
        self._named: dict[tuple[str, Shape], int] = {}
        self._shapes: dict[str, Shape] = {}
        self._arrays: dict[tuple[int, Shape, tuple[int, ...]], int] = {}

    def declare(self, name: str, shape: Shape) -> int:
        """Number a value that something else makes: an input."""
        number = self._number(shape)
        self._named[name, shape] = number
        self._shapes[name] = shape
        return number

    def add(self, draft: Draft) -> None:
        """Append the step of `draft`, and a reshape where its result has another shape."""
        inputs = [self._read(source) for source in draft.sources]
        posts = [self._post(post) for post in draft.posts]
        made = self._step(draft.op, inputs, draft.shape, draft.attributes, posts)
        self._named[draft.result, draft.shape] = made
        self._shapes[draft.result] = draft.shape
        if draft.shape != draft.result_shape:
            self._named[draft.result, draft.result_shape] = self._reshape(made, draft.result_shape)
            self._shapes[draft.result] = draft.result_shape

    def blob(
        self, inputs: Sequence[str], outputs: Sequence[tuple[str, Shape]], header: Attributes
    ) -> bytes:
        """Pack the program from `inputs` to `outputs` (with their shapes)."""
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
        posts: Sequence[Json] = (),
    ) -> int:
        made = self._number(shape)
        self._steps.append({**attributes, "op": op, "in": inputs, "out": made, "post": posts})
        return made

    def _reshape(self, number: int, shape: Shape) -> int:
        return self._step("reshape", [number], shape, {})

    def _read(self, source: Source) -> int:
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

    def _post(self, post: Post) -> Json:
        if post.operand is None:
            return {"eltwise": post.algorithm, "alpha": post.alpha, "beta": post.beta}
        return {"binary": post.algorithm, "value": self._read(post.operand)}
