"""Lowerings for operators with a slow or inexact lowering in TVM, in forms vectorised by LLVM.

Layer normalisation is two passes over a cached row (TVM subtracts the squared mean from the mean square:
that cancels digits). Reductions along rows run in vectors (`lanes`). Pooling, depthwise windows, and all
dtypes but float32 use TVM's own lowering.
"""

from collections.abc import Callable, Sequence
from math import pi, prod, sqrt

from tvm import ir, relax, te, tirx

from collage.backends.common.tvm.exact import exact_legalizers
from collage.backends.common.tvm.keep_nan import (
    Legalizer,
    default_legalizer,
    keeps_nan_legalizers,
)
from collage.backends.cpu.tvm.lanes import ReductionKind, reduce_axes
from collage.backends.cpu.tvm.resize import linear_resize

Scalar = Callable[[tirx.Expr], tirx.Expr]
KEEP_NAN = keeps_nan_legalizers()
EXACT = exact_legalizers()


def legalizers(*, quantised: bool = False) -> dict[str, Legalizer]:
    """Return the lowerings for `relax.transform.LegalizeOps`.

    Args:
        quantised: whether the region rounds to small integers; default False.
    """
    table: dict[str, Legalizer] = {**KEEP_NAN, **EXACT}
    table |= {f"relax.{op}": _unary(op, form) for op, form in UNARY.items()}
    table |= {
        "relax.nn.softmax": _softmax,
        "relax.nn.layer_norm": _layer_norm,
        "relax.power": _power,
        "relax.nn.log_softmax": _log_softmax,
        "relax.max": _reduction(ReductionKind.MAX, "max"),
        "relax.sum": _reduction(ReductionKind.SUM, "sum"),
        "relax.mean": _reduction(ReductionKind.SUM, "mean"),
    }
    if quantised:
        table["relax.image.resize2d"] = linear_resize
    return table


def f32(value: float) -> tirx.Expr:
    return tirx.const(value, "float32")


def _gelu(x: tirx.Expr) -> tirx.Expr:
    return x * f32(0.5) * (f32(1.0) + tirx.erf(x * f32(sqrt(0.5))))


def _gelu_tanh(x: tirx.Expr) -> tirx.Expr:
    inner = f32(sqrt(2 / pi)) * (x + f32(0.044715) * x * x * x)
    return x * f32(0.5) * (f32(1.0) + tirx.tanh(inner))


UNARY: dict[str, Scalar] = {
    "exp": tirx.exp,
    "erf": tirx.erf,
    "tanh": tirx.tanh,
    "sigmoid": tirx.sigmoid,
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.silu": lambda x: x * tirx.sigmoid(x),
}


