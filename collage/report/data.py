"""The data of a compile report: models for `--json`, the terminal and the HTML page.

`Summary` is the document of `--json`; its keys are a public interface. `ReportData` adds the details of the
page. Times are in seconds; None means no measurement, with a reason beside it.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from collage.bundle.manifest import NanTreatment, Ratio
from collage.runtime.function_names import MAIN
from collage.verify.verdict import Verdict


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True
    )


class PlannedRegion(_Frozen):
    """One region of the chosen plan.

    Attributes:
        function: name of the function.
        nodes: indices of its nodes.
        ops: operator of each node.
        backend: name of the backend.
        label: short name of the operators.
        cost_s: predicted cost, in seconds; 0 for host regions.
        precision: "" for the model's precision, "int8" for quantised regions, "bf16" or "tf32" for
            reduced precision.
        error: numerical error of a region with reduced precision, 0 otherwise.
        nan: treatment of NaN: "" for the original's, "hidden" or "spread" (docs/numerics.md).
    """

    function: str
    nodes: tuple[int, ...]
    ops: tuple[str, ...]
    backend: str
    label: str
    cost_s: float | None
    precision: str = ""
    error: float = 0.0
    nan: NanTreatment = NanTreatment.KEPT


class Latencies(_Frozen):
    """Median latency of one call, in seconds; `baseline_reasons` explains every baseline of None."""

    collage_s: float | None
    baselines: dict[str, float | None]
    baseline_reasons: dict[str, str] = Field(default_factory=dict)


class CandidateCounts(_Frozen):
    """Counts of candidates; all but `enumerated` count structurally different ones."""

    enumerated: int = 0
    unique: int = 0
    measured: int = 0
    cached: int = 0
    invalid: int = 0


class StageSeconds(_Frozen):
    """Wall time of each stage, in seconds; the key of `import_s` is `import`."""

    import_s: float = Field(default=0.0, alias="import")
    enumerate: float = 0.0
    measure: float = 0.0
    search: float = 0.0
    tune: float = 0.0
    assemble: float = 0.0
    verify: float = 0.0


class TuningFacts(_Frozen):
    """Results of tuning.

    Attributes:
        trials: number of measured schedules.
        failed: number of trials without a valid time.
        kernels: number of kernels with trials.
        tuned: number of tuned kernels among the candidates.
        saved_s: predicted saving of the best plan with tuned kernels, in seconds.
    """

    trials: int = 0
    failed: int = 0
    kernels: int = 0
    tuned: int = 0
    saved_s: float = 0.0


class GateResult(_Frozen):
    """The gate's decision: whether the bundle is proven as fast as every framework."""

    passed: bool
    reason: str = ""


class Optimality(_Frozen):
    """How far the best measured plan can be from the optimum, by isolated costs (`collage.search.bounds`).

    Attributes:
        plan_s: sum of costs of the best measured plan, in seconds.
        bound_s: no plan of the candidates has a lower sum, in seconds; unmeasured ones have roofline bounds.
        proven: True if the measured plan is the optimum.
    """

    plan_s: float
    bound_s: float
    proven: bool


class FunctionSummary(_Frozen):
    """Results of one function (one shape set of an entry).

    Attributes:
        function: name of the function.
        entry: name of its entry.
        latency: measured latencies of the bundle and the baselines.
        speedup_over_best: fastest baseline over the bundle; None without a baseline.
        predicted_s: sum of the regions' in-context costs, scaled by `pace`, in seconds.
        alone_s: sum of the regions' isolated costs, in seconds.
        pace: speed factor of a shared machine: how much slower it was during the final comparison than
            while costs were measured, estimated from another plan; 1 means equal speed.
        verdict: the gate's verdict.
        reason: explanation of the verdict.
        ratios: time of the bundle over the time of each framework.
        original: framework for the original file as fallback; "" for a plan of regions.
        deterministic: True if repeated calls give equal outputs.
        optimality: proof by the bounds of unmeasured candidates; None without a measured plan.
    """

    function: str
    entry: str = MAIN
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
    optimality: Optimality | None = None


class PrecisionResult(_Frozen):
    """Results of mixed-precision compilation.

    Attributes:
        tolerance: largest permitted error of an output (`collage.runtime.precision`).
        trials: number of input sets for the accuracy check of plans.
        errors: largest error of each output of the shipped plan; None if not comparable.
        reduced_regions: number of shipped regions below float32 precision.
        rejected: plans with an error above the tolerance, with the reason.
        baselines: largest error of each framework below float32 precision.
        excused: frameworks exempt from the comparison, with the reason: an error above the tolerance.
        notes: explanation of the result.
    """

    tolerance: float
    trials: int
    errors: dict[str, float | None]
    reduced_regions: int
    rejected: dict[str, str] = Field(default_factory=dict)
    baselines: dict[str, float | None] = Field(default_factory=dict)
    excused: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class ModelFile(_Frozen):
    """The ONNX file of an entry; `sha256` covers its external data too."""

    entry: str = MAIN
    file: str
    sha256: str


