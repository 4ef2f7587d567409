"""The target of native kernels: this CPU.

LLVM may reassociate and contract floating-point operations: its loop vectoriser needs the first for sums, its
instruction selection the second for fused multiply-add. NaN, infinity and the sign of zero keep their
meaning: masks are infinities.
"""

from functools import cache

import tvm
import tvm_ffi

from collage.backends.common.tvm.polynomials import use_polynomials


@cache
def host_cpu() -> str:
    """Return LLVM's name of this CPU; TVM does not resolve "native"."""
    return str(tvm_ffi.get_global_func("target.llvm_get_system_cpu")())


@cache
def host_target(threads: int) -> tvm.target.Target:
    """Return the target of native kernels and assembled executables, with `threads` cores.

    It registers the polynomials: kernels for this target are lowered with them.
    """
    use_polynomials()
    return tvm.target.Target(
        {
            "kind": "llvm",
            "mcpu": host_cpu(),
            "num-cores": threads,
            "fast-math-reassoc": True,
            "fast-math-contract": True,
        }
    )
