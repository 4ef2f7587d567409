"""Calls of the CUDA runtime for serving: copies, and the order of streams.

A stream is its handle as an integer, 0 for the default stream, as in PyTorch's `cuda_stream`.
"""

import ctypes
import functools

from collage.errors import BundleError
from collage.runtime.plugin import library_path, load_cuda_runtime

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
"""cudaMemcpyKind."""
NO_TIMING = 2
"""cudaEventDisableTiming."""


class Cuda:
    """The CUDA runtime of this process. Methods raise BundleError with the driver's message."""

    def __init__(self) -> None:
        load_cuda_runtime()
        self._library = ctypes.CDLL(str(library_path("cudart")))
        self._library.cudaGetErrorString.restype = ctypes.c_char_p

    def copy(self, to: int, origin: int, size_bytes: int, kind: int, *, stream: int) -> None:
        """Queue a copy. A source on the host has been read when this returns."""
        self._check(
            "cudaMemcpyAsync", ctypes.c_void_p(to), ctypes.c_void_p(origin),
            ctypes.c_size_t(size_bytes), ctypes.c_int(kind), ctypes.c_void_p(stream),
        )  # fmt: skip

    def wait(self, stream: int) -> None:
        """Wait for all work queued on the stream."""
        self._check("cudaStreamSynchronize", ctypes.c_void_p(stream))

    def order(self, first: int, second: int) -> None:
        """Let later work of the stream `second` start after the work queued on `first` so far."""
        if first == second:
            return
        event = ctypes.c_void_p()
        self._check("cudaEventCreateWithFlags", ctypes.byref(event), ctypes.c_uint(NO_TIMING))
        try:
            self._check("cudaEventRecord", event, ctypes.c_void_p(first))
            self._check("cudaStreamWaitEvent", ctypes.c_void_p(second), event, ctypes.c_uint(0))
        finally:
            self._check("cudaEventDestroy", event)

    def _check(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            words = self._library.cudaGetErrorString(code).decode()
            raise BundleError(f"the GPU failed: {name}: {words} ({code})")


@functools.cache
def cuda() -> Cuda:
    """Return the CUDA runtime. Raises BackendError when there is none."""
    return Cuda()
