"""Reductions along rows as tensor expressions over vectors.

LLVM's vectorised sums have a scalar remainder and a slow horizontal step in each row: a row of 49 takes eight
times the necessary time. Here a stage first reduces each row to `LANES` partial results, with the lane as its
innermost dimension; a balanced tree then reduces them to one. The remainder of a row is read as one more
vector; it ends with the row and overlaps the previous vector. A maximum may include an element twice; a sum
treats the repeated elements as zero.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import reduce
from math import inf
from typing import Any

from tvm import te, tirx

from collage.backends.common.tvm.keep_nan import maximum, maximum_reducer

Index = list[tirx.Expr]
Element = Callable[[Index], tirx.Expr]
LANES = 16
WIDE_LANES = 32
"""Partial results of long rows: two vectors, for two independent chains of additions."""
LONG = 256


class ReductionKind(Enum):
    """ReductionKind of a reduction."""

    SUM = "sum"
    MAX = "max"


def reduce_axes(
    shape: Sequence[int], axes: Sequence[int], element: Element, *, kind: ReductionKind, name: str
) -> te.Tensor:
    """Reduce `element` over `axes`; the remaining dimensions are the result's.

    Args:
        shape: extents of all dimensions.
        axes: reduced dimensions, sorted, not negative.
        element: function from a full index to the reduced element.
        kind: sum or maximum.
        name: name of the result's stage.
    """
    length, outer_axes = shape[-1], axes[:-1]
    remainder = length % LANES
    in_rows = axes[-1] == len(shape) - 1 and length >= LANES
    if not in_rows or (remainder and outer_axes):
        return _plain(shape, axes, element, kind=kind, name=name)
    lanes = WIDE_LANES if length >= LONG and length % WIDE_LANES == 0 else LANES
    partial = _partial(shape, axes, element, kind=kind, lanes=lanes, name=name)
    if remainder and kind is ReductionKind.SUM:
        partial = _with_remainder(shape, axes, element, partial, name=name)
    return te.compute(partial.shape[:-1], lambda *i: _tree(partial, i, lanes, kind), name=name)


def _plain(
    shape: Sequence[int], axes: Sequence[int], element: Element, *, kind: ReductionKind, name: str
) -> te.Tensor:
    def value(*index: tirx.Expr) -> tirx.Expr:
        reduced = {axis: te.reduce_axis((0, shape[axis]), name=f"k{axis}") for axis in axes}
        combine = te.sum if kind is ReductionKind.SUM else _any_order_maximum()
        return combine(element(_full(shape, index, reduced)), axis=list(reduced.values()))

    return te.compute([n for axis, n in enumerate(shape) if axis not in axes], value, name=name)


def _full(shape: Sequence[int], index: Sequence[tirx.Expr], at: dict[int, tirx.Expr]) -> Index:
    positions = iter(index)
    return [at[axis] if axis in at else next(positions) for axis in range(len(shape))]


def _partial(
    shape: Sequence[int],
    axes: Sequence[int],
    element: Element,
    *,
    kind: ReductionKind,
    lanes: int,
    name: str,
) -> te.Tensor:
    length, last = shape[-1], len(shape) - 1
    overlapping = kind is ReductionKind.MAX and length % lanes != 0

    def value(*index: tirx.Expr) -> tirx.Expr:
        at = {axis: te.reduce_axis((0, shape[axis]), name=f"k{axis}") for axis in axes[:-1]}
        step = te.reduce_axis((0, length // lanes + overlapping), name="step")
        over = [*at.values(), step]
        start = step * lanes
        if overlapping:
            start = tirx.min(start, tirx.const(length - lanes, str(start.ty.dtype)))
        at[last] = start + index[-1]
        combine = te.sum if kind is ReductionKind.SUM else maximum_reducer()
        return combine(element(_full(shape, index[:-1], at)), axis=over)

    outer = [n for axis, n in enumerate(shape) if axis not in axes]
    return te.compute([*outer, lanes], value, name=f"{name}_lanes")


def _with_remainder(
    shape: Sequence[int],
    axes: Sequence[int],
    element: Element,
    partial: te.Tensor,
    *,
    name: str,
) -> te.Tensor:
    length, last = shape[-1], len(shape) - 1

    def value(*index: tirx.Expr) -> tirx.Expr:
        tail = element(_full(shape, index[:-1], {last: length - LANES + index[-1]}))
        fresh = index[-1] >= LANES - length % LANES
        return partial(*index) + tirx.Select(fresh, tail, tirx.const(0.0, "float32"))

    return te.compute(partial.shape, value, name=f"{name}_rest")


def _tree(
    partial: te.Tensor, index: Sequence[tirx.Expr], lanes: int, kind: ReductionKind
) -> tirx.Expr:
    values = [partial(*index, lane) for lane in range(lanes)]
    combine = maximum if kind is ReductionKind.MAX else lambda a, b: a + b
    while len(values) > 1:
        half = len(values) // 2
        values = [combine(values[n], values[n + half]) for n in range(half)]
    return reduce(combine, values)


def _any_order_maximum() -> Callable[..., tirx.Expr]:
    """Return a reorderable maximum, for loops vectorised by LLVM."""

    def larger(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        return tirx.call_llvm_pure_intrin("float32", "llvm.maximum", a, b)

    reducer: Callable[..., Any] = te.comm_reducer(
        larger, lambda dtype: tirx.const(-inf, dtype), name="largest"
    )
    return reducer
