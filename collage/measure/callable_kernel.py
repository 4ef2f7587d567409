"""Callable functions from the kernels of backends, with their constants and scratch memory.

TVM and its runtime are imported by the first conversion, not with this module: a process for names and
copies of kernel files starts without them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collage.backends.base import CudaKernel, PluginKernel, TirKernel
from collage.errors import BackendError
from collage.measure.timing import Call
from collage.runtime.arrays import aligned_copy, aligned_empty, as_tensor
from collage.runtime.target import Target

if TYPE_CHECKING:
    import tvm

POISON = 0x5A
"""Byte of integer output buffers before a call."""


@dataclass(frozen=True, slots=True)
class BlobKernel:
    """A kernel of the plug-in from a file: the part of a `PluginKernel` that a call needs."""

    kind: str
    blob: bytes
    allocates: bool = False


@dataclass(frozen=True)
class LibraryKernel:
    """A linked kernel: the shared library `file` exports `symbol`.

    Arguments of a call: inputs, `constants`, one array of `scratch` bytes unless 0, outputs.
    """

    file: Path
    symbol: str
    constants: tuple[np.ndarray, ...] = ()
    scratch: int = 0


def callable_kernel(kernel: object, threads: int) -> tuple[Call, tuple[np.ndarray, ...]]:
    """Return the kernel's function, and its arguments between inputs and outputs: constants, scratch."""
    import tvm_ffi

    match kernel:
        case PluginKernel(kind, blob) | BlobKernel(kind, blob):
            module = tvm_ffi.get_global_func("collage.create_module")(kind, "kernel", blob)
            return module.get_function("kernel"), ()
        case TirKernel(_, symbol, constants):
            return compiled_module(kernel, threads)[symbol], tuple(map(aligned_copy, constants))
        case LibraryKernel(file, symbol, constants, scratch) | CudaKernel(
            file, symbol, constants, scratch
        ):
            memory = (np.zeros(scratch, np.uint8),) if scratch else ()
            extra = (*map(aligned_copy, constants), *memory)
            return tvm_ffi.load_module(str(file))[symbol], extra
    raise BackendError(f"a backend returned {type(kernel).__name__} instead of a kernel")


def compiled_module(kernel: TirKernel, threads: int) -> "tvm.runtime.Executable":
    """Compile a TIR kernel for its device."""
    import tvm

    from collage.backends.common.tvm.target import host_target

    if Target(kernel.device).is_gpu:
        from collage.backends.nvidia.tvm_cuda.schedule import cuda_module

        return cuda_module(kernel.module)
    function = kernel.module[kernel.symbol].with_attr("global_symbol", kernel.symbol)
    module = tvm.IRModule({kernel.symbol: function})
    return tvm.compile(module, target=host_target(threads))


def as_tensors(arrays: Sequence[np.ndarray]) -> tuple[object, ...]:
    """Return tensors that alias the arrays."""
    return tuple(map(as_tensor, arrays))


def poisoned_like(value: np.ndarray) -> np.ndarray:
    """Return an aligned output buffer filled with a value unlike any correct result."""
    buffer = aligned_empty(value.shape, value.dtype)
    if buffer.dtype.kind == "f":
        buffer.fill(np.nan)
    elif buffer.dtype.kind != "b":
        buffer.reshape(-1).view(np.uint8).fill(POISON)
    else:
        np.logical_not(value, out=buffer)
    return buffer
