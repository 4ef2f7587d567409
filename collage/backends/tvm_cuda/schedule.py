"""dlight's rule-based schedules, and the target they are for."""

import os
from functools import cache

import tvm
from tvm import tirx
from tvm.s_tir import dlight

from collage.backends.nvidia.architecture import architecture
from collage.backends.nvidia.compiler import (
    find_nvcc,
    nvcc_availability,
    nvcc_environment,
)
from collage.backends.tvm.lower import SYMBOL, last_line
from collage.errors import BackendError

RULES = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback")


def cuda_target() -> tvm.target.Target:
    """Return the target of native kernels on this machine's GPU."""
    return target_of(architecture())


@cache
def target_of(name: str) -> tvm.target.Target:
    """Return the target of an architecture; the host side is this machine's.

    Limits are those of every GPU since compute capability 8: TVM would ask a device that may not be here.
    """
    return tvm.target.Target(
        {
            "kind": "cuda",
            "arch": name,
            "max_num_threads": 1024,
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "thread_warp_size": 32,
        }
    )


def schedule(function: tirx.PrimFunc, variant: str = "") -> tvm.IRModule:
    """Return a module that holds `function`, scheduled for a GPU, under `lower.SYMBOL`.

    Raises:
        BackendError: no rule fits: a loop has no thread, which no GPU kernel may have.
    """
    named = function.with_attr("global_symbol", SYMBOL)
    chosen = RULES if variant == "" else RULES[-1:]
    rules = [getattr(dlight.gpu, name)() for name in chosen]
    try:
        with cuda_target():
            module = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({SYMBOL: named}))
    except Exception as error:
        raise BackendError(f"no schedule: {last_line(error)}") from error
    return module


def cuda_code(module: tvm.IRModule) -> str:
    """Return the CUDA C++ of a scheduled module. Raises BackendError when TVM refuses it."""
    return "\n".join(one.inspect_source() for one in cuda_module(module).mod.imports)


def use_nvcc() -> None:
    """Tell TVM, which compiles what it generates itself, which compiler to use.

    Its default is NVRTC through another package. Its fast mathematics is off: costs and numbers are those
    of float32.

    Raises:
        BackendError: there is no nvcc.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise BackendError(nvcc_availability().reason)
    os.environ.update(nvcc_environment(nvcc))
    os.environ.update(TVM_CUDA_COMPILE_MODE="nvcc", TVM_CUDA_NVCC_NO_FAST_MATH="1")


def cuda_module(module: tvm.IRModule) -> tvm.runtime.Executable:
    """Compile the kernels of a module. Raises BackendError where nvcc is missing, or refuses them."""
    use_nvcc()
    try:
        return tvm.compile(module, target=cuda_target())
    except Exception as error:
        raise BackendError(f"TVM's CUDA code: {last_line(error)}") from error
