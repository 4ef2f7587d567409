"""Session of an executable: calls of one entry's functions with named inputs.

A session is the complete path of a call: it takes the inputs, selects the function by their shapes, runs
it in the virtual machine and names the outputs. The gate times this class before the bundle exists, so
the comparison with other frameworks has the cost of a real call.

Kernels write to memory bound at their creation, and the virtual machine has one stack, so an executable
computes one call at a time. A lock serialises calls of several threads, from the placement of the first input
to the copy of the last output. The caller's code (a mapping's `__getitem__`, a tensor's `__dlpack__`) runs
before. Sessions of one `ExecutableFile`, one for each entry of a bundle, have one lock. Parallel calls need
several files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from collage.errors import BundleError, InputError
from collage.runtime.bundle_folder import VerifiedFile
from collage.runtime.cuda import Cuda, cuda
from collage.runtime.manifest import Signature
from collage.runtime.single_kernel import CallableFunction, DirectFunction
from collage.runtime.target import Target
from collage.runtime.tensor_exchange import (
    DeviceTensor,
    Feed,
    Received,
    Results,
    is_on_gpu,
    owned_results,
    receive,
)
from collage.runtime.virtual_machine import ExecutableFile, Machine, on_device, use_threads

Outputs = dict[str, np.ndarray]
Shapes = tuple[tuple[int, ...] | None, ...]
Value = TypeVar("Value")


class ExecutableSession:
    """A loaded executable, callable from any thread, one call at a time."""

    def __init__(
        self,
        executable: Path | VerifiedFile | ExecutableFile,
        signatures: tuple[Signature, ...],
        threads: int,
        device: Target = Target.CPU,
    ) -> None:
        """Load the executable and initialise its kernels.

        Args:
            executable: path of the shared library, a bundle's verified file, or an open executable.
            signatures: signatures of the entry's functions, with different input shapes.
            threads: number of threads of kernels on the CPU.
            device: device of the kernels.

        Raises:
            BundleError: the executable cannot be loaded here, or has no functions.
        """
        if not signatures:
            raise BundleError("the bundle has no functions. Compile the model again")
        self._file = (
            executable
            if isinstance(executable, ExecutableFile)
            else ExecutableFile(executable, threads, device)
        )
        gpu = cuda() if device.is_gpu else None
        self.signatures = signatures
        self._threads = threads
        self._lock = self._file.lock
        self._functions = [
            DirectFunction(signature, self._file.kernel(signature.kernel))
            if signature.kernel
            else _Function(signature, self._file.machine, gpu)
            for signature in signatures
        ]
        self.calls = {signature.function: 0 for signature in signatures}
        self._names = self._functions[0].names
        self._has_equal_names = all(
            set(function.names) == set(self._names) for function in self._functions
        )
        self._by_shapes: dict[Shapes, CallableFunction] = {
            tuple(tensor.shape for tensor in function.signature.inputs): function
            for function in reversed(self._functions)
            if function.names == self._names
        }

    @property
    def machine(self) -> Machine:
        """The virtual machine, for profiling of kernels; its calls hold no lock."""
        return self._file.machine

    def run(self, feeds: Mapping[str, object]) -> Outputs:
        """Compute the outputs for `feeds`, by name, as arrays owned by the caller.

        Raises:
            InputError: no function has such names, shapes or dtypes.
        """
        outputs = self.run_if_taken(feeds)
        if outputs is None:
            raise self.mismatch(feeds)
        return outputs

    def run_if_taken(self, feeds: Mapping[str, object]) -> Outputs | None:
        """Compute as `run`; return None if no function has these names and shapes."""
        arrays = []
        for name in self._names:
            array = feeds.get(name)
            if type(array) is not np.ndarray:
                return self._run_any(feeds)
            arrays.append(array)
        if len(feeds) != len(arrays):
            return self._run_any(feeds)
        function = self._by_shapes.get(tuple([array.shape for array in arrays]))
        if function is None:
            return None if self._has_equal_names else self._run_any(feeds)
        with self._lock:
            use_threads(self._threads)
            self.calls[function.signature.function] += 1
            return function.run_arrays(arrays)

    def run_tensors(self, feeds: Mapping[str, object], stream: int = 0) -> dict[str, DeviceTensor]:
        """Compute the outputs as tensors on the device of the kernels, for DLPack.

        Raises:
            InputError: no function has such names, shapes or dtypes.
        """
        outputs = self.run_tensors_if_taken(feeds, stream)
        if outputs is None:
            raise self.mismatch(feeds)
        return outputs

    def run_tensors_if_taken(
        self, feeds: Mapping[str, object], stream: int
    ) -> dict[str, DeviceTensor] | None:
        """Compute as `run_tensors`; return None if no function has these names and shapes."""
        function, values = self._select(feeds, stream)
        if function is None:
            return None
        with self._lock:
            use_threads(self._threads)
            self.calls[function.signature.function] += 1
            return function.run_tensors(values, stream)

    def mismatch(self, feeds: Mapping[str, object]) -> InputError:
        """Return the error for inputs that no function takes."""
        return InputError(_mismatch(self.signatures, _shapes(feeds)))

    def _run_any(self, feeds: Mapping[str, object]) -> Outputs | None:
        """Run on any inputs accepted by `receive`."""
        function, values = self._select(feeds, 0)
        if function is None:
            return None
        with self._lock:
            use_threads(self._threads)
            self.calls[function.signature.function] += 1
            if not any(map(is_on_gpu, values.values())):
                return function.run(values)
            outputs = function.run_tensors(values, 0)
            return {name: output.numpy() for name, output in outputs.items()}

    def _select(
        self, feeds: Mapping[str, object], stream: int
    ) -> tuple[CallableFunction | None, dict[str, Received]]:
        """Return the function of these names and shapes, with the received inputs."""
        if not any(feeds.keys() == set(function.names) for function in self._functions):
            return None, {}
        values = {name: receive(name, value, stream) for name, value in feeds.items()}
        shapes = {name: tuple(value.shape) for name, value in values.items()}
        for function in self._functions:
            if shapes == {tensor.name: tensor.shape for tensor in function.signature.inputs}:
                return function, values
        return None, values


class _Function:
    """A function of the executable, on tensors of the host and, on a GPU, of the device.

    The caller holds the session's lock.
    """

    def __init__(self, signature: Signature, machine: Machine, gpu: Cuda | None) -> None:
        name = signature.function
        self.signature = signature
        self.names = tuple(tensor.name for tensor in signature.inputs)
        self._outputs = tuple(tensor.name for tensor in signature.outputs)
        self._gpu = gpu
        self._feed, self._function = Feed(signature.inputs), machine[name]
        self._results = Results(self._function, signature.outputs)
        self._device_feed = Feed(signature.inputs, gpu) if gpu else self._feed
        self._device_function = machine[on_device(name)] if gpu else self._function
        self._stream = 0

    def run_arrays(self, arrays: Sequence[np.ndarray]) -> Outputs:
        """Run on arrays of the right shapes, in the function's order."""
        self._follow(0)
        return self._results.call(self._feed.host_arguments(arrays))

    def run(self, values: Mapping[str, Received]) -> Outputs:
        """Run on values of the host."""
        self._follow(0)
        return self._results.call(self._feed.arguments(values, 0))

    def run_tensors(self, values: Mapping[str, Received], stream: int) -> dict[str, DeviceTensor]:
        """Run where the kernels are, on a stream."""
        if self._gpu is None:
            arguments = self._feed.arguments(values, 0)
            results = self._listed(self._function(*arguments))
            return self._named(owned_results(results, arguments, None, 0))
        import tvm_ffi

        self._follow(stream)
        arguments = self._device_feed.arguments(values, stream)
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream):
            results = self._listed(self._device_function(*arguments))
        return self._named(owned_results(results, arguments, self._gpu, stream))

    def _follow(self, stream: int) -> None:
        """Let a new stream wait for the last one: kernels use the same memory in every call."""
        if self._gpu:
            self._gpu.order(self._stream, stream)
        self._stream = stream

    def _listed(self, result: Any) -> Sequence[Any]:
        return (result,) if len(self._outputs) == 1 else tuple(result)

    def _named(self, outputs: Sequence[Value]) -> dict[str, Value]:
        return dict(zip(self._outputs, outputs, strict=True))


