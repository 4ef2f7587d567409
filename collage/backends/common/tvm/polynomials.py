"""exp, erf, tanh and sigmoid of float32 as plain arithmetic; LLVM vectorises it.

TVM lowers these operators to scalar calls of the C library. The forms here have a relative error of at most
1e-6: exp by range reduction and a polynomial of degree six; erf by N. Juffa's two polynomials (also in CUDA
and MLAS); tanh by Eigen's rational function. exp is 0 below -87.0 and infinite above 88.72 (the exact limits
are -103.3 and 88.72). NaN stays NaN: `max(bound, x)` is `bound > x ? bound : x`, with the bound first.

They replace TVM's lowering in the last pass before LLVM: schedules still see small expressions, scalars and
vectors alike. float64 remains with the C library.
"""

from collections.abc import Sequence
from functools import cache

from tvm import tirx
from tvm.tirx.op import register_intrin_lowering

from collage.backends.common.tvm.intrinsics import HIGHEST_LEVEL, Form
from collage.backends.common.tvm.keep_nan import at_least, at_most, bound

LOG2_E = 1.4426950408889634
LN_2_HIGH, LN_2_LOW = 0.693359375, -2.12194440e-4
EXP_HIGHEST, EXP_LOWEST = 88.73, -87.5
EXP_BIAS = 126
"""One less than that of float32: 2^128 has no float32, twice 2^127 is reached in the last product."""
EXP_COEFFICIENTS = (2 / 720, 2 / 120, 2 / 24, 2 / 6, 2 / 2, 2.0, 2.0)
ERF_SMALL = (
    -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1,
)  # fmt: skip
ERF_LARGE = (
    -1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1,
    -1.28717512e-1,
)  # fmt: skip
ERF_SPLIT = 0.927734375
TANH_CLAMP = 7.90531110763549805
TANH_P = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


@cache
def use_polynomials() -> None:
    """Replace TVM's lowering of these operators for LLVM targets, in this process."""
    for name, form in FORMS.items():
        register_intrin_lowering(
            f"tirx.{name}", "llvm", f=_lowering(name, form), level=HIGHEST_LEVEL
        )


def like(x: tirx.Expr, value: float) -> tirx.Expr:
    """Return the constant with the dtype and lanes of `x`."""
    return tirx.const(value, str(x.ty.dtype))


def horner(x: tirx.Expr, coefficients: Sequence[float]) -> tirx.Expr:
    """Evaluate the polynomial, highest power first."""
    result = like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + like(x, coefficient)
    return result


def clamped(x: tirx.Expr, low: float, high: float) -> tirx.Expr:
    """Return `x` between two bounds; NaN stays NaN."""
    return at_least(like(x, low), at_most(like(x, high), x))


def exp(x: tirx.Expr) -> tirx.Expr:
    integer = str(x.ty.dtype).replace("float", "int")

    def scaled(x: tirx.Expr, power: tirx.Expr) -> tirx.Expr:
        exponent = tirx.Cast(integer, power) + tirx.const(EXP_BIAS, integer)
        scale = tirx.reinterpret(str(x.ty.dtype), exponent << tirx.const(23, integer))
        remainder = x - power * like(x, LN_2_HIGH) - power * like(x, LN_2_LOW)
        return bound(remainder, lambda remainder: horner(remainder, EXP_COEFFICIENTS)) * scale

    def of(x: tirx.Expr) -> tirx.Expr:
        power = tirx.floor(x * like(x, LOG2_E) + like(x, 0.5))
        return bound(power, lambda power: scaled(x, power))

    return bound(clamped(x, EXP_LOWEST, EXP_HIGHEST), of)


def erf(x: tirx.Expr) -> tirx.Expr:
    def of(x: tirx.Expr, size: tirx.Expr) -> tirx.Expr:
        small = bound(x * x, lambda square: horner(square, ERF_SMALL)) * x + x
        large = like(x, 1.0) - exp(horner(size, ERF_LARGE) * size - size)
        signed = bound(large, lambda large: tirx.Select(x < like(x, 0.0), -large, large))
        return tirx.Select(size > like(x, ERF_SPLIT), signed, small)

    return bound(x, lambda x: bound(tirx.max(x, -x), lambda size: of(x, size)))


def tanh(x: tirx.Expr) -> tirx.Expr:
    def of(x: tirx.Expr, square: tirx.Expr) -> tirx.Expr:
        return x * horner(square, TANH_P) / horner(square, TANH_Q)

    return bound(
        clamped(x, -TANH_CLAMP, TANH_CLAMP), lambda x: bound(x * x, lambda square: of(x, square))
    )


def sigmoid(x: tirx.Expr) -> tirx.Expr:
    return like(x, 1.0) / (like(x, 1.0) + exp(-x))


FORMS: dict[str, Form] = {"exp": exp, "erf": erf, "tanh": tanh, "sigmoid": sigmoid}


def _lowering(name: str, form: Form) -> Form:
    def lowered(call: tirx.Expr) -> tirx.Expr:
        operand = call.args[0]
        dtype = str(operand.ty.dtype)
        kind, _, lanes = dtype.partition("x")
        if kind == "float32":
            return form(operand)
        if kind in ("float16", "bfloat16"):
            wide = f"float32x{lanes}" if lanes else "float32"
            return tirx.Cast(dtype, form(tirx.Cast(wide, operand)))
        if name == "sigmoid":
            unit = tirx.const(1.0, dtype)
            return unit / (unit + tirx.call_pure_extern(dtype, "exp", -operand))
        return tirx.call_pure_extern(dtype, name, operand)

    return lowered
