"""The manifest of a bundle: what serving teams and publishers read, schema-versioned.

The loader (`collage.runtime.loader`) reads the same file with the standard library alone.
"""

from pydantic import BaseModel, ConfigDict

from collage.verify.verdict import Verdict

SCHEMA_VERSION = 2


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tensor(_Frozen):
    """A named input or output; `dtype` is numpy's name.

    An output's shape has -1 for a dimension that depends on data, and is None when even their number
    does. Inputs have every dimension.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str


class Signature(_Frozen):
    """One function of the executable (one shape set).

    `kernel` is the symbol of the one kernel that is the whole function, where calls need no virtual machine.
    """

    function: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kernel: str = ""


class Cpu(_Frozen):
    """The processor that the executable was built for; every feature must be present to load."""

    model: str
    features: tuple[str, ...]


class Library(_Frozen):
    """A vendor library that kernels call: its distribution on the package index and exact version.

    `file` matches the library's file name in the distribution, so that a loader finds the library of a
    backend that it does not have.
    """

    distribution: str
    version: str
    file: str


class MeasuredLatency(_Frozen):
    """Median seconds of one call with its 95 % interval; None with a reason when it could not run."""

    seconds: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


class Ratio(_Frozen):
    """Time of a call over that of a framework's, round by round: the median with its 95 % interval.

    An end that is None is not known: there were too few rounds.
    """

    ratio: float
    low: float | None
    high: float | None


class FunctionGate(_Frozen):
    """What the gate said of one function.

    Attributes:
        function: its name in the executable.
        original: the framework that runs the original file itself; "" for a plan of regions.
        latency: of the bundle ("collage") and of every framework on the original file.
        ratios: of the bundle to each framework that ran.
        verdict: "not slower", "slower" or "unproven" (`collage.verify.verdict`).
        reason: the decision in words.
        deterministic: two calls give the same numbers; else golden data tells shapes and dtypes only.
    """

    function: str
    original: str = ""
    latency: dict[str, MeasuredLatency]
    ratios: dict[str, Ratio]
    verdict: Verdict
    reason: str
    deterministic: bool = True


class ReducedRegion(_Frozen):
    """A region of the plan that computes in less than the model says; `error` is its own."""

    function: str
    nodes: tuple[int, ...]
    backend: str
    precision: str
    error: float


class Precision(_Frozen):
    """What less than float32 was allowed, and what came of it.

    The error of an output is max |actual - fp32| / max |fp32|, `probabilities` with a scale of 1, the
    largest over all trials (`collage.runtime.precision`).
    """

    reduced: bool
    tolerance: float
    probabilities: tuple[str, ...]
    errors: dict[str, float | None]
    regions: tuple[ReducedRegion, ...] = ()


class Provenance(_Frozen):
    """Where the bundle comes from; `toolchains` are the identities of the backends whose kernels it holds."""

    model_path: str
    model_sha256: str
    collage_version: str
    environment_digest: str
    seed: int
    toolchains: dict[str, str] = {}


class Manifest(_Frozen):
    """Written last: a folder without it holds no bundle."""

    schema_version: int = SCHEMA_VERSION
    executable: str = "model.so"
    functions: tuple[Signature, ...]
    threads: int
    cpu: Cpu
    libraries: dict[str, Library]
    gate: tuple[FunctionGate, ...]
    """One entry a function, in the order of `functions`."""
    allow_slower: bool = False
    """Written though the gate refuses it: for trying out, never to be published or served."""
    provenance: Provenance
    precision: Precision | None = None
    quantised: bool = False
    """The model rounds to small integers, so two right answers may differ by one step."""
    device: str = "cpu"
    """Where its kernels run."""
    compute_capability: str = ""
    """Of the GPU that it was built for, e.g. "90"; "" without one."""
    files: dict[str, str]
