"""Turn a piece of work into something that can be called, inside a worker process."""

import functools
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from collage.errors import BackendError, MeasureError
from collage.measure.call_overhead import Boundary, gpu_boundary, vm_call_s
from collage.measure.cuda_device import CudaDevice
from collage.measure.device import Device
from collage.measure.kernel_file import LibraryKernel, kernel_name, load_kernel, save_kernel
from collage.measure.measurement_request import Work
from collage.measure.messages import Setup
from collage.measure.numerics import difference, reduced_difference
from collage.measure.timing import Call
from collage.runtime.arrays import aligned_copy, aligned_empty, as_array, as_tensor

if TYPE_CHECKING:
    import tvm

    from collage.backends.base import Kernel, TirKernel
    from collage.frontend.model import Function

POISON = 0x5A


@dataclass(frozen=True)
class Prepared:
    """A kernel with its buffers: `call(*arguments)` reads `inputs` and writes `outputs`.

    The arrays alias the tensors in `arguments`. `expected` are the reference outputs. A kernel that
    `allocates` has no `outputs`: it returns them. One that is `reduced` computes in less than float32;
    `probabilities` are the positions of outputs with a scale of 1.
    """

    call: Call
    arguments: tuple[object, ...]
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    quantised: bool = False
    allocates: bool = False
    reduced: bool = False
    probabilities: frozenset[int] = frozenset()
    fetch: Callable[[], None] | None = None
    """Brings inputs and outputs back from a device into the arrays."""
    built_s: float = 0.0
    """Seconds that a build took elsewhere; 0 for a kernel that was built here."""

    def judge(self, found: Sequence[np.ndarray]) -> tuple[str, float]:
        """Return what is wrong with the outputs, or "", and the error of a reduced kernel, else 0."""
        if self.reduced:
            return reduced_difference(self.expected, found, self.probabilities)
        return difference(self.expected, found, quantised=self.quantised), 0.0

    def results(self, returned: object) -> tuple[np.ndarray, ...]:
        """Return the outputs of a call that gave `returned`."""
        if self.fetch:
            self.fetch()
        if not self.allocates:
            return self.outputs
        tensors = [returned] if len(self.expected) == 1 else list(returned)  # type: ignore[call-overload]
        return tuple(as_array(tensor) for tensor in tensors)


class Workshop(Protocol):
    """Makes kernels. A test or an embedding program may bring its own (`Setup.loader`)."""

    empty: Call
    """A native function that takes any arguments and does nothing."""
    wake: Callable[[], object] | None
    """Wakes the threads that kernels share; None where kernels have one thread."""

    def prepare(self, work: Work) -> Prepared:
        """Build the kernel of `work` with buffers. May raise anything: the reason counts."""
        ...

    def build(self, work: Work) -> None:
        """Build the kernel of `work` and leave it in the setup's folder. May raise anything."""
        ...

    def boundary(self) -> Boundary:
        """Measure what the executable adds to each kernel call."""
        ...

    def open_device(self) -> Device:
        """Return the device that kernels run on, where that is not the CPU."""
        ...


def open_workshop(setup: Setup) -> Workshop:
    """Make the workshop that `setup.loader` names."""
    module, _, name = setup.loader.partition(":")
    workshop: Workshop = getattr(importlib.import_module(module), name)(setup)
    return workshop


