"""From primitives to steps of the blocked kernel.

Fusion is common to both users of primitives (`common.primitives.fusion`). The kernel computes dense and
depthwise convolutions, means over all pixels and elementwise work; any other primitive is refused with the
reason.
"""

from dataclasses import dataclass, field
from math import prod

import numpy as np

from collage.backends.common.native_kernels import native_activation
from collage.backends.common.primitives.primitive import Operand, PostOp, RegionPrimitive
from collage.backends.cpu.blocked.program import (
    BlockedPostOp,
    BlockedStep,
    Filter,
    Op,
    PostOpKind,
    Shape,
    StepPart,
)
from collage.errors import BackendError

MEAN_ALGORITHMS = ("pooling_avg_exclude_padding", "pooling_avg_include_padding")
UNIT_GEOMETRY = (1, 1, 1, 1, 0, 0)


@dataclass
class Lowering:
    """Collects the steps of one region and the shapes of its values.

    Attributes:
        shapes: [batch, channels, height, width] by value.
        rows: values with channels innermost where they are arguments.
        steps: the steps, in execution order.
    """

    shapes: dict[str, Shape] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)
    steps: list[BlockedStep] = field(default_factory=list)

    def declare(self, name: str, shape: Shape) -> None:
        """Note the shape of a value. Raises BackendError unless it has two to four dimensions."""
        self.shapes[name] = blocked_shape(shape)
        if len(shape) < 4:
            self.rows.add(name)

    def add(self, primitive: RegionPrimitive) -> None:
        """Append the primitive's step. Raises BackendError where the kernel has none."""
        self.declare(primitive.result, primitive.shape)
        source = primitive.sources[0]
        self._check(source)
        match primitive.op:
            case "convolution":
                op, window = _convolution(primitive, source.shape)
                post_ops = [self._post(post_op, primitive.shape) for post_op in primitive.post_ops]
                self._append(op, primitive, StepPart(window, tuple(post_ops)))
            case "matmul":
                window = _matrix(primitive)
                post_ops = [self._post(post_op, primitive.shape) for post_op in primitive.post_ops]
                self._append(Op.PRODUCT, primitive, StepPart(window, tuple(post_ops)))
            case "pooling" if _is_mean(primitive):
                self._mean(primitive)
            case "eltwise" | "binary":
                first = _first_post(primitive)
                post_ops = [
                    self._post(post_op, primitive.shape) for post_op in (first, *primitive.post_ops)
                ]
                if source.shape != primitive.shape:
                    raise BackendError("an operand is broadcast")
                self._append(Op.ELEMENTWISE, primitive, StepPart(None, tuple(post_ops)))
            case _:
                raise BackendError(f"{primitive.op} is no product, mean, or elementwise work")

    def _append(self, op: Op, primitive: RegionPrimitive, part: StepPart) -> None:
        self.steps.append(BlockedStep(op, primitive.sources[0].name, primitive.result, (part,)))

    def _mean(self, primitive: RegionPrimitive) -> None:
        if not primitive.post_ops:
            self._append(Op.MEAN, primitive, StepPart(None))
            return
        post_ops = tuple(self._post(post_op, primitive.shape) for post_op in primitive.post_ops)
        mean = f"{primitive.result}/mean"
        self.shapes[mean] = primitive.shape
        self.steps.append(BlockedStep(Op.MEAN, primitive.sources[0].name, mean, (StepPart(None),)))
        self.steps.append(
            BlockedStep(Op.ELEMENTWISE, mean, primitive.result, (StepPart(None, post_ops),))
        )

    def _check(self, source: Operand) -> None:
        if source.array is not None:
            raise BackendError("the first operand is a constant")
        if self.shapes.get(source.name) != blocked_shape(source.shape):
            raise BackendError(f"{source.name!r} is seen with another shape")

    def _post(self, post_op: PostOp, shape: Shape) -> BlockedPostOp:
        if post_op.operand is None:
            return BlockedPostOp(PostOpKind.FUNCTION, native_activation(post_op))
        if post_op.algorithm not in ("add", "mul"):
            raise BackendError(f"{post_op.algorithm} of two values")
        adds, operand = post_op.algorithm == "add", post_op.operand
        channel = PostOpKind.ADD_CHANNEL if adds else PostOpKind.MULTIPLY_CHANNEL
        if operand.array is not None:
            return BlockedPostOp(channel, _per_channel(operand, shape))
        self._check(operand)
        if operand.shape == shape:
            return BlockedPostOp(
                PostOpKind.ADD_VALUE if adds else PostOpKind.MULTIPLY_VALUE, operand.name
            )
        if len(shape) == 4 and operand.shape == (*shape[:2], 1, 1):
            return BlockedPostOp(channel, operand.name)
        raise BackendError(f"an operand of shape {list(operand.shape)} is broadcast")


