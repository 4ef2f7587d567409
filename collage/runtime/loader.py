"""Run a bundle: what serving needs, and nothing more.

Needs numpy, tvm-ffi and the vendor libraries that the bundle's kernels call; no compiler, no ONNX, no
vendor's Python package. What goes in and out, and when it is copied, is in `collage.runtime.exchange`. A
`LoadedBundle` is for one thread at a time; load the bundle once a thread to run it in several.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from collage.errors import BundleError, InputError
from collage.runtime.arrays import load_arrays
from collage.runtime.cuda import Cuda, cuda
from collage.runtime.exchange import DeviceTensor, Feed, Received, given, is_on_gpu, receive
from collage.runtime.machine import Machine, on_device, start_machine
from collage.runtime.manifest import (
    Manifest,
    Precision,
    Signature,
    declare_libraries,
    read_manifest,
    verify_files,
    verify_machine,
)
from collage.runtime.precision import output_error

Outputs = dict[str, np.ndarray]
One = TypeVar("One")

TOLERANCE = {
    "bfloat16": (5e-2, 2e-2),
    "float16": (1e-2, 5e-3),
    "float32": (1e-3, 1e-4),
    "float64": (1e-3, 1e-4),
}
"""Relative and absolute (of the largest expected magnitude) tolerance: those of the gate."""
QUANTISED_TOLERANCE = (1e-2, 2e-2)


def load(folder: Path | str) -> "LoadedBundle":
    """Load the bundle in `folder` and initialise its kernels.

    Raises:
        BundleError: incomplete, changed, or made for another processor or library version.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    verify_files(folder, manifest)
    declare_libraries(manifest)
    verify_machine(manifest)
    return LoadedBundle(folder, manifest)


class LoadedBundle:
    """A bundle that is ready to run; `load` makes it."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        os.environ["TVM_NUM_THREADS"] = str(manifest.threads)
        machine = start_machine(folder / manifest.executable, manifest.threads, manifest.device)
        gpu = cuda() if manifest.device == "cuda" else None
        self._functions = [_Function(one, machine, gpu) for one in manifest.functions]

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """The functions, one a shape set, with names, shapes and dtypes of inputs and outputs."""
        return self.manifest.functions

    def run(self, inputs: Mapping[str, object]) -> Outputs:
        """Compute the outputs for `inputs`, by name, as arrays; shapes choose the function.

        Args:
            inputs: numpy arrays (bfloat16 ones are those of ml_dtypes), or what has `__dlpack__`.

        Raises:
            InputError: a name, shape or dtype that the bundle does not have.
        """
        values = _received(inputs, 0)
        function = self._select(values)
        if any(map(is_on_gpu, values.values())):
            outputs = function.run_tensors(values, 0)
            return {name: output.numpy() for name, output in outputs.items()}
        return function.run(values)

    def run_tensors(
        self, inputs: Mapping[str, object], stream: int | None = None
    ) -> dict[str, DeviceTensor]:
        """Compute the outputs as tensors on the device of the bundle's kernels, for DLPack.

        Inputs that lie there are read in place. On a GPU this returns as soon as all is queued.

        Args:
            inputs: as those of `run`.
            stream: of CUDA, on which kernels run: its handle, e.g. PyTorch's
                `torch.cuda.current_stream().cuda_stream`. None is the default stream.

        Raises:
            InputError: a name, shape or dtype that the bundle does not have.
        """
        values = _received(inputs, stream or 0)
        return self._select(values).run_tensors(values, stream or 0)

    def check(self) -> None:
        """Compare every function with the golden data. Raises BundleError when numbers differ."""
        for function in self._functions:
            inputs, expected = self._golden(function.signature.function)
            found = list(function.run(inputs).items())
            if self.manifest.device != "cpu":
                tensors = function.run_tensors(inputs, 0)
                found += [(name, value.numpy()) for name, value in tensors.items()]
            for name, value in found:
                what = function.signature.function, name
                precision = self.manifest.precision
                if precision is not None and precision.reduced:
                    _compare_within(what, value, expected[name], precision)
                else:
                    quantised = self.manifest.quantised
                    _compare(f"{what[0]}, output {name}", value, expected[name], quantised)

    def benchmark(self, seconds: float = 3.0) -> float:
        """Median seconds of one call of the first function on the golden inputs."""
        function = self._functions[0]
        arguments = function.arguments(self._golden(function.signature.function)[0])
        function.call(arguments)
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while not samples or time.perf_counter() < end:
            start = time.perf_counter_ns()
            function.call(arguments)
            samples.append((time.perf_counter_ns() - start) * 1e-9)
        return statistics.median(samples)

    def _select(self, values: Mapping[str, Received]) -> "_Function":
        shapes = {name: tuple(value.shape) for name, value in values.items()}
        for function in self._functions:
            if shapes == {tensor.name: tensor.shape for tensor in function.signature.inputs}:
                return function
        raise InputError(_mismatch(self.signatures, shapes))

    def _golden(self, function: str) -> tuple[Outputs, Outputs]:
        try:
            data = load_arrays(self.folder / "golden.npz")
        except (OSError, ValueError) as error:
            raise BundleError(f"{self.folder} has no golden data: {error}") from error
        found = [
            {
                name.removeprefix(prefix): value
                for name, value in data.items()
                if name.startswith(prefix)
            }
            for prefix in (f"{function}/input/", f"{function}/output/")
        ]
        return found[0], found[1]


class _Function:
    """A function of the executable, on the host's tensors and, on a GPU, on those of the device."""

    def __init__(self, signature: Signature, machine: Machine, gpu: Cuda | None) -> None:
        name = signature.function
        self.signature = signature
        self._gpu = gpu
        self._feed, self._function = Feed(signature.inputs), machine[name]
        self._device_feed = Feed(signature.inputs, gpu) if gpu else self._feed
        self._device_function = machine[on_device(name)] if gpu else self._function
        self._stream = 0

    def run(self, values: Mapping[str, Received]) -> Outputs:
        """Run on values of the host."""
        outputs = self.call(self.arguments(values))
        return self._named([DeviceTensor(output).numpy() for output in outputs])

    def arguments(self, values: Mapping[str, Received]) -> list[Any]:
        """Return what `call` takes."""
        return self._feed.arguments(values, 0)

    def call(self, arguments: Sequence[Any]) -> list[Any]:
        """Run on tensors of the host; return the outputs in order."""
        if self._gpu:
            self._follow(0)
        return self._listed(self._function(*arguments))

    def run_tensors(self, values: Mapping[str, Received], stream: int) -> dict[str, DeviceTensor]:
        """Run where the kernels are, on a stream."""
        if self._gpu is None:
            arguments = self.arguments(values)
            return self._named(given(self.call(arguments), arguments, None, 0))
        import tvm_ffi

        self._follow(stream)
        arguments = self._device_feed.arguments(values, stream)
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream):
            results = self._listed(self._device_function(*arguments))
        return self._named(given(results, arguments, self._gpu, stream))

    def _follow(self, stream: int) -> None:
        """Kernels use the same memory in every call: another stream waits for the last one."""
        if self._gpu:
            self._gpu.order(self._stream, stream)
        self._stream = stream

    def _listed(self, result: Any) -> list[Any]:
        return [result] if len(self.signature.outputs) == 1 else list(result)

    def _named(self, outputs: Sequence[One]) -> dict[str, One]:
        names = [tensor.name for tensor in self.signature.outputs]
        return dict(zip(names, outputs, strict=True))


