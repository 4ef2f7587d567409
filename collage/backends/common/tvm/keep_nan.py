"""Maximum and minimum that keep NaN, and the lowerings of Relax operators that are made of them.

TVM's `max(a, b)` becomes `a > b ? a : b`: where `a` is NaN, the result is `b`. TVM also moves constants to
the right, so `max(x, 0)` turns every NaN into 0. Here they are intrinsics (`intrinsics`). With a constant on
one side NaN costs nothing: the constant is the first operand of one machine instruction. Otherwise LLVM's
`maximum` tests for NaN.

Selections (`x != x ? ...`) are no alternative: they repeat their operands, and inlined stages then double the
expression with every Relu.

The neutral element of a maximum is -inf, not the smallest number: a row of -inf has the maximum -inf.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

from tvm import ir, relax, te, tirx, topi

from collage.backends.common.tvm.intrinsics import Form, register_intrinsic

Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
Binary = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
FLOATS = ("float", "bfloat")


def bound(value: tirx.Expr, body: Form) -> tirx.Expr:
    """Evaluate `value` once and use it in `body`."""
    name = tirx.Var("t", str(value.ty.dtype))
    return tirx.Let(name, value, body(name))


def maximum(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """Return the larger value, NaN where either is NaN."""
    return tirx.call_intrin(str(a.ty.dtype), register_intrinsic("maximum", _lowered_maximum), a, b)


def minimum(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """Return the smaller value, NaN where either is NaN."""
    return tirx.call_intrin(str(a.ty.dtype), register_intrinsic("minimum", _lowered_minimum), a, b)


def _lowered_maximum(call: tirx.Expr) -> tirx.Expr:
    return _lowered(call, at_least, "llvm.maximum")


def _lowered_minimum(call: tirx.Expr) -> tirx.Expr:
    return _lowered(call, at_most, "llvm.minimum")


def _lowered(call: tirx.Expr, bounded: Binary, name: str) -> tirx.Expr:
    a, b = call.args
    if _is_number(a):
        return bounded(a, b)
    if _is_number(b):
        return bounded(b, a)
    return tirx.call_llvm_pure_intrin(str(call.ty.dtype), name, a, b)


def _is_number(x: tirx.Expr) -> bool:
    """Tell whether `x` is a constant that is no NaN, or a vector of it."""
    if isinstance(x, tirx.Broadcast):
        x = x.value
    return isinstance(x, tirx.FloatImm) and x.value == x.value


def at_least(low: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
    """Return the larger of a constant that is no NaN and `x`; a NaN in `x` stays. For lowered code.

    The order of the operands matters: `max(a, b)` is `a > b ? a : b`.
    """
    return tirx.Max(low, x)


def at_most(high: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
    """Return the smaller of a constant that is no NaN and `x`; a NaN in `x` stays. For lowered code."""
    return tirx.Min(high, x)


def maximum_reducer() -> Callable[..., tirx.Expr]:
    """Return the reducer of `maximum`."""
    return _reducer(maximum, -inf)


def minimum_reducer() -> Callable[..., tirx.Expr]:
    """Return the reducer of `minimum`."""
    return _reducer(minimum, inf)


def _reducer(combine: Binary, neutral: float) -> Callable[..., tirx.Expr]:
    reducer: Callable[..., Any] = te.comm_reducer(
        combine, lambda dtype: tirx.const(neutral, dtype), name="extreme"
    )
    return reducer


def keeps_nan_legalizers() -> dict[str, Legalizer]:
    """Return the lowerings for `relax.transform.LegalizeOps`; integers keep TVM's own."""
    return {
        "relax.nn.relu": _for_floats(_relu),
        "relax.clip": _for_floats(_clip),
        "relax.maximum": _for_floats(_binary(maximum)),
        "relax.minimum": _for_floats(_binary(minimum)),
        "relax.sign": _for_floats(_sign),
        "relax.max": _for_floats(_reduction(maximum_reducer)),
        "relax.min": _for_floats(_reduction(minimum_reducer)),
        "relax.nn.max_pool1d": _for_floats(_max_pool),
        "relax.nn.max_pool2d": _for_floats(_max_pool),
        "relax.nn.max_pool3d": _for_floats(_max_pool),
    }


