"""Reader of a bundle's manifest for serving, with the standard library only.

`collage.bundle.manifest` writes the schema. This reader checks the fields for running a bundle and ignores
the others. It also refuses a bundle for another machine.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collage.errors import BackendError, BundleError, UnprovenError
from collage.runtime.bundle_folder import MANIFEST, MAX_READ_BYTES, BundleFolder, VerifiedFile
from collage.runtime.cpu import cpu_flags
from collage.runtime.element_types import DTYPES
from collage.runtime.fallback import Fallback, read_fallback
from collage.runtime.function_names import MAIN
from collage.runtime.gpu import gpu_problem
from collage.runtime.json_fields import Field, FieldError, parse_json
from collage.runtime.manifest_limits import MAX_DIMENSIONS
from collage.runtime.padding import PaddedAxis, read_padded_axis
from collage.runtime.plugin import (
    library_distribution,
    library_names,
    library_override,
    library_version,
    register_library,
)
from collage.runtime.target import Target

SCHEMA_VERSION = 3
DEVICES = tuple(target.value for target in Target)
MAX_THREADS = 4096
MAX_TENSOR_BYTES = 1 << 46
NOT_SLOWER = "not slower"
"""Verdict of the gate on a function proven as fast as every original framework."""
VERDICTS = (NOT_SLOWER, "slower", "unproven")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named input or output; `dtype` is numpy's name.

    The shape of an output has -1 for a data-dependent dimension, and is None for a data-dependent rank.
    Inputs have static shapes.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name}: {self.dtype}[...]"
        dims = ", ".join("?" if size < 0 else str(size) for size in self.shape)
        return f"{self.name}: {self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """One function of the executable: one shape set of an entry."""

    function: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kernel: str = ""
    """Symbol of the only kernel of a function called without the virtual machine, else ""."""
    entry: str = MAIN


@dataclass(frozen=True, slots=True)
class RequiredLibrary:
    """A vendor library called by kernels; `file` is a glob of its name in the distribution."""

    distribution: str
    version: str
    file: str


@dataclass(frozen=True, slots=True)
class ReducedPrecision:
    """ReducedPrecision below float32 allowed by the user.

    Attributes:
        reduced: True if the executable uses it.
        tolerance: allowed error of an output (`collage.runtime.precision`).
        probabilities: names of the outputs with a scale of 1.
    """

    reduced: bool
    tolerance: float
    probabilities: frozenset[str]


@dataclass(frozen=True, slots=True)
class FunctionGate:
    """Verdict of the gate on one function; golden data of a `deterministic` function are compared."""

    function: str
    verdict: str
    reason: str
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class Manifest:
    """The fields of a manifest for running the bundle; without functions, `executable` is ""."""

    executable: str
    functions: tuple[Signature, ...]
    threads: int
    cpu_model: str
    cpu_features: tuple[str, ...]
    libraries: Mapping[str, RequiredLibrary]
    files: Mapping[str, str]
    precision: ReducedPrecision | None = None
    """None if only float32 was allowed."""
    quantised: bool = False
    """The model rounds to small integers, so two correct outputs may differ by one step."""
    device: Target = Target.CPU
    """Device of the kernels."""
    compute_capability: str = ""
    """Compute capability of the GPU target, e.g. "90"; "" on a CPU."""
    gate: tuple[FunctionGate, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    """Original models, at most one for each entry point."""
    padding: Mapping[str, tuple[PaddedAxis, ...]] = field(default_factory=dict)
    """Axes that may be padded, by entry."""
    defaults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the inputs whose defaults are constants of the functions, by entry."""

    @property
    def kept_files(self) -> frozenset[str]:
        """Names of the files that stay open while the bundle is loaded."""
        files = {file for fallback in self.fallbacks for file in fallback.files}
        return frozenset(files | {self.executable} - {""})

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries, in order of their first function; those without functions last."""
        names = [signature.entry for signature in self.functions]
        return tuple(dict.fromkeys(names + [fallback.entry for fallback in self.fallbacks]))

    @property
    def entries_without_functions(self) -> tuple[str, ...]:
        """Names of the entries that only the fallback answers."""
        return tuple(entry for entry in self.entries if not self.functions_of(entry))

    def functions_of(self, entry: str) -> tuple[Signature, ...]:
        """Return the functions of an entry, one for each shape set."""
        return tuple(signature for signature in self.functions if signature.entry == entry)

    @property
    def random_functions(self) -> frozenset[str]:
        """Names of the functions with random outputs."""
        return frozenset(function.function for function in self.gate if not function.deterministic)


def read_manifest(folder: Path) -> Manifest:
    """Read `folder/manifest.json`. Raises BundleError when there is none or it cannot be understood."""
    return parse_manifest(manifest_bytes(BundleFolder(folder)), str(folder / MANIFEST))


def manifest_bytes(folder: BundleFolder) -> bytes:
    """Return the bytes of the manifest. Raises BundleError when there is none."""
    try:
        return folder.read(MANIFEST)
    except FileNotFoundError:
        raise BundleError(f"{folder.path} holds no bundle: {MANIFEST} is missing") from None
    except OSError as error:
        raise BundleError(
            f"{folder.path / MANIFEST} cannot be read: {error.strerror}. Publish the bundle again."
        ) from error


def parse_manifest(data: bytes, source: str) -> Manifest:
    """Parse a manifest.

    Args:
        data: bytes of the manifest.
        source: name of the manifest in messages.

    Raises:
        BundleError: a field is missing or garbled, or the schema version is another.
    """
    try:
        root = parse_json(data, MAX_READ_BYTES)
        version = root["schema_version"].value
        if version == SCHEMA_VERSION and type(version) is int:
            return _parse(root)
    except FieldError as error:
        raise BundleError(
            f"{source} lacks or garbles a field: {error}. Publish the bundle again."
        ) from None
    shown = version if isinstance(version, int | float | str) else "of no known kind"
    raise BundleError(
        f"{source} has schema version {str(shown)[:20]}; this Collage reads {SCHEMA_VERSION}. Compile the "
        "model again, or install the Collage that made the bundle."
    )


def verify_files(folder: Path, manifest: Manifest) -> None:
    """Raise BundleError unless every file has the digest in the manifest."""
    open_files(BundleFolder(folder), manifest)


def open_files(
    folder: BundleFolder, manifest: Manifest, keep: Collection[str] = ()
) -> dict[str, VerifiedFile]:
    """Verify every file of the bundle; return the open files with names in `keep`.

    Raises:
        BundleError: a file is missing or has another digest than in the manifest.
    """
    opened = {}
    for name, digest in sorted(manifest.files.items()):
        file = folder.open_verified(name, digest)
        if name in keep:
            opened[name] = file
    return opened


def declare_libraries(manifest: Manifest) -> None:
    """Register the libraries of backends not installed on this machine."""
    for name, library in manifest.libraries.items():
        if name not in library_names() and library.file:
            requirement = f"{library.distribution}=={library.version}"
            register_library(name, library.distribution, library.file, requirement)


def verify_machine(manifest: Manifest) -> None:
    """Raise BundleError with all mismatches unless the bundle fits this machine."""
    problems = []
    missing = sorted(set(manifest.cpu_features) - cpu_flags())
    if missing:
        problems.append(
            f"this processor lacks {', '.join(missing)}; the bundle was made for a machine like "
            f"{manifest.cpu_model}. Compile the model on this kind of machine."
        )
    if manifest.device.is_gpu and (problem := gpu_problem(manifest.compute_capability)):
        problems.append(problem)
    problems += [
        problem
        for name, library in sorted(manifest.libraries.items())
        if (problem := _library_problem(name, library))
    ]
    if problems:
        raise BundleError("the bundle does not fit this machine:\n  " + "\n  ".join(problems))


def refuse_unproven(manifest: Manifest, label: str) -> None:
    """Refuse a bundle unless each function is proven as fast as the original frameworks.

    Args:
        manifest: manifest of the bundle.
        label: name of the bundle in the message.

    Raises:
        UnprovenError: a function is slower or unproven; the bundle was written with --allow-slower.
    """
    judged = {entry.function: entry for entry in manifest.gate}
    reasons = []
    for name in (signature.function for signature in manifest.functions):
        entry = judged.get(name)
        if entry is None:
            reasons.append(f"{name} was not judged")
        elif entry.verdict != NOT_SLOWER:
            reasons.append(f"{name} is {entry.verdict}: {entry.reason}")
    if reasons:
        raise UnprovenError(
            f"{label} is for trying out only, as --allow-slower has it ({'; '.join(reasons)}); compile the "
            "model again without --allow-slower and --no-fallback, on a machine with less other work or with "
            "a longer --verify, and use that bundle"
        )


def read_signature(raw: object) -> Signature:
    """Return a function's signature from its entry in a manifest.

    Raises:
        FieldError: a field is missing or invalid.
    """
    return _signature(Field(raw, "signature"))


def _parse(root: Field) -> Manifest:
    precision, quantised = root.get("precision"), root.get("quantised")
    device, capability = root.get("device"), root.get("compute_capability")
    executable, fallbacks = root["executable"], root.get("fallbacks")
    padding, defaults = root.get("padding"), root.get("defaults")
    manifest = Manifest(
        executable=executable.file_name() if executable.value != "" else "",
        functions=tuple(map(_signature, root["functions"].items())),
        threads=root["threads"].integer(1, MAX_THREADS),
        cpu_model=root["cpu"]["model"].text(empty=True),
        cpu_features=root["cpu"]["features"].texts(),
        libraries={name.text(): _library(library) for name, library in root["libraries"].entries()},
        files={name.file_name(): digest.digest() for name, digest in root["files"].entries()},
        precision=_precision(precision) if precision and precision.value is not None else None,
        quantised=quantised.flag() if quantised else False,
        device=Target(device.one_of(DEVICES)) if device else Target.CPU,
        compute_capability=capability.text(empty=True) if capability else "",
        gate=tuple(map(_gate, root["gate"].items())),
        fallbacks=tuple(map(read_fallback, fallbacks.items())) if fallbacks else (),
        padding={
            entry.text(): tuple(map(read_padded_axis, axes.items()))
            for entry, axes in (padding.entries() if padding else ())
        },
        defaults={
            entry.text(): names.texts() for entry, names in (defaults.entries() if defaults else ())
        },
    )
    _check_names(root["functions"], [signature.function for signature in manifest.functions])
    if fallbacks:
        _check_names(fallbacks, [fallback.entry for fallback in manifest.fallbacks])
    if not manifest.executable and (manifest.functions or not manifest.fallbacks):
        raise root["executable"].fault("a text of 1 or more characters")
    if missing := sorted(manifest.kept_files - set(manifest.files)):
        raise FieldError(f"files has no digest of {missing[0]}")
    return manifest


def _gate(raw: Field) -> FunctionGate:
    return FunctionGate(
        raw["function"].text(),
        raw["verdict"].one_of(VERDICTS),
        raw["reason"].text(empty=True),
        raw["deterministic"].flag(),
    )


def _signature(raw: Field) -> Signature:
    kernel, entry = raw.get("kernel"), raw.get("entry")
    signature = Signature(
        raw["function"].text(),
        tuple(_tensor(tensor, is_input=True) for tensor in raw["inputs"].items()),
        tuple(_tensor(tensor, is_input=False) for tensor in raw["outputs"].items()),
        kernel.text(empty=True) if kernel else "",
        entry=entry.text() if entry else MAIN,
    )
    if not signature.outputs:
        raise raw["outputs"].fault("at least one output")
    for name, tensors in (("inputs", signature.inputs), ("outputs", signature.outputs)):
        _check_names(raw[name], [tensor.name for tensor in tensors])
    return signature


def _tensor(raw: Field, *, is_input: bool) -> Tensor:
    """Read a tensor; an input must have every extent."""
    name, dtype, shape = raw["name"].text(), raw["dtype"].one_of(DTYPES), raw["shape"]
    if shape.value is None and not is_input:
        return Tensor(name, None, dtype)
    extents = tuple(
        extent.integer(0 if is_input else -1, MAX_TENSOR_BYTES) for extent in shape.items()
    )
    size_bytes = math.prod(max(1, extent) for extent in extents) * DTYPES[dtype]
    if len(extents) > MAX_DIMENSIONS or size_bytes > MAX_TENSOR_BYTES:
        raise shape.fault(
            f"a shape of at most {MAX_DIMENSIONS} dimensions and {MAX_TENSOR_BYTES} bytes"
        )
    return Tensor(name, extents, dtype)


def _check_names(raw: Field, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise FieldError(f"{raw.path} has the name {name!r} twice")


def _library(raw: Field) -> RequiredLibrary:
    file = raw.get("file")
    return RequiredLibrary(
        raw["distribution"].text(), raw["version"].text(), file.text(empty=True) if file else ""
    )


def _precision(raw: Field) -> ReducedPrecision:
    return ReducedPrecision(
        raw["reduced"].flag(), raw["tolerance"].number(), frozenset(raw["probabilities"].texts())
    )


def _library_problem(name: str, library: RequiredLibrary) -> str:
    advice = f"run `pip install '{library.distribution}=={library.version}'`"
    try:
        installed, package = library_version(name), library_distribution(name)
    except BackendError:
        if library_override(name):
            return ""  # the version of a file in COLLAGE_LIB_<NAME> is its user's responsibility
        return f"the library {name!r} is not installed: {advice}"
    if package != library.distribution:
        return f"the library {name!r} is that of {package} here, not of {library.distribution}"
    if installed == library.version:
        return ""
    return f"the library {name!r} has version {installed}, but {library.version} was measured: {advice}"
