"""Where kernels are tuned: the backend whose schedules are searched for, and what it compiles for."""

from typing import TYPE_CHECKING

from collage.backends.base import Backend
from collage.backends.cpu.tvm import TunableTvm
from collage.backends.nvidia.tvm_cuda import TvmCudaBackend

if TYPE_CHECKING:
    import tvm


def tunable(device: str) -> Backend:
    """Return the backend that takes what can be tuned on a device; it applies the traces too."""
    return TvmCudaBackend() if device == "cuda" else TunableTvm()


def target_on(device: str, threads: int) -> "tvm.target.Target":
    """Return what this machine's kernels on a device are compiled for."""
    if device == "cuda":
        from collage.backends.nvidia.tvm_cuda.schedule import cuda_target

        return cuda_target()
    from collage.backends.common.tvm.target import host_target

    return host_target(threads)


def toolchain(threads: int, device: str) -> str:
    """Name what makes kernels of traces: TVM's version and schedules, and the target."""
    return f"{tunable(device).identity} {target_on(device, threads)}"
