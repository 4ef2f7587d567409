"""Parts of a tensor, and a tensor with a rim: what moves elements and computes nothing.

A part is a view: an offset and other strides, copied only where a reader needs it in one piece. A rim
is a concatenation with constants, one for each dimension that has one; padding that a convolution or
pooling could do itself is folded into it at import.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from collage.backends.cpu.onednn.program import Draft, Shape, Source
from collage.backends.cpu.onednn.view import NodeView
from collage.errors import BackendError


def piece(view: NodeView) -> list[Draft]:
    """Slice with constant bounds, forwards."""
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


def _part(view: NodeView, begin: Sequence[int], steps: Sequence[int], part: Shape) -> Draft:
    """A view of `part`; oneDNN wants as many whole steps as there are elements."""
    steps = [step if extent > 1 else 1 for step, extent in zip(steps, part, strict=True)]
    whole = view.shape(view.node.inputs[0])
    if any(s > 1 and s * p > w for s, p, w in zip(steps, part, whole, strict=True)):
        raise BackendError(f"{view.node.op} whose last step leads out of the tensor")
    return view.draft("slice", [view.source(0)], {"starts": begin, "steps": steps}, part)


def split(view: NodeView) -> list[Draft]:
    """Split: one piece per output."""
    shape = view.shape(view.node.inputs[0])
    axis = view.integer("axis", 0) % len(shape)
    drafts, start, ones = [], 0, (1,) * len(shape)
    for name in view.node.outputs:
        part = view.shape(name)
        begin = [start if one == axis else 0 for one in range(len(shape))]
        drafts.append(
            Draft("slice", (view.source(0),), part, name, part, {"starts": begin, "steps": ones})
        )
        start += part[axis]
    return drafts


def gathering(view: NodeView) -> list[Draft]:
    """Gather of constant places at one distance (one row, or one of Q, K and V): a slice."""
    shape = view.shape(view.node.inputs[0])
    axis = view.integer("axis", 0) % len(shape)
    places = view.constant_integers(1, "the indices")
    places = tuple(one + shape[axis] if one < 0 else one for one in places)
    step = places[1] - places[0] if len(places) > 1 else 1
    if step < 1 or not places or places != tuple(range(places[0], places[-1] + 1, step)):
        raise BackendError("Gather of places that do not ascend at one distance")
    begin = [places[0] if one == axis else 0 for one in range(len(shape))]
    steps = [step if one == axis else 1 for one in range(len(shape))]
    part = (*shape[:axis], len(places), *shape[axis + 1 :])
    return [_part(view, begin, steps, part)]


def padding(view: NodeView) -> list[Draft]:
    """Pad with a constant number; the rim may hold as many elements as the tensor, not more."""
    if view.opset < 11:
        raise BackendError(f"Pad of opset {view.opset}")
    mode = view.text("mode", "constant")
    number = view.scalar(2) if view.has(2) else 0.0
    if mode != "constant" or number is None:
        raise BackendError(f"Pad in mode {mode}, or with a number that is computed at run time")
    shape = view.shape(view.node.inputs[0])
    rims = _rims(view, shape)
    if any(min(rim) < 0 for rim in rims.values()):
        raise BackendError("Pad by less than nothing")
    if prod(view.result_shape) > 2 * prod(shape):
        raise BackendError("Pad by more than the tensor holds")
    if not rims:
        return [view.draft("reshape", [view.source(0)])]
    drafts, inner = [], view.source(0)
    for axis, rim in rims.items():
        sources = _framed(inner, axis, rim, number)
        extent = sum(source.shape[axis] for source in sources)
        whole = (*inner.shape[:axis], extent, *inner.shape[axis + 1 :])
        is_last = axis == max(rims)
        name = view.result if is_last else f"{view.result}, padded up to {axis}"
        drafts.append(Draft("concat", tuple(sources), whole, name, whole, {"axis": axis}))
        inner = Source(whole, name)
    return drafts


def _rims(view: NodeView, shape: Shape) -> dict[int, tuple[int, int]]:
    """What is added before and after, by dimension in ascending order."""
    pads = view.constant_integers(1, "the pads")
    axes = view.constant_integers(3, "the axes") if view.has(3) else tuple(range(len(shape)))
    ends = zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True)
    rims = {axis % len(shape): (before, after) for axis, before, after in ends if before or after}
    return dict(sorted(rims.items()))


def _framed(inner: Source, axis: int, rim: tuple[int, int], number: float) -> list[Source]:
    before, after = (
        [Source(shape, array=np.full(shape, number, np.float32))] if extent else []
        for extent in rim
        for shape in [(*inner.shape[:axis], extent, *inner.shape[axis + 1 :])]
    )
    return [*before, inner, *after]
