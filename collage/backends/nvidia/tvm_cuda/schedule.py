"""dlight's rule-based schedules, their target, and their machine code.

With TVM's GPU runtime loaded, a compiled module contains machine code. On a machine without a driver there is
no such runtime: a module contains CUDA C++, and TVM compiles it at load time. For loaders without a compiler,
the machine code travels beside the module, by the digest of its source, and replaces TVM's compilation
(`use_device_code`).
"""

import os
from collections.abc import Mapping
from functools import cache
from hashlib import sha256

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import dlight

from collage.backends.common.tvm.lower import FUSED_SYMBOL, last_line
from collage.backends.nvidia.architecture import architecture
from collage.backends.nvidia.compiler import (
    find_nvcc,
    nvcc_availability,
    nvcc_environment,
)
from collage.errors import BackendError

COMPILE = "tvm_callback_cuda_compile"
"""TVM's callback for compilation of CUDA C++."""

_BUILT: dict[str, bytes] = {}

RULES = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback")


def cuda_target() -> tvm.target.Target:
    """Return the target of native kernels on this machine's GPU."""
    return target_of(architecture())


@cache
def target_of(name: str) -> tvm.target.Target:
    """Return the target of an architecture; the host is this machine.

    Limits are those of every GPU since compute capability 8: by default TVM queries a device, and there may
    be none.
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
    """Return a module with `function`, scheduled for a GPU, under `lower.SYMBOL`.

    Raises:
        BackendError: no rule fits: a loop remains without a thread.
    """
    named = function.with_attr("global_symbol", FUSED_SYMBOL)
    chosen = RULES if variant == "" else RULES[-1:]
    rules = [getattr(dlight.gpu, name)() for name in chosen]
    try:
        with cuda_target():
            module = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({FUSED_SYMBOL: named}))
    except Exception as error:
        raise BackendError(f"no schedule: {last_line(error)}") from error
    return module


def use_nvcc() -> None:
    """Set TVM's compiler for its CUDA C++.

    TVM's default is NVRTC through another package. Fast mathematics is off: costs and numbers are those of
    float32.

    Raises:
        BackendError: nvcc is missing.
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
    code = {}
    for source_module in executable.mod.imports:
        if source_module.kind == "cuda":
            source = source_module.inspect_source()
            try:
                with cuda_target():
                    code[_digest(source)] = bytes(compile_source(source))
            except Exception as error:
                raise BackendError(f"TVM's CUDA code: {last_line(error)}") from error
    return code


def use_device_code(built: Mapping[str, bytes]) -> None:
    """Replace TVM's compilation of these sources by their machine code, in this process."""
    _install_callback()
    _BUILT.update(built)


@cache
def _install_callback() -> None:
    compile_source = tvm_ffi.get_global_func(COMPILE)

    def code_of(source: str) -> bytes:
        return _BUILT.get(_digest(source)) or compile_source(source)

    tvm_ffi.register_global_func(COMPILE, code_of, override=True)
    os.environ["TVM_CUDA_COMPILE_MODE"] = "nvcc"  # the compiler of this code


def _digest(source: str) -> str:
    return sha256(source.encode()).hexdigest()
