"""Run a bundle: what serving needs, and nothing more.

Needs numpy, tvm-ffi and the vendor libraries that the bundle's kernels call; no compiler, no ONNX, no
vendor's Python package. What goes in and out, and when it is copied, is in `collage.runtime.tensor_exchange`.

Any thread may call a `LoadedBundle`, and several bundles may run in one process. A bundle computes one call
at a time: calls from other threads wait (`collage.runtime.session`). To compute several at once, make
copies.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from collage.errors import BundleError
from collage.runtime.arrays import load_arrays
from collage.runtime.bundle_folder import MANIFEST, BundleFolder, VerifiedFile
from collage.runtime.manifest import (
    Manifest,
    Precision,
    Signature,
    declare_libraries,
    manifest_bytes,
    open_files,
    parse_manifest,
    verify_machine,
)
from collage.runtime.precision import output_error
from collage.runtime.session import ExecutableSession, Outputs
from collage.runtime.tensor_exchange import DeviceTensor

if TYPE_CHECKING:
    from collage.runtime.signature import TrustedKeys

GOLDEN = "golden.npz"
TOLERANCE = {
    "bfloat16": (5e-2, 2e-2),
    "float16": (1e-2, 5e-3),
    "float32": (1e-3, 1e-4),
    "float64": (1e-3, 1e-4),
}
"""Relative and absolute (of the largest expected magnitude) tolerance: those of the gate."""
QUANTISED_TOLERANCE = (1e-2, 2e-2)


def load(folder: Path | str, verify_keys: "Sequence[Path] | TrustedKeys" = ()) -> "LoadedBundle":
    """Load the bundle in `folder` and initialise its kernels.

    The folder and its files are opened once, and what was verified is what runs, whatever happens to
    the folder meanwhile.

    Args:
        folder: where the bundle lies.
        verify_keys: files or folders of public keys: the bundle's statement is verified before anything
            of the bundle is parsed. Without any, those that COLLAGE_VERIFY_KEYS names; without these
            nobody is asked who made the bundle, which is logged once.

    Raises:
        BundleError: incomplete, changed, not signed by a trusted key, or made for another processor or
            library version.
        OptionError: the keys cannot be read.
    """
    from collage.runtime.signature import TrustedKeys, configured_keys

    if isinstance(verify_keys, TrustedKeys):
        return open_bundle(Path(folder), verify_keys)
    return open_bundle(Path(folder), configured_keys(verify_keys))


def open_bundle(path: Path, keys: "TrustedKeys | None") -> "LoadedBundle":
    """Load the bundle at `path`; None for `keys` asks nobody who made it. Errors as of `load`."""
    folder = BundleFolder(path)
    if keys is None:
        data = manifest_bytes(folder)
    else:
        from collage.runtime.signature import verify_statement

        try:
            data = verify_statement(folder.read, folder.names(), keys)
        except BundleError as error:
            raise BundleError(f"{path}: {error}") from None
    manifest = parse_manifest(data, str(path / MANIFEST))
    files = open_files(folder, manifest, keep=(manifest.executable, GOLDEN))
    declare_libraries(manifest)
    verify_machine(manifest)
    return LoadedBundle(path, manifest, files)


class LoadedBundle:
    """A bundle that is ready to run; `load` makes it. Methods may be called from any thread."""

    def __init__(self, path: Path, manifest: Manifest, files: Mapping[str, VerifiedFile]) -> None:
        """Start the executable.

        Args:
            path: where the bundle was found, for messages.
            manifest: what it says.
            files: the executable, and the golden data where there are some, as they were verified.
        """
        self.path = path
        self.manifest = manifest
        self._files = files
        self._session = ExecutableSession(
            files[manifest.executable], manifest.functions, manifest.threads, manifest.device
        )

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """The functions, one a shape set, with names, shapes and dtypes of inputs and outputs."""
        return self.manifest.functions

    def copy(self) -> "LoadedBundle":
        """Start another executable of the same verified files, for calls at the same time.

        Raises:
            BundleError: a file was changed in place meanwhile.
        """
        return LoadedBundle(self.path, self.manifest, self._files)

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
        """Compare every function with the golden data. Raises BundleError when numbers differ.

        Of a function that draws random numbers the shapes and dtypes are compared, not the numbers.
        """
        for signature in self.signatures:
            inputs, expected = self.golden(signature.function)
            outputs = list(self.run(inputs).items())
            if self.manifest.device != "cpu":
                tensors = self.run_tensors(inputs)
                outputs += [(name, value.numpy()) for name, value in tensors.items()]
            for name, value in outputs:
                self._compare_output(signature.function, name, value, expected[name])

    def benchmark(self, seconds: float = 3.0, function: str = "main") -> float:
        """Median seconds of one `run` of a function on its golden inputs."""
        inputs = self.golden(function)[0]
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
        if function in self.manifest.random_functions:
            self._compare_declared(function, name, value)
        elif precision is not None and precision.reduced:
            _compare_within((function, name), value, expected, precision)
        else:
            _compare(f"{function}, output {name}", value, expected, self.manifest.quantised)

    def _compare_declared(self, function: str, name: str, value: np.ndarray) -> None:
        """Compare an output of a function that draws random numbers with its signature."""
        outputs = next(
            signature.outputs for signature in self.signatures if signature.function == function
        )
        declared = next(tensor for tensor in outputs if tensor.name == name)
        sizes = value.shape if declared.shape is None else declared.shape
        fits = len(sizes) == value.ndim and all(
            size in (-1, extent) for size, extent in zip(sizes, value.shape, strict=True)
        )
        if not fits or str(value.dtype) != declared.dtype:
            raise BundleError(
                f"self check: {function}, output {name} is {value.dtype}{list(value.shape)}, "
                f"expected {declared}"
            )

    def golden(self, function: str) -> tuple[Outputs, Outputs]:
        """Inputs and expected outputs of a function's self-check. BundleError where there are none."""
        if GOLDEN not in self._files:
            raise BundleError(f"{self.path} has no golden data: {GOLDEN} is not among its files")
        try:
            with self._files[GOLDEN].content() as file:
                data = load_arrays(file)
        except (OSError, ValueError, BadZipFile) as error:
            raise BundleError(f"{self.path} has no golden data: {error}") from error
        groups = [
            {
                name.removeprefix(prefix): value
                for name, value in data.items()
                if name.startswith(prefix)
            }
            for prefix in (f"{function}/input/", f"{function}/output/")
        ]
        return groups[0], groups[1]


