"""A check of indices before a TVM kernel computes: an index out of range ends the call with an error.

The check is a loop over each input of indices ahead of the scheduled function's body. It reads the indices
once more; they are few beside what they select.
"""

from collections.abc import Sequence

import tvm
from tvm import ir, tirx

from collage.backends.common.tvm.lower import FUSED_SYMBOL
from collage.frontend.index_checks import IndexCheck


def check_indices(module: tvm.IRModule, checks: Sequence[IndexCheck]) -> tvm.IRModule:
    """Return `module` with the checks at the beginning of its function `FUSED_SYMBOL`."""
    if not checks:
        return module
    function = module[FUSED_SYMBOL]
    body = [*(_loop(function, check) for check in checks), function.body]
    return tvm.IRModule({FUSED_SYMBOL: function.with_body(tirx.SeqStmt(body))})


def _loop(function: tirx.PrimFunc, check: IndexCheck) -> tirx.Stmt:
    buffer = function.params[check.position]
    variables = [tirx.Var(f"i{axis}", "int64") for axis in range(len(buffer.shape))]
    index = tirx.BufferLoad(buffer, variables)
    axis = " x ".join(map(str, check.sizes))
    # TVM 0.27 declares these operands the other way round than its constructor takes them.
    body: tirx.Stmt = tirx.AssertStmt(
        _is_within(index, check.sizes, variables, buffer.shape),
        ir.StringImm("IndexError"),
        [ir.StringImm(f"an index is out of range: the axis has {axis} elements")],
    )
    for variable, extent in reversed(list(zip(variables, buffer.shape, strict=True))):
        body = tirx.For(variable, 0, extent, tirx.ForKind.SERIAL, body)
    return body


def _is_within(
    index: tirx.Expr, sizes: Sequence[int], variables: Sequence[tirx.Var], shape: Sequence[int]
) -> tirx.Expr:
    dtype = str(index.ty.dtype)
    size = tirx.const(sizes[-1], dtype)
    column: tirx.Expr = tirx.const(0, "int64")
    for variable, extent in zip(variables, shape, strict=True):
        column = column * int(extent) + variable
    for position, other in enumerate(sizes[:-1]):
        is_here = tirx.floormod(column, len(sizes)).equal(position)
        size = tirx.Select(is_here, tirx.const(other, dtype), size)
    return tirx.all(index >= -size, index < size)
