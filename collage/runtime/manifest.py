"""Read a bundle's manifest with the standard library alone, and refuse what cannot run here.

The schema is written by `collage.bundle.manifest`; this reader takes only what running needs.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collage.errors import BackendError, BundleError, UnprovenError
from collage.runtime.cpu import cpu_flags
from collage.runtime.gpu import gpu_problem
from collage.runtime.plugin import (
    library_distribution,
    library_names,
    library_override,
    library_version,
    register_library,
)

SCHEMA_VERSION = 2
NOT_SLOWER = "not slower"
"""Verdict of the gate on a function that is proven as fast as every original framework."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named input or output; `dtype` is numpy's name.

    An output's shape has -1 for a dimension that depends on data, and is None when even their number
    does. Inputs have every dimension.
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
    """One function of the executable (one shape set)."""

    function: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kernel: str = ""
    """Symbol of the one kernel that is the whole function, where calls need no virtual machine."""


@dataclass(frozen=True, slots=True)
class Library:
    """A vendor library that kernels call; `file` matches its name in the distribution."""

    distribution: str
    version: str
    file: str


@dataclass(frozen=True, slots=True)
class Precision:
    """What less than float32 was allowed: `reduced` tells whether the executable makes use of it.

    Outputs may then be off by `tolerance`; `probabilities` are those with a scale of 1.
    """

    reduced: bool
    tolerance: float
    probabilities: frozenset[str]


@dataclass(frozen=True, slots=True)
class FunctionGate:
    """What the gate said of one function; `deterministic` tells whether its golden data can be compared."""

    function: str
    verdict: str
    reason: str
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class Manifest:
    """What running a bundle needs to know."""

    executable: str
    functions: tuple[Signature, ...]
    threads: int
    cpu_model: str
    cpu_features: tuple[str, ...]
    libraries: Mapping[str, Library]
    files: Mapping[str, str]
    precision: Precision | None = None
    """None where nothing but float32 was allowed."""
    quantised: bool = False
    """The model rounds to small integers, so two right answers may differ by one step."""
    device: str = "cpu"
    """Where its kernels run."""
    compute_capability: str = ""
    """Of the GPU that it was built for: its kernels are for GPUs with that major number."""
    gate: tuple[FunctionGate, ...] = ()

    @property
    def random_functions(self) -> frozenset[str]:
        """Names of the functions that compute other numbers in every call."""
        return frozenset(one.function for one in self.gate if not one.deterministic)


def read_manifest(folder: Path) -> Manifest:
    """Read `folder/manifest.json`. Raises BundleError when there is none or it cannot be understood."""
    file = folder / "manifest.json"
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"{folder} holds no bundle: manifest.json is missing") from None
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error}. Publish the bundle again.") from error
    return parse_manifest(data, str(file))


def parse_manifest(data: bytes, what: str) -> Manifest:
    """Read a manifest's bytes; `what` names it in errors. Raises BundleError for one that is none."""
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise BundleError(f"{what} cannot be read: {error}. Publish the bundle again.") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{what} has schema version {version}; this Collage reads {SCHEMA_VERSION}. Compile the "
            "model again, or install the Collage that made the bundle."
        )
    try:
        return _parse(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{what} lacks or garbles {error}. Publish the bundle again.") from error


def verify_files(folder: Path, manifest: Manifest) -> None:
    """Raise BundleError unless every file has the content that the manifest says."""
    if manifest.executable not in manifest.files:
        raise BundleError(f"the manifest of {folder} has no digest of {manifest.executable}")
    for name, expected in sorted(manifest.files.items()):
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()):
            raise BundleError(f"the manifest of {folder} names a file outside of it: {name}")
        try:
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise BundleError(f"{file} of the bundle cannot be read: {error.strerror}") from error
        if found != expected:
            raise BundleError(
                f"{file} was changed after the bundle was made (sha256 {found[:12]}, expected "
                f"{expected[:12]}). Fetch or publish the bundle again."
            )


def declare_libraries(manifest: Manifest) -> None:
    """Make the libraries of backends that are not installed here known to the plug-in."""
    for name, library in manifest.libraries.items():
        if name not in library_names() and library.file:
            requirement = f"{library.distribution}=={library.version}"
            register_library(name, library.distribution, library.file, requirement)