def _compare(label: str, value: np.ndarray, expected: np.ndarray, quantised: bool) -> None:
    if value.shape != expected.shape or value.dtype != expected.dtype:
        raise BundleError(
            f"self check: {label} is {value.dtype}{list(value.shape)}, "
            f"expected {expected.dtype}{list(expected.shape)}"
        )
    tolerance = TOLERANCE.get(expected.dtype.name, (0.0, 0.0))
    step = int(quantised and expected.dtype.itemsize == 1 and expected.dtype.kind in "iu")
    relative, absolute = QUANTISED_TOLERANCE if quantised and any(tolerance) else tolerance
    scale = float(np.abs(expected).max(initial=0.0)) if relative else 0.0
    wide = np.promote_types(expected.dtype, np.float32) if relative else expected.dtype
    reference, actual = expected.astype(wide, copy=False), value.astype(wide, copy=False)
    if not np.allclose(actual, reference, relative, absolute * scale + step, equal_nan=True):
        worst = np.abs(value.astype("float64") - expected.astype("float64")).max()
        raise BundleError(
            f"self check: {label} differs from the golden data by up to {worst:.3g}. The machine or "
            "a library computes other numbers: do not serve this bundle here."
        )


def _compare_within(
    output: tuple[str, str], value: np.ndarray, expected: np.ndarray, precision: Precision
) -> None:
    function, name = output
    error = output_error(expected, value, probability=name in precision.probabilities)
    if error > precision.tolerance:
        raise BundleError(
            f"self check: {function}, output {name} has an error of {error:.3g}, above the tolerance of "
            f"{precision.tolerance:g}. The machine or a library computes other numbers: do not serve "
            "this bundle here."
        )
