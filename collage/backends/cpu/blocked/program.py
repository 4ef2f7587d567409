"""The program of the plug-in's blocked kernel (`native/kernels/blocked.cc`): steps over named values.

A step is a convolution or elementwise work with post-ops. Weights are packed here, in panels of output
channels, padded with zeros; the blob refers to values by number.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from collage.backends.common.native_kernels import PANEL, Activation, by_panels
from collage.runtime.blob import Header, pack

Shape = tuple[int, ...]


class Op(IntEnum):
    """Kind of a step (`Op` in native/kernels/blocked_program.h)."""

    PRODUCT = 0
    DEPTHWISE = 1
    EXPAND = 2
    MEAN = 3
    ELEMENTWISE = 4


class PostOpKind(IntEnum):
    """Kind of a post-op (`PostOpKind` in native/kernels/blocked.h)."""

    FUNCTION = 0
    ADD_VALUE = 1
    MULTIPLY_VALUE = 2
    ADD_CHANNEL = 3
    MULTIPLY_CHANNEL = 4


@dataclass(frozen=True, eq=False)
class BlockedPostOp:
    """A post-op with its operand: an activation, a value's name, or a constant [channels]."""

    kind: PostOpKind
    operand: Activation | str | np.ndarray

    @property
    def reads(self) -> str:
        """Name of the value operand, "" for none."""
        return self.operand if isinstance(self.operand, str) else ""


@dataclass(frozen=True, eq=False)
class Filter:
    """Weights, bias and geometry of a convolution.

    Attributes:
        weights: [out, in, height, width]; [channels, 1, height, width] for a depthwise convolution.
        bias: [out].
        geometry: six numbers in the order of the blob: strides, dilations, pads at the top and left.
    """

    weights: np.ndarray
    bias: np.ndarray
    geometry: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Tell whether each output pixel depends on the same input pixel only."""
        strides, pads = self.geometry[:2], self.geometry[4:]
        return self.weights.shape[2:] == (1, 1) and set(strides) == {1} and set(pads) == {0}


@dataclass(frozen=True, eq=False)
class StepPart:
    """A convolution (None for other work) and its post-ops."""

    window: Filter | None
    post_ops: tuple[BlockedPostOp, ...] = ()


@dataclass(frozen=True, eq=False)
class BlockedStep:
    """One step of the program.

    Attributes:
        op: kind of the step.
        input: name of the input.
        output: name of the result.
        parts: one part; two for `Op.EXPAND`.
        mean: name of a second result, the mean of the output per channel; "" for none.
        scale: name of a factor per channel of the input; "" for none.
    """

    op: Op
    input: str
    output: str
    parts: tuple[StepPart, ...]
    mean: str = ""
    scale: str = ""

    @property
    def reads(self) -> list[str]:
        """Names of all operands, repeated where an operand occurs twice."""
        operands = [post_op.reads for part in self.parts for post_op in part.post_ops]
        return [name for name in (self.input, self.scale, *operands) if name]


def fused(steps: Sequence[BlockedStep], outputs: Sequence[str]) -> list[BlockedStep]:
    """Fold scales into products, means into depthwise convolutions, and expansions into these."""
    remaining = list(steps)
    for fold in (_fold_scale, _fold_mean, _fold_expansion):
        for step in list(remaining):
            fold(remaining, step, frozenset(outputs))
    return remaining


def _only_reader(
    steps: Sequence[BlockedStep], name: str, outputs: frozenset[str]
) -> BlockedStep | None:
    """Return the only reader of `name` where `name` is its input; None otherwise."""
    readers = [step for step in steps for read in step.reads if read == name]
    if name in outputs or len(readers) != 1 or readers[0].input != name:
        return None
    return readers[0]


def _fold_scale(steps: list[BlockedStep], step: BlockedStep, outputs: frozenset[str]) -> None:
    post_ops = step.parts[0].post_ops
    if step.op != Op.ELEMENTWISE or len(post_ops) != 1 or not post_ops[0].reads:
        return
    reader = _only_reader(steps, step.output, outputs)
    if post_ops[0].kind != PostOpKind.MULTIPLY_CHANNEL or reader is None or reader.scale:
        return
    window = reader.parts[0].window
    if reader.op == Op.PRODUCT and window is not None and window.is_plain:
        folded = replace(reader, input=step.input, scale=post_ops[0].reads)
        steps[steps.index(reader)] = folded
        steps.remove(step)


def _fold_mean(steps: list[BlockedStep], step: BlockedStep, outputs: frozenset[str]) -> None:
    if step.op != Op.MEAN:
        return
    maker = next((step_before for step_before in steps if step_before.output == step.input), None)
    if maker is not None and maker.op == Op.DEPTHWISE and not maker.mean:
        steps[steps.index(maker)] = replace(maker, mean=step.output)
        steps.remove(step)


def _fold_expansion(steps: list[BlockedStep], step: BlockedStep, outputs: frozenset[str]) -> None:
    window = step.parts[0].window
    if step.op != Op.PRODUCT or step.scale or window is None or not window.is_plain:
        return
    if any(post_op.reads for post_op in step.parts[0].post_ops):
        return
    reader = _only_reader(steps, step.output, outputs)
    if reader is not None and reader.op == Op.DEPTHWISE:
        parts = (step.parts[0], reader.parts[0])
        steps[steps.index(reader)] = replace(reader, op=Op.EXPAND, input=step.input, parts=parts)
        steps.remove(step)


@dataclass
class BlockedProgramBuilder:
    """Numbers values and packs tensors.

    Attributes:
        shapes: [batch, channels, height, width] by value.
        rows: values with channels innermost where they are arguments.
    """

    shapes: Mapping[str, Shape]
    rows: Collection[str] = ()
    _numbers: dict[str, int] = field(default_factory=dict)
    _parameters: list[float] = field(default_factory=list)
    _tensors: list[np.ndarray] = field(default_factory=list)

    def blob(
        self,
        steps: Sequence[BlockedStep],
        inputs: Sequence[str],
        outputs: Sequence[str],
        header: Header,
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

    def _step(self, step: BlockedStep) -> list[int]:
        values = (step.input, step.output, step.mean, step.scale)
        integers = [int(step.op), *map(self._number, values)]
        for part in step.parts:
            if part.window is not None:
                integers += self._window(part.window)
            integers.append(len(part.post_ops))
            for post_op in part.post_ops:
                integers += self._post(post_op)
        return integers

    def _window(self, window: Filter) -> list[int]:
        packed = np.ascontiguousarray(by_panels(window.weights).swapaxes(1, 2))
        size = window.weights.shape[2:]
        return [self._tensor(packed), self._tensor(_padded(window.bias)), *size, *window.geometry]

    def _post(self, post_op: BlockedPostOp) -> list[int]:
        if isinstance(post_op.operand, Activation):
            self._parameters += [post_op.operand.a, post_op.operand.b]
            return [int(post_op.kind), int(post_op.operand.kind), len(self._parameters) - 2]
        if isinstance(post_op.operand, str):
            return [int(post_op.kind), self._number(post_op.operand), 0]
        return [int(post_op.kind), -1 - self._tensor(_padded(post_op.operand)), 0]

    def _tensor(self, array: np.ndarray) -> int:
        self._tensors.append(array)
        return len(self._tensors)


def _padded(numbers: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-numbers.size // PANEL) * PANEL, np.float32)
    padded[: numbers.size] = numbers
    return padded
