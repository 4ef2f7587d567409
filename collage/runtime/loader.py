"""Run a bundle: what serving needs, and nothing more.

Needs numpy, tvm-ffi and the vendor libraries that the bundle's kernels call; no compiler, no ONNX, no
vendor's Python package. Inputs are copied into aligned buffers that live as long as the bundle, so
kernels see the same memory on every call and need not bind it again. A `LoadedBundle` is for one
thread at a time; load the bundle once a thread to run it in several.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from collage.errors import BundleError, InputError
from collage.runtime.machine import start_machine
from collage.runtime.manifest import (
    Manifest,
    Precision,
    Signature,
    Tensor,
    declare_libraries,
    read_manifest,
    verify_files,
    verify_machine,
)
from collage.runtime.precision import output_error

ALIGNMENT = 64
Outputs = dict[str, np.ndarray]

TOLERANCE = {"float16": (1e-2, 5e-3), "float32": (1e-3, 1e-4), "float64": (1e-3, 1e-4)}
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
        self._functions = [_Function(one, machine[one.function]) for one in manifest.functions]

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """The functions, one a shape set, with names, shapes and dtypes of inputs and outputs."""
        return self.manifest.functions

    def run(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        """Compute the outputs for `inputs`, by name; shapes choose the function.

        Raises:
            InputError: a name, shape or dtype that the bundle does not have.
        """
        return self._select(inputs).run(inputs)

    def check(self) -> None:
        """Compare every function with the golden data. Raises BundleError when numbers differ."""
        for function in self._functions:
            inputs, expected = self._golden(function.signature.function)
            for name, value in function.run(inputs).items():
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
        function.run(self._golden(function.signature.function)[0])
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while not samples or time.perf_counter() < end:
            start = time.perf_counter_ns()
            function.call()
            samples.append((time.perf_counter_ns() - start) * 1e-9)
        return statistics.median(samples)

    def _select(self, inputs: Mapping[str, np.ndarray]) -> "_Function":
        shapes = {name: np.shape(value) for name, value in inputs.items()}
        for function in self._functions:
            if shapes == {tensor.name: tensor.shape for tensor in function.signature.inputs}:
                return function
        raise InputError(_mismatch(self.signatures, shapes))

    def _golden(self, function: str) -> tuple[Outputs, Outputs]:
        try:
            with np.load(self.folder / "golden.npz", allow_pickle=False) as stored:
                data = {name: stored[name] for name in stored.files}
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
    """A function of the executable with the input buffers that it reads."""

    def __init__(self, signature: Signature, function: Callable[..., object]) -> None:
        import tvm_ffi

        self.signature = signature
        self._function = function
        self._buffers = [_aligned(tensor) for tensor in signature.inputs]
        self._arguments = [tvm_ffi.from_dlpack(buffer) for buffer in self._buffers]

    def run(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        for tensor, buffer in zip(self.signature.inputs, self._buffers, strict=True):
            value = np.asarray(inputs[tensor.name])
            if value.dtype != buffer.dtype:
                raise InputError(
                    f"input {tensor.name!r} has dtype {value.dtype}; expected {tensor.dtype}. "
                    f"Convert it with .astype({tensor.dtype!r})."
                )
            np.copyto(buffer, value)
        names = [tensor.name for tensor in self.signature.outputs]
        return dict(zip(names, map(self._detached, self.call()), strict=True))

    def call(self) -> list[object]:
        """Run on what the buffers hold; return the outputs in order."""
        result = self._function(*self._arguments)
        return [result] if len(self.signature.outputs) == 1 else list(result)  # type: ignore[call-overload]

    def _detached(self, output: object) -> np.ndarray:
        """An array of the caller's own: an output may be an input or a constant of the model."""
        return np.array(np.from_dlpack(output))  # type: ignore[arg-type]


def _aligned(tensor: Tensor) -> np.ndarray:
    shape = tensor.shape or ()
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(tensor.dtype).reshape(shape)


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
    if not np.allclose(value, expected, relative, absolute * scale + step, equal_nan=True):
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
