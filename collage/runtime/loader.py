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
from typing import cast
from zipfile import BadZipFile

import numpy as np

from collage.errors import BundleError, InputError
from collage.runtime.arrays import load_arrays
from collage.runtime.bundle_folder import MANIFEST, BundleFolder, VerifiedFile
from collage.runtime.dispatch import DispatchCounts, Dispatcher
from collage.runtime.fallback import Fallback
from collage.runtime.function_names import MAIN, fallback_name
from collage.runtime.golden_values import from_arrays
from collage.runtime.manifest import (
    Manifest,
    Signature,
    declare_libraries,
    manifest_bytes,
    open_files,
    parse_manifest,
    verify_machine,
)
from collage.runtime.original_session import OriginalSession
from collage.runtime.self_check import check_bundle
from collage.runtime.session import ExecutableSession, Outputs
from collage.runtime.signature import TrustedKeys, configured_keys, verify_statement
from collage.runtime.tensor_exchange import DeviceTensor
from collage.runtime.virtual_machine import ExecutableFile

GOLDEN = "golden.npz"
DEFAULTS = "defaults.npz"
"""File of the values of inputs that callers may leave out, by `ENTRY/NAME`."""


def load(
    folder: Path | str, verify_keys: Sequence[Path] | TrustedKeys = (), *, warm: bool = False
) -> "LoadedBundle":
    """Load the bundle in `folder` and initialise its kernels.

    The folder and its files are opened once, so the verified files run even if the folder changes.

    Args:
        folder: folder of the bundle.
        verify_keys: files or folders of public keys. The bundle's statement is verified before any of its
            files is parsed. Default: the keys of COLLAGE_VERIFY_KEYS; without these the signature is not
            verified, with one warning in the log.
        warm: whether the fallback opens now; default False: at its first call.

    Raises:
        BundleError: the bundle is incomplete, changed, not signed by a trusted key, or made for another
            processor or library version.
        OptionError: the keys cannot be read.
    """
    keys = verify_keys if isinstance(verify_keys, TrustedKeys) else configured_keys(verify_keys)
    bundle = open_bundle(Path(folder), keys)
    if warm:
        bundle.open_fallbacks()
    return bundle


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
    files = open_files(folder, manifest, keep={*manifest.kept_files, GOLDEN, DEFAULTS})
    declare_libraries(manifest)
    verify_machine(manifest)
    return LoadedBundle(path, manifest, files)


