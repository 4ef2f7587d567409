"""dlight's rule-based schedules, the target they are for, and their machine code.

Where TVM's runtime for GPUs is loaded, a module is machine code as soon as it is compiled. On a machine
without a driver there is no such runtime, and a module holds its CUDA C++, which TVM would compile when it
is loaded. So that who loads needs no compiler, the machine code goes along with the module, by the digest
of its source, and TVM gets it where it would compile (`use_device_code`).
"""

import os
from collections.abc import Mapping
from functools import cache
from hashlib import sha256

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import dlight

from collage.backends.cpu.tvm.lower import SYMBOL, last_line
from collage.backends.nvidia.architecture import architecture
from collage.backends.nvidia.compiler import (
    find_nvcc,
    nvcc_availability,
    nvcc_environment,
)
from collage.errors import BackendError

COMPILE = "tvm_callback_cuda_compile"
"""What TVM calls to compile CUDA C++."""

_BUILT: dict[str, bytes] = {}

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


def device_code(executable: tvm.runtime.Executable) -> dict[str, bytes]:
    """Return the machine code of a compiled module's kernels, by the digest of their source.

    Raises:
        BackendError: nvcc is missing, or refuses them.
    """
    use_nvcc()
    compile_source = tvm_ffi.get_global_func(COMPILE)
    found = {}
    for one in executable.mod.imports:
        if one.kind == "cuda":
            source = one.inspect_source()
            try:
                with cuda_target():
                    found[_digest(source)] = bytes(compile_source(source))
            except Exception as error:
                raise BackendError(f"TVM's CUDA code: {last_line(error)}") from error
    return found


def use_device_code(built: Mapping[str, bytes]) -> None:
    """Let TVM take this machine code for its sources instead of compiling them, in this process."""
    _give_code()
    _BUILT.update(built)


@cache
def _give_code() -> None:
    compile_source = tvm_ffi.get_global_func(COMPILE)

    def code_of(source: str) -> bytes:
        return _BUILT.get(_digest(source)) or compile_source(source)

    tvm_ffi.register_global_func(COMPILE, code_of, override=True)
    os.environ["TVM_CUDA_COMPILE_MODE"] = "nvcc"  # which is what made the code


def _digest(source: str) -> str:
    return sha256(source.encode()).hexdigest()
