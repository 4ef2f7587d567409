"""From the drafts of oneDNN's planner to steps of the blocked kernel.

Which nodes follow which in one step is the same question for both, so it is answered once
(`onednn/fuse.py`). What a draft asks for beyond dense and depthwise convolutions, means over all
pixels and elementwise work is refused with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np

from collage.backends.common.native_kernels import Activation, Kind
from collage.backends.cpu.blocked.program import Op, Part, PostKind, Shape, Step, Window
from collage.backends.cpu.blocked.program import Post as BlockedPost
from collage.backends.cpu.onednn.program import Draft, Post, Source
from collage.errors import BackendError

POOLINGS = ("pooling_avg_exclude_padding", "pooling_avg_include_padding")
NO_SIDES = (1, 1, 1, 1, 0, 0)

ACTIVATIONS: dict[str, Callable[[float, float], Activation]] = {
    "relu": lambda a, b: Activation(Kind.LEAKY_RELU, a) if a else Activation(Kind.CLAMP, 0, np.inf),
    "clip": lambda a, b: Activation(Kind.CLAMP, a, b),
    "logistic": lambda a, b: Activation(Kind.SIGMOID),
    "hardsigmoid": lambda a, b: Activation(Kind.HARD_SIGMOID, a, b),
    "hardswish": lambda a, b: Activation(Kind.HARD_SWISH, a, b),
    "linear": lambda a, b: Activation(Kind.LINEAR, a, b),
}
"""oneDNN's names, with their two parameters. `swish` is below: only its plain form is SiLU."""


@dataclass
class Lowering:
    """Collects the steps of one region and the shapes of its values."""

    shapes: dict[str, Shape] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    def declare(self, name: str, shape: Shape) -> None:
        """Tell the shape of a value. Raises BackendError when it has not two to four dimensions."""
        self.shapes[name] = blocked_shape(shape)
        if len(shape) < 4:
            self.rows.add(name)

    def add(self, draft: Draft) -> None:
        """Append the draft's step. Raises BackendError with the reason when there is none."""
        self.declare(draft.result, draft.shape)
        source = draft.sources[0]
        self._check(source)
        match draft.op:
            case "convolution":
                op, window = _convolution(draft, source.shape)
                posts = [self._post(post, draft.shape) for post in draft.posts]
                self._append(op, draft, Part(window, tuple(posts)))
            case "matmul":
                window = _matrix(draft)
                posts = [self._post(post, draft.shape) for post in draft.posts]
                self._append(Op.PRODUCT, draft, Part(window, tuple(posts)))
            case "pooling" if _is_mean(draft):
                self._mean(draft)
            case "eltwise" | "binary":
                first = _first_post(draft)
                posts = [self._post(post, draft.shape) for post in (first, *draft.posts)]
                if source.shape != draft.shape:
                    raise BackendError("an operand is broadcast")
                self._append(Op.ELEMENTWISE, draft, Part(None, tuple(posts)))
            case _:
                raise BackendError(f"{draft.op} is no product, mean, or elementwise work")

    def _append(self, op: Op, draft: Draft, part: Part) -> None:
        self.steps.append(Step(op, draft.sources[0].name, draft.result, (part,)))

    def _mean(self, draft: Draft) -> None:
        if not draft.posts:
            self._append(Op.MEAN, draft, Part(None))
            return
        posts = tuple(self._post(post, draft.shape) for post in draft.posts)
        mean = f"{draft.result}/mean"
        self.shapes[mean] = draft.shape
        self.steps.append(Step(Op.MEAN, draft.sources[0].name, mean, (Part(None),)))
        self.steps.append(Step(Op.ELEMENTWISE, mean, draft.result, (Part(None, posts),)))

    def _check(self, source: Source) -> None:
        if source.array is not None:
            raise BackendError("the first operand is a constant")
        if self.shapes.get(source.name) != blocked_shape(source.shape):
            raise BackendError(f"{source.name!r} is seen with another shape")

    def _post(self, post: Post, shape: Shape) -> BlockedPost:
        if post.operand is None:
            return BlockedPost(PostKind.FUNCTION, _activation(post))
        if post.algorithm not in ("add", "mul"):
            raise BackendError(f"{post.algorithm} of two values")
        adds, operand = post.algorithm == "add", post.operand
        channel = PostKind.ADD_CHANNEL if adds else PostKind.MULTIPLY_CHANNEL
        if operand.array is not None:
            return BlockedPost(channel, _per_channel(operand, shape))
        self._check(operand)
        if operand.shape == shape:
            return BlockedPost(
                PostKind.ADD_VALUE if adds else PostKind.MULTIPLY_VALUE, operand.name
            )
        if len(shape) == 4 and operand.shape == (*shape[:2], 1, 1):
            return BlockedPost(channel, operand.name)
        raise BackendError(f"an operand of shape {list(operand.shape)} is broadcast")