class LoadedBundle:
    """A loaded bundle, returned by `load`. Methods may be called from any thread."""

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        files: Mapping[str, VerifiedFile],
        originals: Mapping[str, OriginalSession] | None = None,
    ) -> None:
        """Start the executable.

        Args:
            path: folder of the bundle, for messages.
            manifest: manifest of the bundle.
            files: verified files: those of `manifest.kept_files`, the golden data and defaults if there are
                any.
            originals: sessions of the fallbacks by entry; None: sessions of its own.
        """
        self.path = path
        self.manifest = manifest
        self._files = files
        if originals is None:
            originals = {
                fallback.entry: OriginalSession(fallback, files, manifest.threads)
                for fallback in manifest.fallbacks
            }
        self._originals = originals
        sessions = self._open_sessions() if manifest.executable else {}
        self._default_values = self._read_defaults()
        self._dispatchers = {
            entry: Dispatcher(
                sessions.get(entry),
                originals.get(entry),
                manifest.padding.get(entry, ()),
                defaults=manifest.defaults.get(entry, ()),
                default_values=self._default_values.get(entry, {}),
            )
            for entry in self.entries
        }

    def _open_sessions(self) -> dict[str, ExecutableSession]:
        manifest = self.manifest
        if not manifest.functions:
            raise BundleError(f"{self.path} has no functions. Compile the model again")
        file = self._files[manifest.executable]
        executable = ExecutableFile(file, manifest.threads, manifest.device)
        return {
            entry: ExecutableSession(executable, functions, manifest.threads, manifest.device)
            for entry in manifest.entries
            if (functions := manifest.functions_of(entry))
        }

    def _read_defaults(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the values of inputs that callers may leave out, by entry and name."""
        values: dict[str, dict[str, np.ndarray]] = {}
        for key, array in self._arrays(DEFAULTS).items() if DEFAULTS in self._files else ():
            entry, _, name = key.partition("/")
            values.setdefault(entry, {})[name] = array
        return values

    def _arrays(self, file_name: str) -> dict[str, np.ndarray]:
        """Read a file of arrays. Raises BundleError."""
        try:
            with self._files[file_name].content() as file:
                return load_arrays(file)
        except (OSError, ValueError, BadZipFile) as error:
            raise BundleError(f"{self.path} has a damaged {file_name}: {error}") from error

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries; a model in one file has the entry `main`."""
        return self.manifest.entries

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Signatures of the functions, one for each entry and shape set."""
        return self.manifest.functions

    def fallback(self, entry: str = MAIN) -> Fallback | None:
        """Return the original model that answers an entry's other shapes; None without."""
        return self._originals[entry].fallback if entry in self._originals else None

    def defaults(self, entry: str = MAIN) -> tuple[str, ...]:
        """Return the names of an entry's inputs that have a default."""
        return (*self.manifest.defaults.get(entry, ()), *self._default_values.get(entry, ()))

    def open_fallbacks(self) -> None:
        """Open the original models, each of which otherwise opens at its first call.

        Raises:
            BundleError: a framework is missing here, or refuses its model.
        """
        for original in self._originals.values():
            original.open()

    def run_fallback(self, inputs: Mapping[str, object], entry: str = MAIN) -> Outputs:
        """Compute the outputs by an entry's original model, whatever the shapes; uncounted.

        Raises:
            InputError: the entry has no fallback, or it refuses the inputs.
        """
        if entry not in self._originals:
            raise InputError(f"the entry {entry!r} has no fallback; compile without --exact-only")
        return cast(Outputs, self._originals[entry].run(inputs))

    def dispatch_counts(self, entry: str | None = None) -> DispatchCounts:
        """Return which way the calls of an entry took so far; None: of the only one."""
        return self._dispatcher(entry).counts()

    def copy(self) -> "LoadedBundle":
        """Start another executable of the same verified files, for parallel calls.

        The fallbacks are shared: each answers one call at a time.

        Raises:
            BundleError: a file was changed in place meanwhile.
        """
        return LoadedBundle(self.path, self.manifest, self._files, self._originals)

    def run(self, inputs: Mapping[str, object], entry: str | None = None) -> Outputs:
        """Compute the outputs for `inputs`, by name, as arrays; shapes choose the function.

        The fallback, if the bundle has it, answers other shapes. A model with text, sequences or maps takes
        and returns the objects of `collage.runtime.model_values`.

        Args:
            inputs: numpy arrays (bfloat16 as in ml_dtypes), or objects with `__dlpack__`.
            entry: name of the entry; None: the only one.

        Raises:
            InputError: an entry, name, shape or dtype that the bundle does not have.
        """
        return self._dispatcher(entry).run(inputs)

    def run_tensors(
        self,
        inputs: Mapping[str, object],
        stream: int | None = None,
        *,
        entry: str | None = None,
    ) -> dict[str, DeviceTensor]:
        """Compute the outputs as tensors on the device of the bundle's kernels, for DLPack.

        Inputs on that device are read without a copy. On a GPU this returns once all work is queued. The
        fallback reads and returns tensors of the host.

        Args:
            inputs: inputs as of `run`.
            stream: handle of the kernels' CUDA stream, e.g. PyTorch's
                `torch.cuda.current_stream().cuda_stream`; None is the default stream.
            entry: name of the entry; None: the only one.

        Raises:
            InputError: an entry, name, shape or dtype that the bundle does not have.
        """
        return self._dispatcher(entry).run_tensors(inputs, stream or 0)

    def check(self) -> None:
        """Compare every function with the golden data. Raises BundleError when numbers differ.

        For a function with random outputs, only shapes and dtypes are compared. An entry without functions
        is compared with its fallback's golden data.
        """
        check_bundle(self)

    def golden_inputs(self, function: str) -> Mapping[str, object]:
        """Return the golden inputs of a function, or of a fallback (`fallback_name`), as `run` takes them.

        Raises:
            BundleError: the bundle has none.
        """
        inputs = self.golden(function)[0]
        for fallback in self.manifest.fallbacks:
            if function == fallback_name(fallback.entry):
                values = {
                    value.name: from_arrays(value.name, inputs, value.type)
                    for value in fallback.inputs
                }
                return {name: value for name, value in values.items() if value is not None}
        return inputs

    def benchmark(self, seconds: float = 3.0, function: str | None = None) -> float:
        """Return the median latency in seconds of `run` on golden inputs; arguments as of `latencies`."""
        return statistics.median(self.latencies(seconds, function))

    def latencies(self, seconds: float = 3.0, function: str | None = None) -> list[float]:
        """Return the latency in seconds of each call of `run` on golden inputs, one call after the other.

        Args:
            seconds: time of the measurement.
            function: name of a function, or of the fallback of an entry without; None: the first one.
        """
        entry_of = {signature.function: signature.entry for signature in self.signatures}
        for entry in self.manifest.entries_without_functions:
            entry_of[fallback_name(entry)] = entry
        function = function or next(iter(entry_of))
        dispatcher = self._dispatchers[entry_of[function]]
        inputs = self.golden_inputs(function)
        dispatcher.run(inputs)
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while not samples or time.perf_counter() < end:
            start = time.perf_counter_ns()
            dispatcher.run(inputs)
            samples.append((time.perf_counter_ns() - start) * 1e-9)
        return samples

    def _dispatcher(self, entry: str | None) -> Dispatcher:
        if entry is None and len(self._dispatchers) == 1:
            return next(iter(self._dispatchers.values()))
        if entry is None or entry not in self._dispatchers:
            problem = "" if entry is None else f"there is no entry {entry!r}: "
            raise InputError(
                f"{problem}name one of the bundle's entries, entry={' or '.join(map(repr, self.entries))}"
            )
        return self._dispatchers[entry]

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
