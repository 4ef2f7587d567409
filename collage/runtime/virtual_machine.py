"""The virtual machine of an executable, on the CPU or on a GPU.

An executable for a GPU takes and returns host tensors like any other: the copies are kernels inside it. Each
function also exists under another name (`on_device`), on tensors of the device. Its first device is the GPU,
with memory planned by TVM as on the host, and its second device the CPU. All kernels run on the current
stream of the calling thread (default: stream 0).
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from collage.errors import BundleError
from collage.runtime.bundle_folder import VerifiedFile
from collage.runtime.plugin import load_cuda_runtime, load_plugin
from collage.runtime.target import Target

CPU, CUDA, POOLED_ALLOCATOR = 1, 2, 2
"""DLPack's device types, and TVM's number of an allocator."""


_starting = threading.Lock()
_threads: int | None = None


def use_threads(threads: int) -> None:
    """Set the number of threads of parallel loops in TVM's kernels, for the whole process.

    Bundles for different numbers of threads may share a process, so each sets its number before a call. For
    two parallel calls the last setting applies to both. Their outputs are correct all the same, for a loop
    is divided at its start.
    """
    global _threads
    if threads != _threads:
        import tvm_ffi

        tvm_ffi.get_global_func("collage.set_threads")(threads)
        _threads = threads


def on_device(function: str) -> str:
    """Return the name of a function's variant on tensors of the GPU."""
    return f"{function}_on_device"


class Machine(Protocol):
    """A virtual machine: a mapping from names to functions."""

    def __getitem__(self, name: str) -> Callable[..., Any]: ...


def start_machine(
    executable: Path | VerifiedFile, threads: int, device: Target = Target.CPU
) -> Machine:
    """Load the executable and initialise its kernels.

    Args:
        executable: shared library; a bundle's verified file is loaded from its descriptor.
        threads: number of threads of kernels on the CPU.
        device: device of the executable.

    Raises:
        BundleError: the executable cannot be loaded here.
    """
    return ExecutableFile(executable, threads, device).machine


class ExecutableFile:
    """An open executable: its kernels, and its virtual machine.

    Attributes:
        lock: lock of every call: functions share kernels, their memory and the virtual machine.
    """

    def __init__(
        self, executable: Path | VerifiedFile, threads: int, device: Target = Target.CPU
    ) -> None:
        """Open the executable; arguments and errors as of `start_machine`."""
        self.lock = threading.Lock()
        self._path = executable if isinstance(executable, Path) else executable.path
        self._device = device
        with _starting, self._explained():
            load_plugin()
            if os.environ.get("TVM_NUM_THREADS") != str(threads):
                os.environ["TVM_NUM_THREADS"] = str(threads)
            use_threads(threads)
            if device.is_gpu:
                load_cuda_runtime()
            self._library = _opened(executable)

    @cached_property
    def machine(self) -> Machine:
        """The virtual machine; the first access starts it and creates its kernels."""
        with _starting, self._explained():
            machine: Machine = self._library["vm_load_executable"]()
            first = (CUDA, 0, POOLED_ALLOCATOR) if self._device.is_gpu else ()
            machine["vm_initialization"](*first, CPU, 0, POOLED_ALLOCATOR)
        return machine

    def kernel(self, symbol: str) -> Callable[..., Any]:
        """Return a kernel for calls without the virtual machine. Raises BundleError without one."""
        with _starting, self._explained():
            kernel: Callable[..., Any] = self._library.get_function(symbol, query_imports=True)
        return kernel

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise BundleError(f"{self._path} cannot be loaded: {error}") from error


def _opened(executable: Path | VerifiedFile) -> Any:
    """Load the library for the lifetime of the process: results may need its code."""
    import tvm_ffi

    if isinstance(executable, Path):
        return tvm_ffi.load_module(str(executable.resolve()))
    load = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")
    module = load(executable.library_path(), "so")
    executable.check_unchanged()
    tvm_ffi.get_global_func("ffi.ModuleGlobalsAdd")(module)
    return module