class FootprintResult(_Frozen):
    """Cost of keeping the bundle open, with its fallback, beside ONNX Runtime's with the original model.

    Attributes:
        size_bytes: size of the bundle's files that serve.
        load_s: time until the first call, in seconds.
        rss_bytes: resident memory of a process after calls of every function.
        onnxruntime_size_bytes: size of the original model.
        onnxruntime_load_s: the same of ONNX Runtime.
        onnxruntime_rss_bytes: the same of ONNX Runtime.
    """

    size_bytes: int
    load_s: float
    rss_bytes: int
    onnxruntime_size_bytes: int
    onnxruntime_load_s: float
    onnxruntime_rss_bytes: int


class OtherShapesResult(_Frozen):
    """Answers to other shapes than the compiled ones.

    Attributes:
        fallbacks: framework of the original model in the bundle, by entry.
        padding: axes that may be padded, e.g. "ids:1".
        footprint: cost of keeping the bundle open; None for a bundle of one function alone.
    """

    fallbacks: dict[str, str] = Field(default_factory=dict)
    padding: tuple[str, ...] = ()
    footprint: FootprintResult | None = None


class Summary(_Frozen):
    """The one document of `collage compile --json`.

    `speedup_over_best` is the minimum over functions; the gate passes if it passes for every function.
    """

    models: tuple[ModelFile, ...]
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
    """Notes of the import, e.g. obstacles to finer regions."""
    precision: PrecisionResult | None = None
    """None if only float32 was allowed."""
    other_shapes: OtherShapesResult = Field(default_factory=OtherShapesResult)

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
    """A named tensor; `type` is a text like `float32[1, 3, 224, 224]`."""

    name: str
    type: str


class GraphNode(_Frozen):
    """One node; `inputs` and `outputs` are indices of neighbours, `types` the types of its results."""

    index: int
    name: str
    op: str
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    types: tuple[str, ...] = ()


class Alternative(_Frozen):
    """A candidate with nodes of a region.

    `regret_s` is the extra time of the best plan with this candidate, in seconds; None without such a plan
    or without a measurement (see `reason`).
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
    """One region of the chosen plan with its alternatives.

    Attributes:
        alone_s: isolated cost of the kernel, in seconds.
        predicted_s: isolated cost corrected by in-context samples of this kernel or its kind, in seconds.
        low_s: lower end of the 95 % interval of the cost, in seconds.
        high_s: upper end of the 95 % interval of the cost, in seconds.
        measured_s: time inside the shipped executable, in seconds; None for views.
        bound_s: lower bound for direct algorithms at the machine's peaks, in seconds. Algorithms with fewer
            FLOP, like Winograd's, may be faster. None below float32 precision,
            because peaks are those of float32.
        limit: cause of the bound, "bytes" or "flops".
        moved_bytes: memory traffic of operands and results, in bytes.
        flops: floating-point operations of a direct algorithm.
        alternatives: candidates with nodes of the region, in order of regret.
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
    """A candidate without a measurement; `bound_s` is its lower bound, in seconds."""

    backend: str
    variant: str = ""
    nodes: tuple[int, ...]
    bound_s: float | None = None
    reason: str


class MeasuredPlan(_Frozen):
    """A plan, or an original framework (`baseline`), with its end-to-end latency."""

    name: str
    predicted_s: float | None = None
    measured_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    reason: str = ""
    baseline: bool = False
    chosen: bool = False


class NodeRest(_Frozen):
    """Count of unlisted candidates with a node, for one backend and state."""

    node: int
    backend: str
    state: CandidateState
    count: int


class FunctionReport(_Frozen):
    """Everything about one function (one shape set of an entry).

    `considered` holds the best candidates of every node, backend and state; `rest` counts the others.
    """

    name: str
    entry: str = MAIN
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
    """Highest measured rates of the machine; bounds use `bytes_per_s`, the highest rate of any cache."""

    flops_per_s: float
    bytes_per_s: float
    memory_bytes_per_s: float


REPORT_SCHEMA_VERSION = 3


class ReportData(_Frozen):
    """The data of the HTML page, stored in a bundle as `report.json`.

    Attributes:
        schema_version: version of this document.
        summary: the document of `--json`.
        model: names of the entries' files.
        functions: reports of the functions, in the order of the model.
        environment: facts by name, e.g. `{"cpu": ..., "onnxruntime": "1.31.0"}`.
        notes: notes of the import, e.g. operators without support in some backends.
        peaks: peaks of the roofline; None without a measurement.
    """

    schema_version: int = REPORT_SCHEMA_VERSION
    summary: Summary
    model: str
    functions: tuple[FunctionReport, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    peaks: PeakRates | None = None

    def to_json(self) -> str:
        """Return the document of a bundle; regions omit alternatives, which `considered` holds."""
        excluded = {"functions": {"__all__": {"regions": {"__all__": {"alternatives"}}}}}
        return self.model_dump_json(exclude=excluded, exclude_defaults=False)
