"""Start the virtual machine of an executable, on the CPU or on a GPU.

An executable for a GPU takes and returns host tensors like any other: the copies are kernels inside it. Each
of its functions is there once more under another name (`on_device`), on tensors of the device. Its
first device is the GPU, whose memory TVM's planner lays out as it does the host's, and the second the
CPU. All its kernels run on the current stream of the calling thread (stream 0 unless one was set).
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

CPU, CUDA, POOLED_ALLOCATOR = 1, 2, 2
"""DLPack's device types, and TVM's number of an allocator."""


_starting = threading.Lock()
_threads: int | None = None


def use_threads(threads: int) -> None:
    """Let the parallel loops of TVM's kernels have so many threads from now on, in the whole process.

    Bundles that were made for different numbers of threads may live in one process, and each asks
    before it runs. Where two run at the same time, the last word counts for both: their numbers are right
    all the same, for a loop is divided when it begins.
    """
    global _threads
    if threads != _threads:
        import tvm_ffi

        tvm_ffi.get_global_func("collage.set_threads")(threads)
        _threads = threads


def on_device(function: str) -> str:
    """Name the form of a function that takes and returns tensors of the GPU."""
    return f"{function}_on_device"


class Machine(Protocol):
    """A virtual machine: its functions by name."""

    def __getitem__(self, name: str) -> Callable[..., Any]: ...


def start_machine(executable: Path | VerifiedFile, threads: int, device: str = "cpu") -> Machine:
    """Load the executable and initialise its kernels.

    Args:
        executable: the shared library; that of a bundle is loaded from the descriptor through which
            it was verified.
        threads: of kernels that run on the CPU.
        device: what it was assembled for.

    Raises:
        BundleError: it cannot be loaded here; says why.
    """
    return ExecutableFile(executable, threads, device).machine


class ExecutableFile:
    """An executable that was opened: its kernels, and the virtual machine that calls them in order."""

    def __init__(self, executable: Path | VerifiedFile, threads: int, device: str = "cpu") -> None:
        """Open it; arguments and errors are those of `start_machine`."""
        self._path = executable if isinstance(executable, Path) else executable.path
        self._device = device
        with _starting, self._explained():
            load_plugin()
            if os.environ.get("TVM_NUM_THREADS") != str(threads):
                os.environ["TVM_NUM_THREADS"] = str(threads)
            use_threads(threads)
            if device == "cuda":
                load_cuda_runtime()
            self._library = _opened(executable)

    @cached_property
    def machine(self) -> Machine:
        """The virtual machine; it is started, and its kernels are made, when it is first asked for."""
        with _starting, self._explained():
            machine: Machine = self._library["vm_load_executable"]()
            first = (CUDA, 0, POOLED_ALLOCATOR) if self._device == "cuda" else ()
            machine["vm_initialization"](*first, CPU, 0, POOLED_ALLOCATOR)
        return machine

    def kernel(self, symbol: str) -> Callable[..., Any]:
        """Make a kernel for calls without the virtual machine. Raises BundleError where there is none."""
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
    """Load the library; it stays for as long as the process, for results may need its code."""
    import tvm_ffi

    if isinstance(executable, Path):
        return tvm_ffi.load_module(str(executable.resolve()))
    load = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")
    module = load(executable.library_path(), "so")
    executable.check_unchanged()
    tvm_ffi.get_global_func("ffi.ModuleGlobalsAdd")(module)
    return module