def _first_post(draft: Draft) -> Post:
    """What an element-wise step does to its first operand."""
    algorithm = str(draft.attributes["algorithm"])
    if draft.op == "binary":
        return Post(algorithm, operand=draft.sources[1])
    alpha, beta = (float(draft.attributes[key]) for key in ("alpha", "beta"))  # type: ignore[arg-type]
    return Post(algorithm, alpha, beta)


def _activation(post: Post) -> Activation:
    if post.algorithm == "swish" and post.alpha == 1.0:
        return Activation(Kind.SILU)
    if post.algorithm not in ACTIVATIONS:
        raise BackendError(f"{post.algorithm} cannot be done while a result is stored")
    return ACTIVATIONS[post.algorithm](post.alpha, post.beta)


def blocked_shape(shape: Shape) -> Shape:
    """[batch, channels, height, width]; the last of two or three dimensions are the channels.

    >>> blocked_shape((2, 128, 768))
    (1, 768, 256, 1)
    """
    if len(shape) not in (2, 3, 4):
        raise BackendError(f"a value has {len(shape)} dimensions, not 2 to 4")
    return shape if len(shape) == 4 else (1, shape[-1], prod(shape[:-1]), 1)


def _per_channel(operand: Source, shape: Shape) -> np.ndarray:
    array = np.asarray(operand.array, np.float32)
    axis = 1 if len(shape) == 4 else len(shape) - 1
    padded = (1,) * (len(shape) - array.ndim) + array.shape
    if array.size > 1 and padded != tuple(n if i == axis else 1 for i, n in enumerate(shape)):
        raise BackendError(f"a constant of shape {list(operand.shape)} is no number per channel")
    return np.broadcast_to(array.reshape(-1), shape[axis])


def _matrix(draft: Draft) -> Window:
    """A product with a constant matrix, as a 1x1 convolution of as many pixels as there are rows."""
    matrix = draft.sources[1].array
    if matrix is None or matrix.ndim != 2:
        raise BackendError("the right matrix is computed, not constant")
    bias = np.zeros(draft.shape[-1], np.float32)
    for source in draft.sources[2:]:
        bias = bias + _per_channel(source, draft.shape)
    return Window(matrix.T.reshape(*matrix.T.shape, 1, 1), bias, NO_SIDES)


def _is_mean(draft: Draft) -> bool:
    shape = draft.sources[0].shape
    pads = (*_integers(draft, "pads_begin"), *_integers(draft, "pads_end"))
    whole = len(shape) == 4 and _integers(draft, "kernel") == shape[2:]
    return whole and not any(pads) and draft.attributes["algorithm"] in POOLINGS


def _convolution(draft: Draft, shape: Shape) -> tuple[Op, Window]:
    weights = draft.sources[1].array
    assert weights is not None
    if len(shape) != 4 or len(draft.shape) != 4:
        raise BackendError("the convolution has not two spatial dimensions")
    bias = np.zeros(draft.shape[1], np.float32)
    for source in draft.sources[2:]:
        bias = bias + np.asarray(source.array, np.float32).reshape(-1)
    op = Op.PRODUCT
    if weights.ndim == 5:
        if weights.shape[:3] != (shape[1], 1, 1):
            raise BackendError(
                f"the convolution has {weights.shape[0]} groups, not one per channel"
            )
        op, weights = Op.DEPTHWISE, weights.reshape(shape[1], 1, *weights.shape[3:])
    strides, dilations, pads = (
        _integers(draft, key) for key in ("strides", "dilations", "pads_begin")
    )
    if min(pads) < 0:
        raise BackendError(f"the convolution's pads are {list(pads)}")
    sides = (*strides, *(one + 1 for one in dilations), *pads)
    return op, Window(weights, bias, sides)


def _integers(draft: Draft, key: str) -> tuple[int, ...]:
    return tuple(draft.attributes[key])  # type: ignore[arg-type]
