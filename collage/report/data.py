"""The facts of one compile, once: `--json`, the terminal and the HTML page all show these models.

`Summary` is the document of `--json`; its keys are a public interface. `ReportData` adds what only
the page shows. Seconds are None where there is no measurement; a reason then says why.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from collage.bundle.manifest import Ratio
from collage.verify.verdict import Verdict


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True
    )


class PlannedRegion(_Frozen):
    """One chosen candidate; `label` names its rule, `cost_s` is predicted (0 for host regions).

    `precision` is what it computes in: "" as the model says, "int8" where the model is quantised, "bf16"
    where less was allowed; `error` is then its own (0 otherwise).
    """

    function: str
    nodes: tuple[int, ...]
    ops: tuple[str, ...]
    backend: str
    label: str
    cost_s: float | None
    precision: str = ""
    error: float = 0.0


class Latencies(_Frozen):
    """Median seconds of one call; a baseline that is None has an entry in `baseline_reasons`."""

    collage_s: float | None
    baselines: dict[str, float | None]
    baseline_reasons: dict[str, str] = Field(default_factory=dict)


class CandidateCounts(_Frozen):
    """`unique` counts structurally different candidates; the rest count those."""

    enumerated: int = 0
    unique: int = 0
    measured: int = 0
    cached: int = 0
    invalid: int = 0


class StageSeconds(_Frozen):
    """Wall seconds of each stage; `import_s` is the key `import`."""

    import_s: float = Field(default=0.0, alias="import")
    enumerate: float = 0.0
    measure: float = 0.0
    search: float = 0.0
    tune: float = 0.0
    assemble: float = 0.0
    verify: float = 0.0


class TuningFacts(_Frozen):
    """Trials of schedules, on how many `kernels`; `tuned` of them became candidates.

    `saved_s`: how much less the best plan with them is predicted to take.
    """

    trials: int = 0
    failed: int = 0
    kernels: int = 0
    tuned: int = 0
    saved_s: float = 0.0


class GateResult(_Frozen):
    """Whether the bundle is proven as fast as every original framework, for all functions or one."""

    passed: bool
    reason: str = ""


class FunctionSummary(_Frozen):
    """What came of one function (one shape set).

    `predicted_s` is the sum of the regions' costs in place, `alone_s` that of their costs alone. A machine
    with other guests is not as fast at all times: `pace` is how many times as long as when those costs were
    taken another plan took when the latencies were, and `predicted_s` is at that pace. `ratios` are the
    function's times over those of each framework that ran; `original` names the framework that runs the
    original file itself, "" for a plan of regions; `deterministic` tells whether two calls give the same.
    """

    function: str
    latency: Latencies
    speedup_over_best: float | None
    predicted_s: float | None
    alone_s: float | None = None
    pace: float = 1.0
    verdict: Verdict
    reason: str
    ratios: dict[str, Ratio] = Field(default_factory=dict)
    original: str = ""
    deterministic: bool = True


class PrecisionResult(_Frozen):
    """What came of the permission to compute in less than float32.

    Attributes:
        tolerance: largest error of an output that is allowed (`collage.runtime.precision`).
        trials: sets of inputs on which whole plans were tried.
        errors: largest error of every output of what ships; None where it cannot be compared.
        reduced_regions: regions of what ships that compute in less than float32.
        rejected: plans that were beyond the tolerance, with what was.
        baselines: largest error of frameworks that ran in less than float32.
        excused: those of them that do not count, because they are beyond the tolerance.
        notes: why it came so, in plain words.
    """

    tolerance: float
    trials: int
    errors: dict[str, float | None]
    reduced_regions: int
    rejected: dict[str, str] = Field(default_factory=dict)
    baselines: dict[str, float | None] = Field(default_factory=dict)
    excused: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Summary(_Frozen):
    """The one document of `collage compile --json`.

    `speedup_over_best` is the least of any function; the gate has passed where it has for each.
    """

    model_sha256: str
    backends: tuple[str, ...]
    threads: int
    functions: tuple[FunctionSummary, ...]
    speedup_over_best: float | None
    plan: tuple[PlannedRegion, ...]
    candidates: CandidateCounts
    seconds: StageSeconds
    gate: GateResult
    bundle: str
    tuning: TuningFacts = Field(default_factory=TuningFacts)
    notes: tuple[str, ...] = ()
    """What kept the model from finer regions, in plain words."""
    precision: PrecisionResult | None = None
    """None where nothing but float32 was allowed."""

    @property
    def latency(self) -> Latencies:
        """Latencies of the first function."""
        return self.functions[0].latency

    def to_json(self) -> str:
        """Return the document on one line, keys in the documented order."""
        return self.model_dump_json()


class CandidateState(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    UNMEASURED = "unmeasured"


class TensorInfo(_Frozen):
    """A named tensor; `type` is text such as `float32[1, 3, 224, 224]`."""

    name: str
    type: str


class GraphNode(_Frozen):
    """One node; `inputs` and `outputs` are the indices of its neighbours, `types` of its results."""

    index: int
    name: str
    op: str
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    types: tuple[str, ...] = ()


class Alternative(_Frozen):
    """A candidate that overlaps a region.

    `regret_s`: how much slower the best plan that uses it is; None where no plan can use it or where
    it was not measured (`reason` says which).
    """

    backend: str
    variant: str = ""
    nodes: tuple[int, ...]
    state: CandidateState
    cost_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    regret_s: float | None = None
    reason: str = ""
    chosen: bool = False


class RegionReport(_Frozen):
    """One region of the chosen plan and what else could have run there.

    `alone_s` is what the kernel took when it was measured alone; `predicted_s` is that, corrected by what
    it, or others of its kind, took inside executables; `measured_s` is what it took inside the one that
    ships, None for views. `bound_s` is what no direct algorithm can beat at the machine's peaks, `limit`
    ("bytes" or "flops") where it comes from; an algorithm that needs fewer FLOP, like Winograd's, may be
    faster. Nothing bounds a region in less than float32: the peaks are those of float32.
    """

    nodes: tuple[int, ...]
    ops: tuple[str, ...]
    backend: str
    variant: str = ""
    precision: str = ""
    error: float = 0.0
    label: str = ""
    alone_s: float | None = None
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    measured_s: float | None = None
    bound_s: float | None = None
    limit: str = ""
    moved_bytes: int = 0
    flops: int = 0
    alternatives: tuple[Alternative, ...] = ()


class InvalidCandidate(_Frozen):
    backend: str
    variant: str = ""
    nodes: tuple[int, ...]
    ops: tuple[str, ...] = ()
    reason: str


class UnmeasuredCandidate(_Frozen):
    """Never measured; `bound_s` is its lower bound, `reason` why it could not matter."""

    backend: str
    variant: str = ""
    nodes: tuple[int, ...]
    bound_s: float | None = None
    reason: str


class MeasuredPlan(_Frozen):
    """A whole plan, or an original framework (`baseline`), measured end to end."""

    name: str
    predicted_s: float | None = None
    measured_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    reason: str = ""
    baseline: bool = False
    chosen: bool = False


class NodeRest(_Frozen):
    """How many more candidates of one backend and state contain a node than are listed."""

    node: int
    backend: str
    state: CandidateState
    count: int


class FunctionReport(_Frozen):
    """Everything about one function (one shape set).

    `considered` holds, for every node, the best few candidates with it of each backend and state;
    `rest` counts those that are left out.
    """

    name: str
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    nodes: tuple[GraphNode, ...] = ()
    regions: tuple[RegionReport, ...] = ()
    invalid: tuple[InvalidCandidate, ...] = ()
    unmeasured: tuple[UnmeasuredCandidate, ...] = ()
    plans: tuple[MeasuredPlan, ...] = ()
    considered: tuple[Alternative, ...] = ()
    rest: tuple[NodeRest, ...] = ()


class PeakRates(_Frozen):
    """The machine's highest measured rates; bounds use `bytes_per_s`, the best of any cache."""

    flops_per_s: float
    bytes_per_s: float
    memory_bytes_per_s: float


REPORT_SCHEMA_VERSION = 2


class ReportData(_Frozen):
    """What the HTML page shows, and what a bundle keeps as `report.json`.

    Attributes:
        summary: the document of `--json`.
        model: name of the model's file.
        functions: in the order of the model.
        environment: fact to value, e.g. `{"cpu": ..., "onnxruntime": "1.31.0"}`.
        peaks: of the roofline; None where they were not measured.
        notes: what import had to say, e.g. operators that only some backends can run.
    """

    schema_version: int = REPORT_SCHEMA_VERSION
    summary: Summary
    model: str
    functions: tuple[FunctionReport, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    peaks: PeakRates | None = None

    def to_json(self) -> str:
        """Return the document of a bundle; regions leave out what `considered` holds."""
        leave_out = {"functions": {"__all__": {"regions": {"__all__": {"alternatives"}}}}}
        return self.model_dump_json(exclude=leave_out, exclude_defaults=False)
