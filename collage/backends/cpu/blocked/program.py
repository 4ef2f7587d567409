"""The program that the plug-in's blocked kernel runs (`native/kernels/blocked.cc`): steps over named values.

A step is a convolution or elementwise work with the posts that follow it. Weights are packed here, in
panels of output channels with zeros at the end; values are numbered when the blob is made.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from collage.backends.common.native_kernels import PANEL, Activation, by_panels
from collage.runtime.blob import Header, pack

Shape = tuple[int, ...]


class Op(IntEnum):
    """What a step does (`Op` in native/kernels/blocked_program.h)."""

    PRODUCT = 0
    DEPTHWISE = 1
    EXPAND = 2
    MEAN = 3
    ELEMENTWISE = 4


class PostKind(IntEnum):
    """What happens to a result before it is stored (`PostKind` in native/kernels/blocked.h)."""

    FUNCTION = 0
    ADD_VALUE = 1
    MULTIPLY_VALUE = 2
    ADD_CHANNEL = 3
    MULTIPLY_CHANNEL = 4


@dataclass(frozen=True, eq=False)
class Post:
    """One of them: with an activation, a value's name, or a constant [channels]."""

    kind: PostKind
    operand: Activation | str | np.ndarray

    @property
    def reads(self) -> str:
        """The value that it reads, "" for none."""
        return self.operand if isinstance(self.operand, str) else ""


@dataclass(frozen=True, eq=False)
class Window:
    """A convolution: weights [out, in, height, width], or [channels, 1, height, width] of a depthwise one.

    Attributes:
        bias: [out].
        sides: six numbers: strides, dilations, and pads at the top and left, in the order of the blob.
    """

    weights: np.ndarray
    bias: np.ndarray
    sides: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Tell whether each output pixel comes from the same pixel of the input."""
        strides, pads = self.sides[:2], self.sides[4:]
        return self.weights.shape[2:] == (1, 1) and set(strides) == {1} and set(pads) == {0}


@dataclass(frozen=True, eq=False)
class Part:
    """A window (None for work without one) and its posts."""

    window: Window | None
    posts: tuple[Post, ...] = ()


@dataclass(frozen=True, eq=False)
class Step:
    """`output` from `input`; `mean` and `scale` are values of one pixel, "" for none.

    Attributes:
        mean: takes the mean of the output per channel.
        scale: multiplies the input.
    """

    op: Op
    input: str
    output: str
    parts: tuple[Part, ...]
    mean: str = ""
    scale: str = ""

    @property
    def reads(self) -> list[str]:
        """Values that it reads, once per place."""
        operands = [post.reads for part in self.parts for post in part.posts]
        return [name for name in (self.input, self.scale, *operands) if name]


def fused(steps: Sequence[Step], outputs: Sequence[str]) -> list[Step]:
    """Fold scales into products, means into depthwise convolutions, and expansions into these."""
    found = list(steps)
    for fold in (_fold_scale, _fold_mean, _fold_expansion):
        for step in list(found):
            fold(found, step, frozenset(outputs))
    return found


def _only_reader(steps: Sequence[Step], name: str, outputs: frozenset[str]) -> Step | None:
    """The step that alone reads `name`, as its input and nothing else."""
    readers = [step for step in steps for read in step.reads if read == name]
    if name in outputs or len(readers) != 1 or readers[0].input != name:
        return None
    return readers[0]


def _fold_scale(steps: list[Step], step: Step, outputs: frozenset[str]) -> None:
    posts = step.parts[0].posts
    if step.op != Op.ELEMENTWISE or len(posts) != 1 or not posts[0].reads:
        return
    reader = _only_reader(steps, step.output, outputs)
    if posts[0].kind != PostKind.MULTIPLY_CHANNEL or reader is None or reader.scale:
        return
    window = reader.parts[0].window
    if reader.op == Op.PRODUCT and window is not None and window.is_plain:
        folded = replace(reader, input=step.input, scale=posts[0].reads)
        steps[steps.index(reader)] = folded
        steps.remove(step)


def _fold_mean(steps: list[Step], step: Step, outputs: frozenset[str]) -> None:
    if step.op != Op.MEAN:
        return
    maker = next((one for one in steps if one.output == step.input), None)
    if maker is not None and maker.op == Op.DEPTHWISE and not maker.mean:
        steps[steps.index(maker)] = replace(maker, mean=step.output)
        steps.remove(step)


def _fold_expansion(steps: list[Step], step: Step, outputs: frozenset[str]) -> None:
    window = step.parts[0].window
    if step.op != Op.PRODUCT or step.scale or window is None or not window.is_plain:
        return
    if any(post.reads for post in step.parts[0].posts):
        return
    reader = _only_reader(steps, step.output, outputs)
    if reader is not None and reader.op == Op.DEPTHWISE:
        parts = (step.parts[0], reader.parts[0])
        steps[steps.index(reader)] = replace(reader, op=Op.EXPAND, input=step.input, parts=parts)
        steps.remove(step)


@dataclass
class ProgramBuilder:
    """Numbers values and packs tensors."""

    shapes: Mapping[str, Shape]
    """[batch, channels, height, width] of every value."""
    rows: Collection[str] = ()
    """Values whose channels are innermost where they are arguments."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _parameters: list[float] = field(default_factory=list)
    _tensors: list[np.ndarray] = field(default_factory=list)

    def blob(
        self, steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str], header: Header
    ) -> bytes:
        """Pack the program from `inputs` to `outputs`."""
        entries = {
            **header,
            "inputs": [self._number(name) for name in inputs],
            "steps": [self._step(step) for step in steps],
            "outputs": [self._number(name) for name in outputs],
            "rows": [self._numbers[name] for name in (*inputs, *outputs) if name in self.rows],
            "values": [list(self.shapes[name]) for name in self._numbers],
        }
        parameters = np.array(self._parameters or [0.0], np.float32)
        return pack(entries, [parameters, *self._tensors])

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers)) if name else -1

    def _step(self, step: Step) -> list[int]:
        values = (step.input, step.output, step.mean, step.scale)
        integers = [int(step.op), *map(self._number, values)]
        for part in step.parts:
            if part.window is not None:
                integers += self._window(part.window)
            integers.append(len(part.posts))
            for post in part.posts:
                integers += self._post(post)
        return integers

    def _window(self, window: Window) -> list[int]:
        packed = np.ascontiguousarray(by_panels(window.weights).swapaxes(1, 2))
        size = window.weights.shape[2:]
        return [self._tensor(packed), self._tensor(_padded(window.bias)), *size, *window.sides]

    def _post(self, post: Post) -> list[int]:
        if isinstance(post.operand, Activation):
            self._parameters += [post.operand.a, post.operand.b]
            return [int(post.kind), int(post.operand.kind), len(self._parameters) - 2]
        if isinstance(post.operand, str):
            return [int(post.kind), self._number(post.operand), 0]
        return [int(post.kind), -1 - self._tensor(_padded(post.operand)), 0]

    def _tensor(self, array: np.ndarray) -> int:
        self._tensors.append(array)
        return len(self._tensors)


def _padded(numbers: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-numbers.size // PANEL) * PANEL, np.float32)
    padded[: numbers.size] = numbers
    return padded
