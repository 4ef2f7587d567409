"""exp, erf, tanh and sigmoid of float32 as plain arithmetic, so that LLVM vectorises them.

TVM lowers these to scalar calls of the C library. The forms here are within 4e-7 relative of the exact
value: exp by range reduction and a polynomial of degree six; erf by N. Juffa's two polynomials
(CUDA's, also MLAS's); tanh by Eigen's rational function. exp is 0 below -87.7 and infinite above 88.4
(the exact limits are -103.3 and 88.7); NaN is not propagated.
"""

from collections.abc import Sequence

from tvm import tirx

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
EXP_COEFFICIENTS = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
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


def f32(value: float) -> tirx.Expr:
    return tirx.const(value, "float32")


def horner(x: tirx.Expr, coefficients: Sequence[float]) -> tirx.Expr:
    """Evaluate the polynomial, highest power first."""
    result = f32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + f32(coefficient)
    return result


def exp(x: tirx.Expr) -> tirx.Expr:
    x = tirx.max(tirx.min(x, f32(88.7)), f32(-88.0))
    power = tirx.floor(x * f32(LOG2_E) + f32(0.5))
    rest = x - power * f32(LN_2)
    scale = (tirx.Cast("int32", power) + tirx.const(127, "int32")) << tirx.const(23, "int32")
    return horner(rest, EXP_COEFFICIENTS) * tirx.reinterpret("float32", scale)


def erf(x: tirx.Expr) -> tirx.Expr:
    size = tirx.max(x, -x)
    small = horner(x * x, ERF_SMALL) * x + x
    large = f32(1.0) - exp(horner(size, ERF_LARGE) * size - size)
    signed = tirx.Select(x < f32(0.0), -large, large)
    return tirx.Select(size > f32(ERF_SPLIT), signed, small)


def tanh(x: tirx.Expr) -> tirx.Expr:
    x = tirx.max(tirx.min(x, f32(TANH_CLAMP)), f32(-TANH_CLAMP))
    square = x * x
    return x * horner(square, TANH_P) / horner(square, TANH_Q)


def sigmoid(x: tirx.Expr) -> tirx.Expr:
    return f32(1.0) / (f32(1.0) + exp(-x))
