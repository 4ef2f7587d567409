"""Loader of bundles for serving.

It needs numpy, tvm-ffi and the vendor libraries of the bundle's kernels; no compiler, no ONNX, no vendor's
Python package. Inputs, outputs and copies are described in `collage.runtime.tensor_exchange`.

Any thread may call a `LoadedBundle`, and several bundles may run in one process. A bundle computes one call
at a time; calls from other threads wait (`collage.runtime.session`). Copies of a bundle run in parallel.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from collage.errors import BundleError, InputError
from collage.runtime.arrays import load_arrays
from collage.runtime.bundle_folder import MANIFEST, BundleFolder, VerifiedFile
from collage.runtime.manifest import (
    Manifest,
    ReducedPrecision,
    Signature,
    declare_libraries,
    manifest_bytes,
    open_files,
    parse_manifest,
    verify_machine,
)
from collage.runtime.precision import output_error
from collage.runtime.session import ExecutableSession, Outputs
from collage.runtime.signature import TrustedKeys, configured_keys, verify_statement
from collage.runtime.tensor_exchange import DeviceTensor
from collage.runtime.tolerances import float_tolerance, integer_step
from collage.runtime.virtual_machine import ExecutableFile

GOLDEN = "golden.npz"


def load(folder: Path | str, verify_keys: Sequence[Path] | TrustedKeys = ()) -> "LoadedBundle":
    """Load the bundle in `folder` and initialise its kernels.

    The folder and its files are opened once, so the verified files run even if the folder changes.

    Args:
        folder: folder of the bundle.
        verify_keys: files or folders of public keys. The bundle's statement is verified before any of its
            files is parsed. Default: the keys of COLLAGE_VERIFY_KEYS; without these the signature is not
            verified, with one warning in the log.

    Raises:
        BundleError: the bundle is incomplete, changed, not signed by a trusted key, or made for another
            processor or library version.
        OptionError: the keys cannot be read.
    """
    if isinstance(verify_keys, TrustedKeys):
        return open_bundle(Path(folder), verify_keys)
    return open_bundle(Path(folder), configured_keys(verify_keys))


def open_bundle(path: Path, keys: TrustedKeys | None) -> "LoadedBundle":
    """Load the bundle at `path`, without verification if `keys` is None. Errors as of `load`."""
    folder = BundleFolder(path)
    if keys is None:
        data = manifest_bytes(folder)
    else:
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
    """A loaded bundle, returned by `load`. Methods may be called from any thread."""

    def __init__(self, path: Path, manifest: Manifest, files: Mapping[str, VerifiedFile]) -> None:
        """Start the executable.

        Args:
            path: folder of the bundle, for messages.
            manifest: manifest of the bundle.
            files: verified files: the executable, and the golden data if there are any.
        """
        self.path = path
        self.manifest = manifest
        self._files = files
        if not manifest.functions:
            raise BundleError(f"{path} has no functions. Compile the model again")
        executable = ExecutableFile(files[manifest.executable], manifest.threads, manifest.device)
        self._sessions = {
            entry: ExecutableSession(
                executable, manifest.functions_of(entry), manifest.threads, manifest.device
            )
            for entry in manifest.entries
        }

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries; a model in one file has the entry `main`."""
        return self.manifest.entries

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Signatures of the functions, one for each entry and shape set."""
        return self.manifest.functions

    def copy(self) -> "LoadedBundle":
        """Start another executable of the same verified files, for parallel calls.

        Raises:
            BundleError: a file was changed in place meanwhile.
        """
        return LoadedBundle(self.path, self.manifest, self._files)

    def run(self, inputs: Mapping[str, object], entry: str | None = None) -> Outputs:
        """Compute the outputs for `inputs`, by name, as arrays; shapes choose the function.

        Args:
            inputs: numpy arrays (bfloat16 as in ml_dtypes), or objects with `__dlpack__`.
            entry: name of the entry; None: the only one.

        Raises:
            InputError: an entry, name, shape or dtype that the bundle does not have.
        """
        return self._session(entry).run(inputs)

    def run_tensors(
        self,
        inputs: Mapping[str, object],
        stream: int | None = None,
        *,
        entry: str | None = None,
    ) -> dict[str, DeviceTensor]:
        """Compute the outputs as tensors on the device of the bundle's kernels, for DLPack.

        Inputs on that device are read without a copy. On a GPU this returns once all work is queued.

        Args:
            inputs: inputs as of `run`.
            stream: handle of the kernels' CUDA stream, e.g. PyTorch's
                `torch.cuda.current_stream().cuda_stream`; None is the default stream.
            entry: name of the entry; None: the only one.

        Raises:
            InputError: an entry, name, shape or dtype that the bundle does not have.
        """
        return self._session(entry).run_tensors(inputs, stream or 0)

    def check(self) -> None:
        """Compare every function with the golden data. Raises BundleError when numbers differ.

        For a function with random outputs, only shapes and dtypes are compared.
        """
        for signature in self.signatures:
            inputs, expected = self.golden(signature.function)
            outputs = list(self.run(inputs, signature.entry).items())
            if self.manifest.device.takes_device_tensors:
                tensors = self.run_tensors(inputs, entry=signature.entry)
                outputs += [(name, value.numpy()) for name, value in tensors.items()]
            for name, value in outputs:
                self._compare_output(signature.function, name, value, expected[name])

    def benchmark(self, seconds: float = 3.0, function: str | None = None) -> float:
        """Return the median latency in seconds of `run` on the golden inputs of a function, or the first."""
        signature = next(
            signature for signature in self.signatures if function in (None, signature.function)
        )
        session = self._sessions[signature.entry]
        inputs = self.golden(signature.function)[0]
        session.run(inputs)
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while not samples or time.perf_counter() < end:
            start = time.perf_counter_ns()
            session.run(inputs)
            samples.append((time.perf_counter_ns() - start) * 1e-9)
        return statistics.median(samples)

    def _session(self, entry: str | None) -> ExecutableSession:
        if entry is None and len(self._sessions) == 1:
            return next(iter(self._sessions.values()))
        if entry is None or entry not in self._sessions:
            problem = "" if entry is None else f"there is no entry {entry!r}: "
            raise InputError(
                f"{problem}name one of the bundle's entries, entry={' or '.join(map(repr, self.entries))}"
            )
        return self._sessions[entry]

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
        """Compare the shape and dtype of a random output with its signature."""
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
        """Return inputs and expected outputs of a function's self-check. Raises BundleError without."""
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
    relative, absolute = float_tolerance(expected.dtype, quantised=quantised) or (0.0, 0.0)
    step = integer_step(expected.dtype, quantised=quantised)
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
    output: tuple[str, str], value: np.ndarray, expected: np.ndarray, precision: ReducedPrecision
) -> None:
    function, name = output
    error = output_error(expected, value, probability=name in precision.probabilities)
    if error > precision.tolerance:
        raise BundleError(
            f"self check: {function}, output {name} has an error of {error:.3g}, above the tolerance of "
            f"{precision.tolerance:g}. The machine or a library computes other numbers: do not serve "
            "this bundle here."
        )
