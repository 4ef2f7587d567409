"""The manifest of a bundle, with a schema version, for serving and publishing.

The loader (`collage.runtime.loader`) reads the same file with the standard library alone.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from collage.runtime.function_names import MAIN
from collage.verify.verdict import Verdict

SCHEMA_VERSION = 3
EXECUTABLE = "model.so"
"""Name of the executable in a bundle."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorEntry(_Frozen):
    """A named input or output; `dtype` is numpy's name.

    An output's shape has -1 for a data-dependent dimension, and is None for a data-dependent rank. Inputs
    have static shapes.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str


class SignatureEntry(_Frozen):
    """One function of the executable: one shape set of an entry.

    `kernel` is the symbol of the only kernel of the function, for calls without the virtual machine; else "".
    """

    function: str
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    kernel: str = ""
    entry: str = MAIN


class Cpu(_Frozen):
    """The processor of the build; loading requires all of its features."""

    model: str
    features: tuple[str, ...]


class LibraryEntry(_Frozen):
    """A vendor library of kernels: its distribution on the package index and exact version.

    `file` is a pattern of the library's file name in the distribution, for loaders without the backend.
    """

    distribution: str
    version: str
    file: str


class MeasuredLatency(_Frozen):
    """Median latency of one call in seconds, with its 95 % interval; None, with a reason, if it failed."""

    seconds: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


class Ratio(_Frozen):
    """Ratio of latencies, bundle over framework, round by round: the median with its 95 % interval.

    An end of None is unknown: there were too few rounds.
    """

    ratio: float
    low: float | None
    high: float | None


class FunctionGateEntry(_Frozen):
    """The gate's decision about one function.

    Attributes:
        function: name of the function in the executable.
        original: framework for the original file as fallback; "" for a plan of regions.
        latency: latencies of the bundle ("collage") and of every framework on the original file.
        ratios: ratios of the bundle to each framework.
        verdict: "not slower", "slower" or "unproven" (`collage.verify.verdict`).
        reason: explanation of the decision.
        deterministic: True if repeated calls give equal numbers; else golden data holds only shapes and
            dtypes.
    """

    function: str
    original: str = ""
    latency: dict[str, MeasuredLatency]
    ratios: dict[str, Ratio]
    verdict: Verdict
    reason: str
    deterministic: bool = True


class NanTreatment(StrEnum):
    """What a region does with NaN."""

    KEPT = ""
    HIDDEN = "hidden"
    """It gives a number where the original gives NaN."""
    SPREAD = "spread"
    """Elements near a NaN may become NaN too."""


class NanRegion(_Frozen):
    """A region of the plan that does not treat NaN as the original does."""

    function: str
    nodes: tuple[int, ...]
    backend: str
    nan: NanTreatment


class ReducedRegion(_Frozen):
    """A region of the plan below the model's precision, with its own error."""

    function: str
    nodes: tuple[int, ...]
    backend: str
    precision: str
    error: float


class PrecisionEntry(_Frozen):
    """The permission for reduced precision and its results.

    The error of an output is max |actual - fp32| / max |fp32|, the largest over all accuracy samples; the
    scale of `probabilities` is 1 (`collage.runtime.precision`).
    """

    reduced: bool
    tolerance: float
    probabilities: tuple[str, ...]
    errors: dict[str, float | None]
    regions: tuple[ReducedRegion, ...] = ()


class ModelValueEntry(_Frozen):
    """An input or output of the original model.

    Attributes:
        name: its name.
        type: its type, e.g. "tensor(float32)" (`collage.runtime.value_types`).
        shape: extents of a tensor, -1 where any is possible; None for an unknown rank or no tensor.
        has_default: whether callers may leave the input out.
        place: its position among the framework's inputs or outputs.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None
    has_default: bool = False
    place: int


class FallbackEntry(_Frozen):
    """The original model for inputs that no function takes (`collage.runtime.fallback`).

    Attributes:
        entry: entry point that it answers.
        framework: framework that runs it in the serving process.
        precision: precision of matrix products in OpenVINO.
        file: name of the ONNX file among the bundle's files.
        weights: name of the file of its external data; "" without.
        inputs: inputs of the model.
        outputs: outputs of the model.
    """

    entry: str = MAIN
    framework: str
    precision: str = "f32"
    file: str
    weights: str = ""
    inputs: tuple[ModelValueEntry, ...]
    outputs: tuple[ModelValueEntry, ...]


class CropEntry(_Frozen):
    """An axis of an output whose extent follows a padded axis: ceil(extent / divisor) + offset."""

    output: str
    axis: int
    divisor: int = 1
    offset: int = 0


class PaddedAxisEntry(_Frozen):
    """An axis of an input that may be padded at its end with `value` (`collage.runtime.padding`)."""

    input: str
    axis: int
    value: float
    crops: tuple[CropEntry, ...] = ()


class OriginalModel(_Frozen):
    """The ONNX file of an entry: its name, and the digest of it with its external data."""

    path: str
    sha256: str
    entry: str = MAIN


class Provenance(_Frozen):
    """Origin of the bundle: a file for each entry, and the identities of its kernels' backends."""

    models: tuple[OriginalModel, ...]
    collage_version: str
    environment_digest: str
    seed: int
    toolchains: dict[str, str] = {}


class ManifestDocument(_Frozen):
    """The manifest, written last: a folder without it is no bundle."""

    schema_version: int = SCHEMA_VERSION
    executable: str = EXECUTABLE
    """File of the executable; "" for a bundle of the fallback alone."""
    functions: tuple[SignatureEntry, ...]
    fallbacks: tuple[FallbackEntry, ...] = ()
    """Original models for other inputs, at most one for each entry point."""
    padding: dict[str, tuple[PaddedAxisEntry, ...]] = {}
    """Axes that may be padded to a function's shapes, by entry."""
    defaults: dict[str, tuple[str, ...]] = {}
    """Names of the inputs whose defaults are constants of the functions, by entry."""
    threads: int
    cpu: Cpu
    libraries: dict[str, LibraryEntry]
    gate: tuple[FunctionGateEntry, ...]
    """One entry per function, in the order of `functions`."""
    allow_slower: bool = False
    """True for a bundle against the gate's decision: for experiments, never published or served."""
    provenance: Provenance
    precision: PrecisionEntry | None = None
    nan: tuple[NanRegion, ...] = ()
    """Regions that hide or spread NaN."""
    quantised: bool = False
    """True for a quantised model: correct outputs may differ by one quantisation step."""
    device: str = "cpu"
    """Device of the kernels."""
    compute_capability: str = ""
    """Compute capability of the build's GPU, e.g. "90"; "" without a GPU."""
    files: dict[str, str]