class FunctionWorkshop:
    """Builds regions of imported functions with the registered backends."""

    def __init__(self, setup: Setup) -> None:
        import tvm_ffi

        from collage.backends.base import Part
        from collage.backends.registry import available_backends
        from collage.frontend.load_function import load_function
        from collage.runtime.plugin import load_plugin

        load_plugin()
        tvm_ffi.get_global_func("collage.set_threads")(setup.threads)
        self.empty: Call = tvm_ffi.get_global_func("testing.nop")
        wake = tvm_ffi.get_global_func("collage.wake_threads")
        self.wake: Callable[[], object] | None = wake if setup.threads > 1 else None
        self._threads, self.device = setup.threads, setup.device
        self._functions = {name: load_function(path, name) for name, path in setup.functions}
        part = Part.ALL if setup.kernels is None else Part.BUILD if setup.builds else Part.RUN
        found = available_backends(setup.backends, setup.device, part)
        self._backends = {one.name: one for one in found}
        for backend in self._backends.values():
            backend.recipes, backend.cache = setup.recipes, setup.cache
        self._reference_dir, self._kernels = setup.reference_dir, setup.kernels
        self._gpu: CudaDevice | None = None
        if setup.device != "cpu" and not setup.builds:
            self._gpu = CudaDevice()

    def open_device(self) -> Device:
        if self._gpu is None:
            raise MeasureError("this worker measures on the CPU")
        return self._gpu

    def prepare(self, work: Work) -> Prepared:
        if self._kernels is None:
            return self.with_buffers(work, self._compiled(work))
        kernel, built_s = load_kernel(self._kernels / kernel_name(work))
        return replace(self.with_buffers(work, kernel), built_s=built_s)

    def build(self, work: Work) -> None:
        assert self._kernels is not None, "a setup that builds names a folder"
        start = time.monotonic()
        kernel = self._compiled(work)
        file = self._kernels / kernel_name(work)
        save_kernel(kernel, self._threads, time.monotonic() - start, file)

    def _compiled(self, work: Work) -> "Kernel":
        backend = self._backends.get(work.backend)
        if backend is None:
            raise BackendError(f"the backend {work.backend} is not available in the worker")
        function = self._functions[work.function]
        return backend.compile(function, work.nodes, self._threads, work.variant)

    def function(self, name: str) -> "Function":
        """Return the function that works call so."""
        return self._functions[name]

    def with_buffers(self, work: Work, kernel: object) -> Prepared:
        """Return a kernel of the work's region, ready to be called."""
        from collage.backends.base import PluginKernel
        from collage.frontend.region import probability_outputs, region_values
        from collage.graph.index_set import indices

        function = self._functions[work.function]
        input_names, output_names = region_values(function, work.nodes)
        expected = tuple(self._value(name) for name in output_names)
        inputs = tuple(aligned_copy(self._value(name)) for name in input_names)
        allocates = isinstance(kernel, PluginKernel) and kernel.allocates
        outputs = () if allocates else tuple(poisoned_like(value) for value in expected)
        call, constants = callable_kernel(kernel, self._threads)
        arrays = [*inputs, *constants, *outputs]
        fetch = None
        if self._gpu is None:
            arguments = as_tensors(arrays)
        else:
            arguments = self._gpu.tensors(arrays)
            call = self._gpu.on_stream(call)
            fetch = functools.partial(self._gpu.fetch, arguments, arrays)
        ops = (function.graph.nodes[node].op for node in indices(work.nodes))
        quantised = any("Quant" in op or "QLinear" in op for op in ops)
        certain = probability_outputs(function)
        return Prepared(
            call,
            arguments,
            inputs,
            outputs,
            expected,
            quantised,
            allocates,
            work.variant in self._backends[work.backend].reduced,
            frozenset(place for place, name in enumerate(output_names) if name in certain),
            fetch,
        )

    def boundary(self) -> Boundary:
        return gpu_boundary(self._gpu.synchronize) if self._gpu else Boundary(vm_call_s())

    @functools.cached_property
    def _reference(self) -> Mapping[str, np.ndarray]:
        from collage.frontend.inputs import load_reference

        return load_reference(self._reference_dir)

    def _value(self, name: str) -> np.ndarray:
        try:
            return self._reference[name]
        except KeyError:
            raise MeasureError(f"there is no reference value of {name!r}") from None


def callable_kernel(kernel: object, threads: int) -> tuple[Call, tuple[np.ndarray, ...]]:
    """Return the kernel's function, and what goes between inputs and outputs: constants, scratch memory."""
    import tvm_ffi

    from collage.backends.base import CudaKernel, PluginKernel, TirKernel

    match kernel:
        case PluginKernel(kind, blob):
            module = tvm_ffi.get_global_func("collage.create_module")(kind, "kernel", blob)
            return module.get_function("kernel"), ()
        case TirKernel(_, symbol, constants):
            return compiled_module(kernel, threads)[symbol], tuple(map(aligned_copy, constants))
        case LibraryKernel(file, symbol, constants, scratch) | CudaKernel(
            file, symbol, constants, scratch
        ):
            memory = (np.zeros(scratch, np.uint8),) if scratch else ()
            further = (*map(aligned_copy, constants), *memory)
            return tvm_ffi.load_module(str(file))[symbol], further
    raise BackendError(f"a backend returned {type(kernel).__name__} instead of a kernel")


def compiled_module(kernel: "TirKernel", threads: int) -> "tvm.runtime.Executable":
    """Compile the kernel's function for the device that it is meant for."""
    import tvm

    from collage.backends.common.tvm.target import host_target

    if kernel.device == "cuda":
        from collage.backends.nvidia.tvm_cuda.schedule import cuda_module

        return cuda_module(kernel.module)
    function = kernel.module[kernel.symbol].with_attr("global_symbol", kernel.symbol)
    module = tvm.IRModule({kernel.symbol: function})
    return tvm.compile(module, target=host_target(threads))


def as_tensors(arrays: Sequence[np.ndarray]) -> tuple[object, ...]:
    """Return tensors that alias the arrays."""
    return tuple(map(as_tensor, arrays))


def poisoned_like(value: np.ndarray) -> np.ndarray:
    """Make an aligned output buffer whose content no right kernel would leave."""
    made = aligned_empty(value.shape, value.dtype)
    if made.dtype.kind == "f":
        made.fill(np.nan)
    elif made.dtype.kind != "b":
        made.reshape(-1).view(np.uint8).fill(POISON)
    else:
        np.logical_not(value, out=made)
    return made
