"""Run a bundle: what serving needs, and nothing more.

Needs numpy, tvm-ffi and the vendor libraries that the bundle's kernels call; no compiler, no ONNX, no
vendor's Python package. What goes in and out, and when it is copied, is in `collage.runtime.exchange`.

Any thread may call a `LoadedBundle`, and several bundles may run in one process. A bundle computes one call
at a time: calls from other threads wait (`collage.runtime.session`). To compute several at once, load the
bundle as often.
"""

import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from collage.errors import BundleError
from collage.runtime.arrays import load_arrays
from collage.runtime.exchange import DeviceTensor
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
from collage.runtime.session import ExecutableSession, Outputs

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
    """A bundle that is ready to run; `load` makes it. Methods may be called from any thread."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._session = ExecutableSession(
            folder / manifest.executable, manifest.functions, manifest.threads, manifest.device
        )

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
        return self._session.run(inputs)

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
        return self._session.run_tensors(inputs, stream or 0)

    def check(self) -> None:
        """Compare every function with the golden data. Raises BundleError when numbers differ."""
        for signature in self.signatures:
            inputs, expected = self._golden(signature.function)
            found = list(self.run(inputs).items())
            if self.manifest.device != "cpu":
                tensors = self.run_tensors(inputs)
                found += [(name, value.numpy()) for name, value in tensors.items()]
            for name, value in found:
                self._compare_output(signature.function, name, value, expected[name])

    def benchmark(self, seconds: float = 3.0) -> float:
        """Median seconds of one `run` of the first function on the golden inputs."""
        inputs = self._golden(self.signatures[0].function)[0]
        self.run(inputs)
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while not samples or time.perf_counter() < end:
            start = time.perf_counter_ns()
            self.run(inputs)
            samples.append((time.perf_counter_ns() - start) * 1e-9)
        return statistics.median(samples)

    def _compare_output(
        self, function: str, name: str, value: np.ndarray, expected: np.ndarray
    ) -> None:
        precision = self.manifest.precision
        if precision is not None and precision.reduced:
            _compare_within((function, name), value, expected, precision)
        else:
            _compare(f"{function}, output {name}", value, expected, self.manifest.quantised)

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