def default_legalizer(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower the call as TVM does."""
    return call.op.get_attr("FLegalize")(builder, call)


def _for_floats(legalize: Callable[..., relax.Expr | None]) -> Legalizer:
    def guarded(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not str(call.args[0].ty.dtype).startswith(FLOATS):
            return default_legalizer(builder, call)
        lowered = legalize(builder, call)
        return default_legalizer(builder, call) if lowered is None else lowered

    return guarded


def _element_wise(
    builder: relax.BlockBuilder, call: relax.Call, form: Callable[[tirx.Expr], tirx.Expr], name: str
) -> relax.Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *index: form(x(*index)), name=name)

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)


def _constant(dtype: str, value: float) -> tirx.Expr:
    return tirx.const(value, dtype)


def _relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    zero = _constant(str(call.args[0].ty.dtype), 0.0)
    return _element_wise(builder, call, lambda x: maximum(zero, x), "relu")


def _clip(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.args[0].ty.dtype)
    low, high = (_constant(dtype, float(bound.value)) for bound in call.args[1:3])
    return _element_wise(builder, call, lambda x: minimum(high, maximum(low, x)), "clip")


def _sign(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.args[0].ty.dtype)
    zero, one = _constant(dtype, 0.0), _constant(dtype, 1.0)

    def form(x: tirx.Expr) -> tirx.Expr:
        return bound(x, lambda x: tirx.Select(x > zero, one, tirx.Select(x < zero, -one, x)))

    return _element_wise(builder, call, form, "sign")


def _binary(combine: Binary) -> Callable[..., relax.Expr]:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        scalars = [_scalar(operand) for operand in call.args]
        for position, value in enumerate(scalars):
            other = call.args[1 - position]
            if value is not None and len(other.ty.shape.values):
                constant = _constant(str(other.ty.dtype), value)
                single = relax.Call(call.op, [other])
                return _element_wise(builder, single, partial(combine, constant), "bounded")

        def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            shape = topi.utils.get_const_tuple(topi.add(a, b).shape)
            left, right = topi.broadcast_to(a, shape), topi.broadcast_to(b, shape)
            return te.compute(shape, lambda *i: combine(left(*i), right(*i)), name="extreme")

        return builder.call_te(compute, *call.args, primfunc_name_hint="extreme")

    return legalize


def _scalar(operand: relax.Expr) -> float | None:
    """Return the value of a constant of rank 0, else None."""
    if not isinstance(operand, ir.GenericConst) or len(operand.ty.shape.values):
        return None
    return float(operand.value.numpy())


def _reduction(reducer: Callable[[], Callable[..., tirx.Expr]]) -> Callable[..., relax.Expr | None]:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
        shape = [int(size) for size in call.args[0].ty.shape.values]
        axes = call.attrs.axis
        axes = sorted(
            int(axis) % len(shape) for axis in (range(len(shape)) if axes is None else axes)
        )
        if not axes:
            return None

        def compute(x: te.Tensor) -> te.Tensor:
            kept = [1 if n in axes else size for n, size in enumerate(shape)]
            if not call.attrs.keepdims:
                kept = [size for n, size in enumerate(shape) if n not in axes]

            def value(*index: tirx.Expr) -> tirx.Expr:
                reduced = {n: te.reduce_axis((0, shape[n]), name=f"k{n}") for n in axes}
                own = iter(index)
                outer = {
                    n: next(own) for n in range(len(shape)) if call.attrs.keepdims or n not in axes
                }
                places = [reduced.get(n, outer.get(n)) for n in range(len(shape))]
                return reducer()(x(*places), axis=list(reduced.values()))

            return te.compute(kept, value, name="extreme")

        return builder.call_te(compute, call.args[0], primfunc_name_hint="extreme")

    return legalize


def _max_pool(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    attrs, rank = call.attrs, len(call.args[0].ty.shape.values)
    windows = [int(size) for size in attrs.pool_size]
    if attrs.layout != attrs.out_layout or not attrs.layout.startswith("NC"):
        return None
    out_shape = [int(size) for size in call.ty.shape.values]
    strides, dilations = map(int, attrs.strides), map(int, attrs.dilation)
    steps = list(zip(strides, dilations, strict=True))
    before = [int(pad) for pad in attrs.padding[: rank - 2]]

    def compute(x: te.Tensor) -> te.Tensor:
        padded = _padded(x, before, out_shape, windows=windows, steps=steps)

        def value(*index: tirx.Expr) -> tirx.Expr:
            taps = [te.reduce_axis((0, size), name=f"w{n}") for n, size in enumerate(windows)]
            places = [
                index[n + 2] * stride + tap * dilation
                for n, (tap, (stride, dilation)) in enumerate(zip(taps, steps, strict=True))
            ]
            return maximum_reducer()(padded(*index[:2], *places), axis=taps)

        return te.compute(out_shape, value, name="pool_max")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="max_pool")


def _padded(
    x: te.Tensor,
    before: Sequence[int],
    out_shape: Sequence[int],
    *,
    windows: Sequence[int],
    steps: Sequence[tuple[int, int]],
) -> te.Tensor:
    """Return `x` between borders of -inf, as wide as the windows reach."""
    after = []
    for n, (stride, dilation) in enumerate(steps):
        reach = (out_shape[n + 2] - 1) * stride + (windows[n] - 1) * dilation + 1
        after.append(max(0, reach - before[n] - int(x.shape[n + 2])))
    if not any(before) and not any(after):
        return x
    return topi.nn.pad(x, [0, 0, *before], [0, 0, *after], tirx.const(-inf, x.dtype))
