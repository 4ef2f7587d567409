"""Linear interpolation of an image with the bits of ONNX Runtime, for regions that round to small integers.

Sums of small integers with weights such as 0.25 lie on ties, and the last bit decides which step a tie
is rounded to. The weights are computed as ONNX Runtime computes them (a division by the factor, where
TVM multiplies by its inverse), the four products are summed in its order, and each product is rounded
before the sum: a fence keeps LLVM from contracting both into one instruction. LLVM does not vectorise a
loop with a fence (four times the latency), so regions without a rounding have TVM's own form. An
interpolation in a kernel of its own, ahead of the rounding in another one, has TVM's form too: its ties
may fall to the other side.

The factor is the quotient of the sizes. A model's own factor may differ where the size was rounded down; such
a kernel has other numbers and is refused by the check of every kernel.
"""

from collections.abc import Callable

import numpy as np
from tvm import relax, te, tirx

from collage.backends.common.tvm.keep_nan import default_legalizer

SourcePosition = Callable[[tirx.Expr, int, int], tirx.Expr]
"""Position in the source as a float, of a position in the result (a float) and both sizes."""


def linear_resize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower `relax.image.resize2d`; modes other than linear, and other types, are left to TVM."""
    source = call.args[0].ty
    position = POSITIONS.get(str(call.attrs.coordinate_transformation_mode))
    is_image = call.attrs.layout == "NCHW" and str(source.dtype) == str(call.ty.dtype) == "float32"
    if position is None or not is_image or call.attrs.method != "linear":
        return default_legalizer(builder, call)
    sizes = [int(size) for size in source.shape.values]
    shape = [int(size) for size in call.ty.shape.values]

    def compute(image: te.Tensor) -> te.Tensor:
        def value(n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
            rows = _neighbours(position, y, shape[2], sizes[2])
            columns = _neighbours(position, x, shape[3], sizes[3])
            products = [
                _rounded(column_weight * row_weight * image(n, c, row, column))
                for row, row_weight in rows
                for column, column_weight in columns
            ]
            return products[0] + products[1] + products[2] + products[3]

        return te.compute(shape, value, name="resize")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="resize2d")


def _neighbours(
    position: SourcePosition, index: tirx.Expr, size: int, source_size: int
) -> tuple[tuple[tirx.Expr, tirx.Expr], tuple[tirx.Expr, tirx.Expr]]:
    """Return the two elements of the source beside a position, each with its weight."""
    place = tirx.Cast("float32", index)
    if size != source_size:
        place = position(place, size, source_size)
    last = source_size - 1
    place = tirx.max(_f32(0.0), tirx.min(place, _f32(last)))
    before = tirx.min(tirx.Cast("int64", place), tirx.const(last, "int64"))
    after = tirx.min(before + 1, tirx.const(last, "int64"))
    is_last = before.equal(after)

    def weight(other: tirx.Expr) -> tirx.Expr:
        distance = tirx.abs(place - tirx.Cast("float32", other))
        return tirx.Select(is_last, _f32(0.5), distance)

    return (before, weight(after)), (after, weight(before))


def _rounded(product: tirx.Expr) -> tirx.Expr:
    return tirx.call_llvm_pure_intrin("float32", "llvm.arithmetic.fence", product)


def _f32(value: float) -> tirx.Expr:
    return tirx.const(float(value), "float32")


def _factor(size: int, source_size: int) -> tirx.Expr:
    return _f32(float(np.float32(size) / np.float32(source_size)))


def _half_pixel(place: tirx.Expr, size: int, source_size: int) -> tirx.Expr:
    return (place + _f32(0.5)) / _factor(size, source_size) - _f32(0.5)


def _pytorch_half_pixel(place: tirx.Expr, size: int, source_size: int) -> tirx.Expr:
    return _half_pixel(place, size, source_size) if size > 1 else _f32(0.0)


def _asymmetric(place: tirx.Expr, size: int, source_size: int) -> tirx.Expr:
    return place / _factor(size, source_size)


def _align_corners(place: tirx.Expr, size: int, source_size: int) -> tirx.Expr:
    return place * _f32(source_size - 1) / _f32(size - 1) if size > 1 else _f32(0.0)


POSITIONS: dict[str, SourcePosition] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "asymmetric": _asymmetric,
    "align_corners": _align_corners,
}
"""Source positions by ONNX's name of the coordinate transformation."""
