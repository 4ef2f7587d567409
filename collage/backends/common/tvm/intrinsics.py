"""Intrinsics of our own: operations that no pass of TVM rewrites until the last one before LLVM."""

from collections.abc import Callable
from functools import cache

import tvm
from tvm import tirx
from tvm.tirx.op import register_intrin_lowering

Form = Callable[[tirx.Expr], tirx.Expr]
PURE = 1
"""TVM's `CallEffectKind` of functions without effects."""
HIGHEST_LEVEL = 99
"""Priority over every lowering of TVM's own."""


@cache
def register_intrinsic(name: str, lowering: Form) -> str:
    """Register an intrinsic of two operands in this process, once; return its name.

    Args:
        name: name after "collage_".
        lowering: function from the call to the expression for LLVM.
    """
    full_name = f"tirx.collage_{name}"
    tvm.ir._ffi_api.RegisterOp(full_name, "an operation that TVM's passes leave alone")
    intrinsic = tvm.ir.Op.get(full_name)
    intrinsic.set_num_inputs(2)
    intrinsic.set_attr("TVectorizable", True)
    intrinsic.set_attr("TCallEffectKind", PURE)
    intrinsic.set_attr("TScriptPrinterName", f"collage_{name}")
    register_intrin_lowering(full_name, "llvm", f=lowering, level=HIGHEST_LEVEL)
    return full_name