def shapes_text(feeds: Mapping[str, object]) -> str:
    """Return the shapes of the inputs as text, for messages and counts.

    >>> shapes_text({"x": np.zeros((3, 8)), "n": 5})
    'x: [3, 8], n: []'
    """
    return ", ".join(f"{name}: {list(shape)}" for name, shape in _shapes(feeds).items())


def _shapes(feeds: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs; a list counts as an array of one dimension."""
    shapes = {}
    for name, value in feeds.items():
        shape = getattr(value, "shape", None)
        if shape is None:
            shape = (len(value),) if isinstance(value, list | tuple | dict) else ()
        shapes[name] = tuple(int(extent) for extent in shape)
    return shapes


def _mismatch(signatures: tuple[Signature, ...], shapes: Mapping[str, tuple[int, ...]]) -> str:
    expected = [tensor.name for tensor in signatures[0].inputs]
    unknown, missing = sorted(set(shapes) - set(expected)), sorted(set(expected) - set(shapes))
    if unknown or missing:
        parts = [f"unknown input {name!r}" for name in unknown]
        parts += [f"missing input {name!r}" for name in missing]
        return f"{', '.join(parts)}; expected {_inputs_text(signatures[0])}"
    received = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
    options = " or ".join(f"({_inputs_text(signature)})" for signature in signatures)
    return f"no function of the bundle takes the shapes ({received}); expected {options}"


def _inputs_text(signature: Signature) -> str:
    return ", ".join(str(tensor) for tensor in signature.inputs)
