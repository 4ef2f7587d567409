"""The kernel builder of a worker that measures regions of imported functions."""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import tvm_ffi

from collage.backends.base import BackendRole, Kernel, PluginKernel
from collage.backends.registry import available_backends
from collage.errors import BackendError, MeasureError
from collage.frontend.inputs import load_reference
from collage.frontend.load_function import load_function
from collage.frontend.model import Function
from collage.frontend.quantisation_steps import output_steps
from collage.frontend.region import probability_outputs, region_values
from collage.graph.index_set import IndexSet
from collage.graph.quantisation import is_quantised
from collage.measure.call_overhead import (
    DispatchOverhead,
    cpu_dispatch_overhead_s,
    gpu_dispatch_overhead,
)
from collage.measure.callable_kernel import (
    BlobKernel,
    as_tensors,
    callable_kernel,
    poisoned_like,
)
from collage.measure.cuda_device import CudaDevice
from collage.measure.device import Device
from collage.measure.edge_judgement import EdgeCases, EdgeJudgement, EdgeRules, judge_edges
from collage.measure.kernel_builder import Prepared, ordinary_inputs_after, run_on
from collage.measure.kernel_file import kernel_name, load_kernel, save_kernel
from collage.measure.measurement_request import MeasurementRequest, compile_request
from collage.measure.messages import Setup
from collage.measure.timing import Call
from collage.runtime.arrays import aligned_copy
from collage.runtime.plugin import load_plugin


class FunctionKernelBuilder:
    """Builds regions of imported functions with the registered backends."""

    def __init__(self, setup: Setup) -> None:
        load_plugin()
        tvm_ffi.get_global_func("collage.set_threads")(setup.threads)
        self.empty: Call = tvm_ffi.get_global_func("testing.nop")
        wake = tvm_ffi.get_global_func("collage.wake_threads")
        self.wake: Callable[[], object] | None = wake if setup.threads > 1 else None
        self._build, self.device = setup.build, setup.device
        self._functions = {name: load_function(path, name) for name, path in setup.functions}
        part = (
            BackendRole.ALL
            if setup.kernels is None
            else BackendRole.BUILD
            if setup.builds
            else BackendRole.RUN
        )
        backends = available_backends(setup.backends, setup.device, part)
        self._backends = {backend.name: backend for backend in backends}
        self._reference_dir = setup.reference_dir
        self._kernels = setup.kernels.path if setup.kernels else None
        self._last_cases: tuple[tuple[str, IndexSet], EdgeCases] | None = None
        self._gpu: CudaDevice | None = None
        if setup.device.is_gpu and not setup.builds:
            self._gpu = CudaDevice()

    def open_device(self) -> Device:
        if self._gpu is None:
            raise MeasureError("this worker measures on the CPU")
        return self._gpu

    def prepare(self, work: MeasurementRequest) -> Prepared:
        if self._kernels is None:
            return self.with_buffers(work, self._compile(work))
        kernel, built_s = load_kernel(self._kernels / kernel_name(work))
        return replace(self.with_buffers(work, kernel), built_s=built_s)

    def build(self, work: MeasurementRequest) -> None:
        assert self._kernels is not None, "a setup that builds names a folder"
        start = time.monotonic()
        kernel = self._compile(work)
        file = self._kernels / kernel_name(work)
        save_kernel(kernel, self._build.threads, time.monotonic() - start, file)

    def _compile(self, work: MeasurementRequest) -> Kernel:
        backend = self._backends.get(work.backend)
        if backend is None:
            raise BackendError(f"the backend {work.backend} is not available in the worker")
        function = self._functions[work.function]
        return compile_request(backend, function, work, self._build)

    def function(self, name: str) -> Function:
        """Return the function of that name."""
        return self._functions[name]

    def with_buffers(self, work: MeasurementRequest, kernel: object) -> Prepared:
        """Return a kernel of the request's region, ready to be called."""
        function = self._functions[work.function]
        input_names, output_names = region_values(function, work.nodes)
        expected = tuple(self._value(name) for name in output_names)
        inputs = tuple(aligned_copy(self._value(name)) for name in input_names)
        allocates = isinstance(kernel, PluginKernel | BlobKernel) and kernel.allocates
        outputs = () if allocates else tuple(poisoned_like(value) for value in expected)
        call, constants = callable_kernel(kernel, self._build.threads)
        arrays = [*inputs, *constants, *outputs]
        fetch = None
        if self._gpu is None:
            arguments = as_tensors(arrays)
        else:
            arguments = self._gpu.tensors(arrays)
            call = self._gpu.on_stream(call)
            fetch = functools.partial(self._gpu.fetch, arguments, arrays)
        certain = probability_outputs(function)
        prepared = Prepared(
            call,
            arguments,
            inputs,
            outputs,
            expected=expected,
            quantised=is_quantised(function.graph, work.nodes),
            allocates=allocates,
            reduced=work.variant in self._backends[work.backend].reduced,
            draws=bool(work.nodes & function.drawing),
            is_one_draw=work.nodes.bit_count() == 1,
            probabilities=frozenset(
                place for place, name in enumerate(output_names) if name in certain
            ),
            quantisation_steps=output_steps(function, work.nodes, output_names),
            fetch=fetch,
        )
        if self._gpu is not None or prepared.draws:  # two draws differ, whatever the inputs are
            return prepared
        return replace(prepared, judge_edges=functools.partial(self._judge_edges, work, prepared))

    def _judge_edges(self, work: MeasurementRequest, prepared: Prepared) -> EdgeJudgement:
        backend = self._backends[work.backend]
        rules = EdgeRules(
            quantised=prepared.quantised, reduced=prepared.reduced, spreads_nan=backend.spreads_nan
        )
        with ordinary_inputs_after(prepared):
            run = functools.partial(run_on, prepared)
            return judge_edges(self._edge_cases(work.function, work.nodes), run, rules)

    def _edge_cases(self, name: str, nodes: IndexSet) -> EdgeCases:
        """Return the cases of a region; its variants usually follow one another, so the last are kept."""
        if self._last_cases is None or self._last_cases[0] != (name, nodes):
            function = self._functions[name]
            inputs, _ = region_values(function, nodes)
            cases = EdgeCases(function, nodes, [np.array(self._value(value)) for value in inputs])
            self._last_cases = ((name, nodes), cases)
        return self._last_cases[1]

    def boundary(self) -> DispatchOverhead:
        return (
            gpu_dispatch_overhead(self._gpu.synchronize)
            if self._gpu
            else DispatchOverhead(cpu_dispatch_overhead_s())
        )

    @functools.cached_property
    def _reference(self) -> Mapping[str, np.ndarray]:
        return load_reference(self._reference_dir)

    def _value(self, name: str) -> np.ndarray:
        try:
            return self._reference[name]
        except KeyError:
            raise MeasureError(f"there is no reference value of {name!r}") from None
