"""Slices and padding: primitives without arithmetic.

A slice is a view: an offset and other strides, copied only where a reader needs contiguous memory. Padding
is a concatenation with constants, one per padded dimension; padding before a convolution or pooling is
folded into it at import.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from collage.backends.common.primitives.node_view import NodeView
from collage.backends.common.primitives.primitive import Operand, RegionPrimitive, Shape
from collage.errors import BackendError


def slice_(view: NodeView) -> list[RegionPrimitive]:
    """Translate Slice with constant bounds and positive steps."""
    shape = view.shape(view.node.inputs[0])
    if view.opset < 10:
        raise BackendError(f"Slice of opset {view.opset}")
    starts = view.constant_integers(1, "the starts")
    axes = view.constant_integers(3, "the axes") if view.has(3) else tuple(range(len(starts)))
    steps = view.constant_integers(4, "the steps") if view.has(4) else (1,) * len(starts)
    if any(step < 1 for step in steps):
        raise BackendError("Slice with steps below 1")
    begin, stride = [0] * len(shape), [1] * len(shape)
    for axis, start, step in zip(axes, starts, steps, strict=True):
        extent = shape[axis]
        begin[axis] = min(max(start + extent if start < 0 else start, 0), extent)
        stride[axis] = step
    return [_part(view, begin, stride, view.result_shape)]


def _part(
    view: NodeView, begin: Sequence[int], steps: Sequence[int], part: Shape
) -> RegionPrimitive:
    """Return a view of extents `part`; oneDNN requires as many whole steps as elements."""
    steps = [step if extent > 1 else 1 for step, extent in zip(steps, part, strict=True)]
    shape = view.shape(view.node.inputs[0])
    if any(s > 1 and s * p > w for s, p, w in zip(steps, part, shape, strict=True)):
        raise BackendError(f"{view.node.op} whose last step leads out of the tensor")
    return view.primitive("slice", [view.source(0)], {"starts": begin, "steps": steps}, part)


def split(view: NodeView) -> list[RegionPrimitive]:
    """Translate Split: one slice per output."""
    shape = view.shape(view.node.inputs[0])
    axis = view.attributes.integer("axis", 0) % len(shape)
    primitives, start, unit_steps = [], 0, (1,) * len(shape)
    for name in view.node.outputs:
        part = view.shape(name)
        begin = [start if dimension == axis else 0 for dimension in range(len(shape))]
        primitives.append(
            RegionPrimitive(
                "slice",
                (view.source(0),),
                part,
                name,
                result_shape=part,
                attributes={"starts": begin, "steps": unit_steps},
            )
        )
        start += part[axis]
    return primitives


def gather(view: NodeView) -> list[RegionPrimitive]:
    """Translate Gather of constant, equidistant indices (one row, or one of Q, K and V): a slice."""
    shape = view.shape(view.node.inputs[0])
    axis = view.attributes.integer("axis", 0) % len(shape)
    positions = view.constant_integers(1, "the indices")
    positions = tuple(index + shape[axis] if index < 0 else index for index in positions)
    step = positions[1] - positions[0] if len(positions) > 1 else 1
    if (
        step < 1
        or not positions
        or positions != tuple(range(positions[0], positions[-1] + 1, step))
    ):
        raise BackendError("Gather of places that do not ascend at one distance")
    begin = [positions[0] if dimension == axis else 0 for dimension in range(len(shape))]
    steps = [step if dimension == axis else 1 for dimension in range(len(shape))]
    part = (*shape[:axis], len(positions), *shape[axis + 1 :])
    return [_part(view, begin, steps, part)]


def pad(view: NodeView) -> list[RegionPrimitive]:
    """Translate Pad with a constant number; the padding has at most as many elements as the tensor."""
    if view.opset < 11:
        raise BackendError(f"Pad of opset {view.opset}")
    mode = view.attributes.text("mode", "constant")
    number = view.scalar(2) if view.has(2) else 0.0
    if mode != "constant" or number is None:
        raise BackendError(f"Pad in mode {mode}, or with a number that is computed at run time")
    shape = view.shape(view.node.inputs[0])
    widths = _pad_widths(view, shape)
    if any(min(width) < 0 for width in widths.values()):
        raise BackendError("Pad by less than nothing")
    if prod(view.result_shape) > 2 * prod(shape):
        raise BackendError("Pad by more than the tensor holds")
    if not widths:
        return [view.primitive("reshape", [view.source(0)])]
    primitives, inner = [], view.source(0)
    for axis, width in widths.items():
        sources = _padded(inner, axis, width, number)
        extent = sum(source.shape[axis] for source in sources)
        padded = (*inner.shape[:axis], extent, *inner.shape[axis + 1 :])
        is_last = axis == max(widths)
        name = view.result if is_last else f"{view.result}, padded up to {axis}"
        primitives.append(
            RegionPrimitive(
                "concat",
                tuple(sources),
                padded,
                name,
                result_shape=padded,
                attributes={"axis": axis},
            )
        )
        inner = Operand(padded, name)
    return primitives


def _pad_widths(view: NodeView, shape: Shape) -> dict[int, tuple[int, int]]:
    """Return the elements before and after, by dimension in ascending order."""
    pads = view.constant_integers(1, "the pads")
    axes = view.constant_integers(3, "the axes") if view.has(3) else tuple(range(len(shape)))
    ends = zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True)
    widths = {axis % len(shape): (before, after) for axis, before, after in ends if before or after}
    return dict(sorted(widths.items()))


def _padded(inner: Operand, axis: int, width: tuple[int, int], number: float) -> list[Operand]:
    before, after = (
        [Operand(shape, array=np.full(shape, number, np.float32))] if extent else []
        for extent in width
        for shape in [(*inner.shape[:axis], extent, *inner.shape[axis + 1 :])]
    )
    return [*before, inner, *after]
