"""Lowerings of Relax operators whose own lowering in TVM is wrong at the edges of a type.

* TVM's arithmetic of signed integers has no overflow: `(x * 2654435761) % 1009` becomes
  `(x * (2654435761 % 1009)) % 1009`. ONNX Runtime's is two's complement. Here it is an intrinsic
  (`intrinsics`). TVM marks the instruction as one that never overflows, of unsigned integers too; of signed
  ones LLVM makes no use of that in a chain of operations. Edge inputs judge every kernel on overflows.
* The position of an extreme is -1 where no element is above the smallest number, as in a masked row. Here the
  first element counts.
* A selection refuses scalars, and compares its condition as a signed integer of one bit, in which true is -1.
"""

from collections.abc import Callable
from math import inf
from typing import Any

from tvm import ir, relax, te, tirx, topi

from collage.backends.common.tvm.intrinsics import Form, register_intrinsic
from collage.backends.common.tvm.keep_nan import Legalizer, default_legalizer

SIGNED = ("int32", "int64")
"""Types that TVM takes for indices, whose arithmetic it simplifies."""
Binary = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]


def exact_legalizers() -> dict[str, Legalizer]:
    """Return the lowerings for `relax.transform.LegalizeOps`."""
    return {
        "relax.add": _wrapping("wrapping_add", _added),
        "relax.subtract": _wrapping("wrapping_subtract", _subtracted),
        "relax.multiply": _wrapping("wrapping_multiply", _multiplied),
        "relax.argmax": _argument(-inf, lambda a, b: a > b),
        "relax.argmin": _argument(inf, lambda a, b: a < b),
        "relax.where": _where,
    }


def _wrapping(name: str, lowering: Form) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        dtype = str(call.args[0].ty.dtype)
        if dtype not in SIGNED:
            return default_legalizer(builder, call)
        operands, scalars = _without_scalars(call.args)
        intrinsic = register_intrinsic(name, lowering)

        def compute(*tensors: te.Tensor) -> te.Tensor:
            return _broadcast(
                tensors, scalars, lambda v: tirx.call_intrin(dtype, intrinsic, *v), name="wrapping"
            )

        return builder.call_te(compute, *operands, primfunc_name_hint="wrapping")

    return legalize


def _added(call: tirx.Expr) -> tirx.Expr:
    return call.args[0] + call.args[1]


def _subtracted(call: tirx.Expr) -> tirx.Expr:
    return call.args[0] - call.args[1]


def _multiplied(call: tirx.Expr) -> tirx.Expr:
    return call.args[0] * call.args[1]


def _where(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    operands, scalars = _without_scalars(call.args)

    def compute(*tensors: te.Tensor) -> te.Tensor:
        return _broadcast(tensors, scalars, lambda v: tirx.Select(*v), name="where")

    return builder.call_te(compute, *operands, primfunc_name_hint="where")


def _without_scalars(
    arguments: list[relax.Expr],
) -> tuple[list[relax.Expr], list[tirx.Expr | None]]:
    """Return the tensors, and for each argument the constant of rank 0, None for a tensor.

    A kernel has no parameters for constants of rank 0: they become part of the expression.
    """
    scalars = [_scalar(argument) for argument in arguments]
    tensors = [a for a, scalar in zip(arguments, scalars, strict=True) if scalar is None]
    if not tensors:
        return list(arguments), [None] * len(arguments)
    return tensors, scalars


def _scalar(argument: relax.Expr) -> tirx.Expr | None:
    if not isinstance(argument, ir.GenericConst) or len(argument.ty.shape.values):
        return None
    return tirx.const(argument.value.numpy().item(), str(argument.ty.dtype))


def _broadcast(
    tensors: tuple[te.Tensor, ...],
    scalars: list[tirx.Expr | None],
    element: Callable[[tuple[tirx.Expr, ...]], tirx.Expr],
    *,
    name: str,
) -> te.Tensor:
    shape = topi.utils.get_const_tuple(tensors[0].shape)
    for tensor in tensors[1:]:
        shape = _common_shape(shape, topi.utils.get_const_tuple(tensor.shape))

    def value(*index: tirx.Expr) -> tirx.Expr:
        own = iter(tensors)
        return element(tuple(_read(next(own), index) if s is None else s for s in scalars))

    return te.compute(shape, value, name=name)


def _common_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(right if left == 1 else left for left, right in pairs)


def _read(tensor: te.Tensor, index: tuple[tirx.Expr, ...]) -> tirx.Expr:
    places = index[len(index) - len(tensor.shape) :]
    return tensor(*(0 if int(n) == 1 else i for i, n in zip(places, tensor.shape, strict=True)))


def _argument(worst: float, is_better: Binary) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        source = call.args[0].ty
        if call.attrs.axis is None or not str(source.dtype).startswith("float"):
            return default_legalizer(builder, call)
        shape = [int(size) for size in source.shape.values]
        axis = int(call.attrs.axis) % len(shape)
        reducer = _first_position(worst, is_better)

        def compute(x: te.Tensor) -> te.Tensor:
            kept = [size for n, size in enumerate(shape) if n != axis]

            def value(*index: tirx.Expr) -> Any:
                k = te.reduce_axis((0, shape[axis]), name="k")
                places = (*index[:axis], k, *index[axis:])
                return reducer((tirx.Cast("int64", k), x(*places)), axis=k)

            positions, _ = te.compute(kept or [1], _of_rank(value, kept), name="position")
            return topi.reshape(positions, [int(n) for n in call.ty.shape.values])

        return builder.call_te(compute, call.args[0], primfunc_name_hint="position")

    return legalize


def _of_rank(value: Callable[..., Any], kept: list[int]) -> Callable[..., Any]:
    """Return `value`, or for a single result a function of its only index."""
    return value if kept else lambda _: value()


def _first_position(worst: float, is_better: Binary) -> Callable[..., Any]:
    def combine(
        a: tuple[tirx.Expr, tirx.Expr], b: tuple[tirx.Expr, tirx.Expr]
    ) -> tuple[tirx.Expr, tirx.Expr]:
        is_first = tirx.all(a[1].equal(b[1]), a[0] < b[0])
        keeps = tirx.any(is_better(a[1], b[1]), is_first)
        return tirx.Select(keeps, a[0], b[0]), tirx.Select(keeps, a[1], b[1])

    def identity(index_type: str, value_type: str) -> tuple[tirx.Expr, tirx.Expr]:
        return tirx.const(0, index_type), tirx.const(worst, value_type)

    reducer: Callable[..., Any] = te.comm_reducer(combine, identity, name="first_position")
    return reducer
