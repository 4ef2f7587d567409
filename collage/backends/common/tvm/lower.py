"""From the Relax form of a region to one unscheduled TIR function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax import transform

from collage.errors import BackendError

FUSED_SYMBOL = "fused"

Legalizers = Mapping[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]
"""Lowerings of Relax operators, by name."""


@dataclass(frozen=True)
class Lowered:
    """A fused function; its arguments are the region's parameters, `constants` and the outputs."""

    function: tirx.PrimFunc
    constants: tuple[np.ndarray, ...]


def lower(module: tvm.IRModule, legalizers: Legalizers | None = None) -> Lowered:
    """Fuse the Relax function `main` of `module` into one TIR function.

    Args:
        module: the region.
        legalizers: lowerings in place of TVM's own (default: none).

    Raises:
        BackendError: an operator has no TIR form, or TVM refuses the fusion.
    """
    try:
        lifter = _LiftConstants()
        primitive = lifter.lift(module["main"])
        fused = tvm.transform.Sequential([transform.LegalizeOps(legalizers), transform.FuseTIR()])(
            _call_once(primitive)
        )
    except Exception as error:  # TVM's errors share no base class
        raise BackendError(f"TVM cannot fuse the region: {last_line(error)}") from error
    functions = [
        function for function in fused.functions.values() if isinstance(function, tirx.PrimFunc)
    ]
    if len(functions) != 1:
        raise BackendError(f"the region became {len(functions)} TIR functions instead of one")
    return Lowered(functions[0], tuple(lifter.constants))


def last_line(error: Exception) -> str:
    """Return the last line of TVM's message: the reason; the lines before are its stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@relax.expr_functor.mutator
class _LiftConstants(relax.expr_functor.PyExprMutator):
    """Turns constants into parameters: a Primitive function may contain scalars only."""

    def __init__(self) -> None:
        super().__init__()
        self.constants: list[np.ndarray] = []
        self.params: list[relax.Var] = []

    def lift(self, function: relax.Function) -> relax.Function:
        body = self.visit_expr(function.body)
        return relax.Function(
            [*function.params, *self.params],
            body,
            function.ret_ty,
            function.is_pure,
            ir.make_node("ir.DictAttrs", Primitive=True),
        )

    def visit_generic_const_(self, op: ir.GenericConst) -> relax.Expr:
        if len(op.ty.shape.values) == 0:
            return op
        self.constants.append(op.value.numpy())
        self.params.append(relax.Var(f"constant{len(self.params)}", op.ty))
        return self.params[-1]


def _call_once(primitive: relax.Function) -> tvm.IRModule:
    """Wrap `primitive` in a call, so that no pass removes it as dead code."""
    builder = relax.BlockBuilder()
    name = builder.add_func(primitive, FUSED_SYMBOL)
    params = [
        relax.Var(f"p{position}", param.ty) for position, param in enumerate(primitive.params)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.Call(name, params)))
        builder.emit_func_output(result)
    return builder.get()