def _default(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return KEEP_NAN.get(call.op.name, default_legalizer)(builder, call)


def _is_float32(call: relax.Call) -> bool:
    return str(call.args[0].ty.dtype) == "float32"


def _unary(name: str, form: Scalar) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not _is_float32(call):
            return _default(builder, call)

        def compute(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *index: form(x(*index)), name=name.split(".")[-1])

        return builder.call_te(compute, call.args[0], primfunc_name_hint=name.split(".")[-1])

    return legalize


def _power(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    exponent = call.args[1]
    if not _is_float32(call) or not isinstance(exponent, ir.GenericConst):
        return _default(builder, call)
    values = exponent.value.numpy()
    forms: dict[float, Scalar] = {2.0: lambda x: x * x, 3.0: lambda x: x * x * x, 0.5: tirx.sqrt}
    if values.size != 1 or values.ndim > len(call.args[0].ty.shape.values):
        return _default(builder, call)
    form = forms.get(float(values.reshape(-1)[0]))
    return _default(builder, call) if form is None else _unary("power", form)(builder, call)


def _outside(index: Sequence[tirx.Expr], axes: Sequence[int]) -> list[tirx.Expr]:
    return [value for axis, value in enumerate(index) if axis not in axes]


def _normalised(axes: Sequence[int], rank: int) -> list[int]:
    return sorted(int(axis) % rank for axis in axes)


def _shape(x: te.Tensor) -> list[int]:
    return [int(size) for size in x.shape]


def _exponentials(x: te.Tensor, axes: list[int]) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Return the maximum over `axes`, exp(x - maximum), and its sum over `axes`."""
    top = reduce_axes(_shape(x), axes, lambda i: x(*i), kind=ReductionKind.MAX, name="softmax_max")
    powers = te.compute(
        x.shape, lambda *i: tirx.exp(x(*i) - top(*_outside(i, axes))), name="softmax_exp"
    )
    total = reduce_axes(
        _shape(x), axes, lambda i: powers(*i), kind=ReductionKind.SUM, name="softmax_sum"
    )
    return top, powers, total


def _softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not _is_float32(call):
        return _default(builder, call)
    axes = _normalised([call.attrs.axis], len(call.args[0].ty.shape.values))

    def compute(x: te.Tensor) -> te.Tensor:
        _, powers, total = _exponentials(x, axes)
        inverse = te.compute(total.shape, lambda *i: f32(1.0) / total(*i), name="softmax_inv")
        return te.compute(
            x.shape, lambda *i: powers(*i) * inverse(*_outside(i, axes)), name="softmax"
        )

    return builder.call_te(compute, call.args[0], primfunc_name_hint="softmax")


def _log_softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not _is_float32(call):
        return _default(builder, call)
    axes = _normalised([call.attrs.axis], len(call.args[0].ty.shape.values))

    def compute(x: te.Tensor) -> te.Tensor:
        top, _, total = _exponentials(x, axes)
        shift = te.compute(total.shape, lambda *i: top(*i) + tirx.log(total(*i)), name="shift")
        return te.compute(x.shape, lambda *i: x(*i) - shift(*_outside(i, axes)), name="log_softmax")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="log_softmax")


def _reduction(kind: ReductionKind, name: str) -> Legalizer:
    """Return the legalizer of a maximum, a sum or (under the name "mean") an average."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        rank = len(call.args[0].ty.shape.values)
        axes = _normalised(range(rank) if call.attrs.axis is None else call.attrs.axis, rank)
        if not _is_float32(call) or not axes:
            return _default(builder, call)

        def compute(x: te.Tensor) -> te.Tensor:
            result = reduce_axes(_shape(x), axes, lambda i: x(*i), kind=kind, name=name)
            count = f32(prod(int(x.shape[axis]) for axis in axes))
            if name == "mean":
                total = result
                result = te.compute(total.shape, lambda *i: total(*i) / count, name="mean_of")
            if not call.attrs.keepdims:
                return result
            shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
            return te.compute(shape, lambda *i: result(*_outside(i, axes)), name=f"{name}_kept")

        return builder.call_te(compute, call.args[0], primfunc_name_hint=name)

    return legalize


def _layer_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not _is_float32(call):
        return _default(builder, call)
    attrs = call.attrs
    rank = len(call.args[0].ty.shape.values)
    axes = _normalised(attrs.axes, rank)

    def compute(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        inverse = f32(1.0 / prod(int(x.shape[axis]) for axis in axes))
        total = reduce_axes(
            _shape(x), axes, lambda i: x(*i), kind=ReductionKind.SUM, name="norm_sum"
        )
        centred = te.compute(
            x.shape, lambda *i: x(*i) - total(*_outside(i, axes)) * inverse, name="norm_centred"
        )
        squares = reduce_axes(
            _shape(x),
            axes,
            lambda i: centred(*i) * centred(*i),
            kind=ReductionKind.SUM,
            name="norm_squares",
        )
        scale = te.compute(
            squares.shape,
            lambda *i: f32(1.0) / tirx.sqrt(squares(*i) * inverse + f32(float(attrs.epsilon))),
            name="norm_scale",
        )

        def result(*i: tirx.Expr) -> tirx.Expr:
            inner = [i[axis] for axis in axes]
            value = centred(*i) * scale(*_outside(i, axes))
            if attrs.scale:
                value = value * gamma(*inner)
            return value + beta(*inner) if attrs.center else value

        return te.compute(x.shape, result, name="layer_norm")

    return builder.call_te(compute, *call.args, primfunc_name_hint="layer_norm")
