"""Backend and compilation target of tuning, by device."""

from typing import TYPE_CHECKING

from collage.backends.base import Backend
from collage.backends.cpu.tvm import TunableTvm
from collage.backends.nvidia.tvm_cuda import TvmCudaBackend
from collage.runtime.target import Target

if TYPE_CHECKING:
    import tvm


def tunable(device: Target) -> Backend:
    """Return the backend of tuned kernels on a device; it also applies the traces."""
    return TvmCudaBackend() if device.is_gpu else TunableTvm()


def target_on(device: Target, threads: int) -> "tvm.target.Target":
    """Return the compilation target of this machine's kernels on a device."""
    if device.is_gpu:
        from collage.backends.nvidia.tvm_cuda.schedule import cuda_target

        return cuda_target()
    from collage.backends.common.tvm.target import host_target

    return host_target(threads)


def toolchain(threads: int, device: Target) -> str:
    """Return the identity of the toolchain: TVM's version and schedules, and the target."""
    return f"{tunable(device).identity} {target_on(device, threads)}"
