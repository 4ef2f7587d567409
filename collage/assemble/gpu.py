"""Assemble kernels for a GPU: the same calls, on device tensors, with copies at the function's borders.

The function takes and returns host tensors. An input is copied to the device where the first kernel reads
it, a result is copied back at the end; both are kernels of the plug-in on the machine's current stream. All
other values stay in device memory that TVM's planner lays out once, as it does the host's; constants are
uploaded when the machine starts. The same kernels are called by a second function, without the copies,
whose inputs and results are tensors of the device. Kernels that TVM generated are machine code inside
the file, made by nvcc here; those that nvcc compiled from templates travel as their shared library.

Where every kernel allows it, TVM's own pass makes each run of kernels one CUDA graph: captured by the
first call, replayed by the later ones. Where inputs are the caller's own tensors, kernels that read them
are launched alone, since a graph holds addresses. A kernel that waits for the host cannot be captured
(`captures`), and a plan with one has no graphs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax

from collage.assemble.executable import FunctionPlan, Places, PlannedKernel, relax_type
from collage.backends.base import CudaKernel, Kernel, PluginKernel, TirKernel
from collage.backends.nvidia.tvm_cuda.executable import devices
from collage.errors import BackendError
from collage.frontend import Function
from collage.runtime.blob import Header, pack
from collage.runtime.virtual_machine import on_device

if TYPE_CHECKING:
    from collage.graph.dataflow import OpenType, TensorType

LIBRARY_KIND = "cuda_library"
TO_DEVICE, TO_HOST = "collage.copy_to_device", "collage.copy_to_host"


class GpuPlaces(Places):
    """Inputs and results of the function are on the host, what kernels read and write on the device."""

    def __init__(self, builder: relax.BlockBuilder, function: Function, threads: int) -> None:
        super().__init__(builder, function)
        self._gpu, self._host = devices(threads)
        self._params: dict[str, relax.Expr] = {}

    def type_of(self, value: str) -> relax.TensorType:
        return relax_type(self._known_type(value), self._gpu)

    def param_type(self, value: str) -> relax.TensorType:
        return relax_type(self._known_type(value), self._host)

    def enter(self, value: str, param: relax.Var) -> None:
        self._params[value] = param

    def argument(self, value: str) -> relax.Expr:
        if value not in self.known:
            self.known[value] = self._copied(TO_DEVICE, self._params[value], self.type_of(value))
        return self.known[value]

    def result(self, value: str) -> relax.Expr:
        if value in self._params:
            return self._params[value]
        if value not in self.known:  # a constant: those of an executable lie on its first device
            self.known[value] = relax.const(tvm.runtime.tensor(self.function.weights[value]))
        return self._copied(TO_HOST, self.known[value], self.param_type(value))

    def plugin_kernel(self, planned: PlannedKernel) -> Kernel | None:
        match planned.kernel:
            case CudaKernel():
                return library_kernel(planned.kernel, len(planned.inputs))
            case PluginKernel(allocates=True):
                raise BackendError(
                    f"a kernel of {planned.backend} makes tensors whose shape depends on data: "
                    "an executable for a GPU has none"
                )
        return planned.kernel

    def _copied(self, function: str, value: relax.Expr, to: relax.TensorType) -> relax.Expr:
        return self.builder.emit(
            relax.op.call_dps_packed(function, relax.Tuple([value]), out_ty=to)
        )

    def _known_type(self, value: str) -> "TensorType | OpenType":
        known_type = self.function.graph.types.get(value)
        if known_type is None:
            raise BackendError(
                f"the shape of {value!r} depends on data: an executable for a GPU has no such values"
            )
        return known_type


class DevicePlaces(GpuPlaces):
    """Inputs and results of the function are on the device too, and nothing is copied."""

    @property
    def name(self) -> str:
        return on_device(self.function.name)

    def param_type(self, value: str) -> relax.TensorType:
        return self.type_of(value)

    def enter(self, value: str, param: relax.Var) -> None:
        self.known[value] = param

    def result(self, value: str) -> relax.Expr:
        return Places.result(self, value)


def library_kernel(kernel: CudaKernel, inputs: int) -> PluginKernel:
    """Return a kernel that nvcc compiled as one of the plug-in, which carries the file."""
    symbol = f"__tvm_ffi_{kernel.symbol}"
    header: Header = {"symbol": symbol, "inputs": inputs, "scratch": kernel.scratch}
    image = np.frombuffer(kernel.file.read_bytes(), np.uint8)
    return PluginKernel(LIBRARY_KIND, pack(header, [image, *kernel.constants]))


def captures(plans: Sequence[FunctionPlan]) -> bool:
    """Tell whether all kernels of the plans may be captured in a CUDA graph."""
    return all(
        planned.kernel is None or _captures(planned.kernel)
        for plan in plans
        for planned in plan.kernels
    )


def _captures(kernel: Kernel) -> bool:
    return isinstance(kernel, CudaKernel | TirKernel) or kernel.captures
