"""The machine that native kernels are compiled for.

Two floating-point liberties are given to LLVM, since its loop vectoriser needs the first for sums and
its instruction selection the second for fused multiply-add. NaN, infinity and the sign of zero keep
their meaning: masks are infinities.
"""

from functools import cache

import tvm
import tvm_ffi

from collage.backends.common.tvm.polynomials import use_polynomials


@cache
def host_cpu() -> str:
    """Return LLVM's name of this CPU ("native" would be passed through verbatim, unresolved)."""
    return str(tvm_ffi.get_global_func("target.llvm_get_system_cpu")())


@cache
def host_target(threads: int) -> tvm.target.Target:
    """Return the target of native kernels, and of assembled executables, with `threads` cores.

    Kernels for this target are to be lowered with the polynomials, so they are registered here.
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