def _first_post(primitive: RegionPrimitive) -> PostOp:
    """Return the operation of an elementwise primitive on its first operand."""
    algorithm = str(primitive.attributes["algorithm"])
    if primitive.op == "binary":
        return PostOp(algorithm, operand=primitive.sources[1])
    alpha, beta = (float(primitive.attributes[key]) for key in ("alpha", "beta"))  # type: ignore[arg-type]
    return PostOp(algorithm, alpha, beta)


def blocked_shape(shape: Shape) -> Shape:
    """Return [batch, channels, height, width]; the last of two or three dimensions are the channels.

    >>> blocked_shape((2, 128, 768))
    (1, 768, 256, 1)
    """
    if len(shape) not in (2, 3, 4):
        raise BackendError(f"a value has {len(shape)} dimensions, not 2 to 4")
    return shape if len(shape) == 4 else (1, shape[-1], prod(shape[:-1]), 1)


def _per_channel(operand: Operand, shape: Shape) -> np.ndarray:
    array = np.asarray(operand.array, np.float32)
    axis = 1 if len(shape) == 4 else len(shape) - 1
    padded = (1,) * (len(shape) - array.ndim) + array.shape
    if array.size > 1 and padded != tuple(n if i == axis else 1 for i, n in enumerate(shape)):
        raise BackendError(f"a constant of shape {list(operand.shape)} is no number per channel")
    return np.broadcast_to(array.reshape(-1), shape[axis])


def _matrix(primitive: RegionPrimitive) -> Filter:
    """Return a product with a constant matrix as a 1x1 convolution; its pixels are the rows."""
    matrix = primitive.sources[1].array
    if matrix is None or matrix.ndim != 2:
        raise BackendError("the right matrix is computed, not constant")
    bias = np.zeros(primitive.shape[-1], np.float32)
    for source in primitive.sources[2:]:
        bias = bias + _per_channel(source, primitive.shape)
    return Filter(matrix.T.reshape(*matrix.T.shape, 1, 1), bias, UNIT_GEOMETRY)


def _is_mean(primitive: RegionPrimitive) -> bool:
    shape = primitive.sources[0].shape
    pads = (*_integers(primitive, "pads_begin"), *_integers(primitive, "pads_end"))
    covers_pixels = len(shape) == 4 and _integers(primitive, "kernel") == shape[2:]
    return covers_pixels and not any(pads) and primitive.attributes["algorithm"] in MEAN_ALGORITHMS


def _convolution(primitive: RegionPrimitive, shape: Shape) -> tuple[Op, Filter]:
    weights = primitive.sources[1].array
    assert weights is not None
    if len(shape) != 4 or len(primitive.shape) != 4:
        raise BackendError("the convolution has not two spatial dimensions")
    bias = np.zeros(primitive.shape[1], np.float32)
    for source in primitive.sources[2:]:
        bias = bias + np.asarray(source.array, np.float32).reshape(-1)
    op = Op.PRODUCT
    if weights.ndim == 5:
        if weights.shape[:3] != (shape[1], 1, 1):
            raise BackendError(
                f"the convolution has {weights.shape[0]} groups, not one per channel"
            )
        op, weights = Op.DEPTHWISE, weights.reshape(shape[1], 1, *weights.shape[3:])
    strides, dilations, pads = (
        _integers(primitive, key) for key in ("strides", "dilations", "pads_begin")
    )
    if min(pads) < 0:
        raise BackendError(f"the convolution's pads are {list(pads)}")
    geometry = (*strides, *(dilation + 1 for dilation in dilations), *pads)
    return op, Filter(weights, bias, geometry)


def _integers(primitive: RegionPrimitive, key: str) -> tuple[int, ...]:
    return tuple(primitive.attributes[key])  # type: ignore[arg-type]