def verify_machine(manifest: Manifest) -> None:
    """Raise BundleError, naming everything that is missing, unless the bundle fits this machine."""
    problems = []
    missing = sorted(set(manifest.cpu_features) - cpu_flags())
    if missing:
        problems.append(
            f"this processor lacks {', '.join(missing)}; the bundle was made for a machine like "
            f"{manifest.cpu_model}. Compile the model on this kind of machine."
        )
    if manifest.device == "cuda" and (problem := gpu_problem(manifest.compute_capability)):
        problems.append(problem)
    problems += [
        problem
        for name, library in sorted(manifest.libraries.items())
        if (problem := _library_problem(name, library))
    ]
    if problems:
        raise BundleError("the bundle does not fit this machine:\n  " + "\n  ".join(problems))


def refuse_unproven(manifest: Manifest, what: str) -> None:
    """Refuse a bundle that is not proven as fast as the original frameworks, function by function.

    Args:
        manifest: of the bundle.
        what: the bundle, as the message calls it.

    Raises:
        UnprovenError: the gate said so, and the bundle was written with --allow-slower.
    """
    judged = {one.function: one for one in manifest.gate}
    reasons = []
    for name in (signature.function for signature in manifest.functions):
        found = judged.get(name)
        if found is None:
            reasons.append(f"{name} was not judged")
        elif found.verdict != NOT_SLOWER:
            reasons.append(f"{name} is {found.verdict}: {found.reason}")
    if reasons:
        raise UnprovenError(
            f"{what} is for trying out only, as --allow-slower has it ({'; '.join(reasons)}); compile the "
            "model again without --allow-slower and --no-fallback, on a machine with less other work or with "
            "a longer --verify, and use that bundle"
        )


def read_signature(raw: dict) -> Signature:
    """Return one function's signature from its entry in a manifest."""
    return Signature(
        raw["function"],
        _tensors(raw["inputs"]),
        _tensors(raw["outputs"]),
        str(raw.get("kernel", "")),
    )


def _parse(raw: dict) -> Manifest:
    return Manifest(
        executable=raw["executable"],
        functions=tuple(read_signature(one) for one in raw["functions"]),
        threads=int(raw["threads"]),
        cpu_model=raw["cpu"]["model"],
        cpu_features=tuple(raw["cpu"]["features"]),
        libraries={
            name: Library(library["distribution"], library["version"], library.get("file", ""))
            for name, library in raw["libraries"].items()
        },
        files=dict(raw["files"]),
        precision=_precision(raw.get("precision")),
        quantised=bool(raw.get("quantised", False)),
        device=str(raw.get("device", "cpu")),
        compute_capability=str(raw.get("compute_capability", "")),
        gate=tuple(
            FunctionGate(
                str(one["function"]),
                str(one["verdict"]),
                str(one["reason"]),
                bool(one["deterministic"]),
            )
            for one in raw["gate"]
        ),
    )


def _precision(raw: dict | None) -> Precision | None:
    if raw is None:
        return None
    certain = frozenset(map(str, raw["probabilities"]))
    return Precision(bool(raw["reduced"]), float(raw["tolerance"]), certain)


def _tensors(raw: list[dict]) -> tuple[Tensor, ...]:
    return tuple(Tensor(one["name"], _shape(one["shape"]), one["dtype"]) for one in raw)


def _shape(raw: list[int] | None) -> tuple[int, ...] | None:
    return None if raw is None else tuple(raw)


def _library_problem(name: str, library: Library) -> str:
    advice = f"run `pip install '{library.distribution}=={library.version}'`"
    try:
        found, package = library_version(name), library_distribution(name)
    except BackendError:
        if library_override(name):
            return ""  # whoever names a file by hand answers for its version
        return f"the library {name!r} is not installed: {advice}"
    if package != library.distribution:
        return f"the library {name!r} is that of {package} here, not of {library.distribution}"
    if found == library.version:
        return ""
    return f"the library {name!r} has version {found}, but {library.version} was measured: {advice}"