def _received(inputs: Mapping[str, object], stream: int) -> dict[str, Received]:
    return {name: receive(name, value, stream) for name, value in inputs.items()}


def _mismatch(signatures: tuple[Signature, ...], shapes: Mapping[str, tuple[int, ...]]) -> str:
    expected = [tensor.name for tensor in signatures[0].inputs]
    unknown, missing = sorted(set(shapes) - set(expected)), sorted(set(expected) - set(shapes))
    if unknown or missing:
        parts = [f"unknown input {name!r}" for name in unknown]
        parts += [f"missing input {name!r}" for name in missing]
        return f"{', '.join(parts)}; expected {_inputs_text(signatures[0])}"
    given = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
    options = " or ".join(f"({_inputs_text(signature)})" for signature in signatures)
    return f"no function of the bundle takes the shapes ({given}); expected {options}"


def _inputs_text(signature: Signature) -> str:
    return ", ".join(str(tensor) for tensor in signature.inputs)


def _compare(what: str, value: np.ndarray, expected: np.ndarray, quantised: bool) -> None:
    if value.shape != expected.shape or value.dtype != expected.dtype:
        raise BundleError(
            f"self check: {what} is {value.dtype}{list(value.shape)}, "
            f"expected {expected.dtype}{list(expected.shape)}"
        )
    tolerance = TOLERANCE.get(expected.dtype.name, (0.0, 0.0))
    step = int(quantised and expected.dtype.itemsize == 1 and expected.dtype.kind in "iu")
    relative, absolute = QUANTISED_TOLERANCE if quantised and any(tolerance) else tolerance
    scale = float(np.abs(expected).max(initial=0.0)) if relative else 0.0
    wide = np.promote_types(expected.dtype, np.float32) if relative else expected.dtype
    reference, found = expected.astype(wide, copy=False), value.astype(wide, copy=False)
    if not np.allclose(found, reference, relative, absolute * scale + step, equal_nan=True):
        worst = np.abs(value.astype("float64") - expected.astype("float64")).max()
        raise BundleError(
            f"self check: {what} differs from the golden data by up to {worst:.3g}. The machine or "
            "a library computes other numbers: do not serve this bundle here."
        )


def _compare_within(
    what: tuple[str, str], value: np.ndarray, expected: np.ndarray, precision: Precision
) -> None:
    function, name = what
    error = output_error(expected, value, probability=name in precision.probabilities)
    if error > precision.tolerance:
        raise BundleError(
            f"self check: {function}, output {name} has an error of {error:.3g}, above the tolerance of "
            f"{precision.tolerance:g}. The machine or a library computes other numbers: do not serve "
            "this bundle here."
        )
