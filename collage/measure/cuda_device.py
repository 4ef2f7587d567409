"""An NVIDIA GPU as a `Device`: CUDA runtime, driver and NVML through ctypes.

Nothing is compiled and no package is imported: the three libraries come with the driver and with the CUDA
runtime's wheel. NVML is what nvidia-smi uses; where it is missing (some containers), clocks are unknown
and no batch is discarded. It can only be tested where there is a GPU (marker `gpu`).
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from collage.backends.nvidia.libraries import CUDART, driver_reason, open_library
from collage.errors import MeasureError
from collage.measure.device import Clocks, DeviceIdentity, Launch, StickyError
from collage.measure.nvml import Nvml
from collage.measure.timing import Call
from collage.runtime.gpu import open_driver
from collage.runtime.plugin import load_cuda_runtime

STICKY = frozenset({
    214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 721, 999,
})  # fmt: skip
"""cudaError_t after which every call fails: ECC, NVLink, illegal address or instruction, timeout, assert."""

CAPABILITY_MAJOR, CAPABILITY_MINOR, L2_BYTES = 75, 76, 38
PROCESSORS, CLOCK_KHZ, MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS = 16, 13, 36, 37
"""cudaDeviceAttr."""

LANES = {80: 64}
"""Float32 multiply-adds of a multiprocessor per cycle, by compute capability."""
DEFAULT_LANES = 128


class CudaDevice:
    """GPU number `ordinal` with a stream of its own for kernels."""

    def __init__(self, ordinal: int = 0) -> None:
        if reason := driver_reason() or open_library(CUDART).reason:
            raise MeasureError(f"no GPU to measure on: {reason}")
        load_cuda_runtime()
        self._cuda = ctypes.CDLL(open_library(CUDART).path)
        self._cuda.cudaGetErrorString.restype = ctypes.c_char_p
        self._ordinal = ordinal
        self._check("cudaSetDevice", ctypes.c_int(ordinal))
        self.stream = ctypes.c_void_p()
        self._check("cudaStreamCreateWithFlags", ctypes.byref(self.stream), ctypes.c_uint(1))
        self._events = [self._event(), self._event()]
        self._swept = ctypes.c_void_p()
        self._swept_bytes = 0
        self.cache_bytes = self._attribute(L2_BYTES)
        self._nvml = Nvml.open(self._bus())
        self.identity = self._identify()

    def sweep(self, size_bytes: int) -> None:
        """Queue a write of `size_bytes` bytes."""
        if size_bytes > self._swept_bytes:
            self._check("cudaFree", self._swept)
            self._check("cudaMalloc", ctypes.byref(self._swept), ctypes.c_size_t(size_bytes))
            self._swept_bytes = size_bytes
        size = ctypes.c_size_t(size_bytes)
        self._check("cudaMemsetAsync", self._swept, ctypes.c_int(0), size, self.stream)

    def timed(self, launch: Launch) -> float:
        """Run `launch` between two events; it must use `stream`."""
        first, last = self._events
        self._check("cudaEventRecord", first, self.stream)
        launch()
        self._check("cudaEventRecord", last, self.stream)
        self._check("cudaEventSynchronize", last)
        milliseconds = ctypes.c_float()
        self._check("cudaEventElapsedTime", ctypes.byref(milliseconds), first, last)
        return milliseconds.value * 1e-3

    def empty(self) -> None:
        """Queue a write of four bytes, as the plug-in's `collage.touch` does."""
        self.sweep(4)

    def clocks(self) -> Clocks:
        """Read clock and throttle reasons; (0, ()) without NVML."""
        return Clocks(*self._nvml.clock()) if self._nvml else Clocks(0)

    def synchronize(self) -> None:
        """Wait for all queued work. Raises StickyError when a kernel has lost the context."""
        self._check("cudaDeviceSynchronize")

    def rates(self) -> tuple[float, float]:
        """Return float32 FLOP/s without tensor cores, and bytes/s of memory, at the highest clocks.

        A rate is 0 where the driver reports none.
        """
        capability = 10 * self._attribute(CAPABILITY_MAJOR) + self._attribute(CAPABILITY_MINOR)
        lanes = self._attribute(PROCESSORS) * LANES.get(capability, DEFAULT_LANES)
        bits = 2 * self._attribute(MEMORY_BUS_BITS)  # two transfers a cycle
        flops_per_s = 2.0 * lanes * self._attribute(CLOCK_KHZ) * 1e3
        return flops_per_s, bits / 8 * self._attribute(MEMORY_CLOCK_KHZ) * 1e3

    def tensors(self, arrays: Sequence[np.ndarray]) -> tuple[object, ...]:
        """Copy arrays to the device, as tensors."""
        import tvm

        device = tvm.cuda(self._ordinal)
        return tuple(tvm.runtime.tensor(array, device=device) for array in arrays)

    def fetch(self, tensors: Sequence[object], arrays: Sequence[np.ndarray]) -> None:
        """Wait, and copy tensors back into their source arrays."""
        self.synchronize()
        for tensor, array in zip(tensors, arrays, strict=True):
            if array.flags.writeable:
                array[...] = tensor.numpy()  # type: ignore[attr-defined]

    def on_stream(self, call: Call) -> Call:
        """Return `call`, run with this device's stream as the current one."""
        import tvm
        import tvm_ffi

        device, stream = tvm.cuda(self._ordinal), self.stream.value

        def run(*arguments: object) -> object:
            try:
                with tvm_ffi.use_raw_stream(device, stream):
                    return call(*arguments)
            except Exception:
                self.synchronize()  # a lost context explains more than the library's message
                raise

        return run

    def _check(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code == 0:
            return
        text = f"{name}: {self._cuda.cudaGetErrorString(code).decode()} ({code})"
        raise StickyError(text) if code in STICKY else MeasureError(text)

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._check("cudaEventCreate", ctypes.byref(event))
        return event

    def _attribute(self, attribute: int) -> int:
        value = ctypes.c_int()
        self._check(
            "cudaDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute),
            ctypes.c_int(self._ordinal),
        )  # fmt: skip
        return value.value

    def _bus(self) -> bytes:
        text = ctypes.create_string_buffer(32)
        self._check("cudaDeviceGetPCIBusId", text, ctypes.c_int(32), ctypes.c_int(self._ordinal))
        return text.value

    def _identify(self) -> DeviceIdentity:
        capability = f"{self._attribute(CAPABILITY_MAJOR)}{self._attribute(CAPABILITY_MINOR)}"
        if self._nvml is None:
            return DeviceIdentity("NVIDIA GPU", capability, "unknown")
        name, driver, mig, clocks, sharing = self._nvml.metadata(self._uuid())
        return DeviceIdentity(name, capability, driver, mig, clocks=clocks, sharing=sharing)

    def _uuid(self) -> bytes:
        """UUID of the device, or of the MIG slice; it never leaves this process."""
        uuid = (ctypes.c_char * 16)()
        open_driver().cuDeviceGetUuid_v2(ctypes.byref(uuid), self._ordinal)
        return bytes(uuid)
