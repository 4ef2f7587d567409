"""The document of `collage compile --json`: its keys are a public interface.

Times are in seconds; None means no measurement, with a reason beside it.
"""

from pydantic import BaseModel, ConfigDict, Field

from collage.bundle.manifest import NanTreatment, Ratio
from collage.runtime.function_names import MAIN
from collage.verify.verdict import Verdict


class FrozenModel(BaseModel):
    """Base of the report's models: values that do not change, without unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True
    )


class PlannedRegion(FrozenModel):
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


class Latencies(FrozenModel):
    """Median latency of one call, in seconds; `baseline_reasons` explains every baseline of None."""

    collage_s: float | None
    baselines: dict[str, float | None]
    baseline_reasons: dict[str, str] = Field(default_factory=dict)


class CandidateCounts(FrozenModel):
    """Counts of candidates; all but `enumerated` count structurally different ones."""

    enumerated: int = 0
    unique: int = 0
    measured: int = 0
    cached: int = 0
    invalid: int = 0


class StageSeconds(FrozenModel):
    """Wall time of each stage, in seconds; the key of `import_s` is `import`."""

    import_s: float = Field(default=0.0, alias="import")
    enumerate: float = 0.0
    measure: float = 0.0
    search: float = 0.0
    tune: float = 0.0
    assemble: float = 0.0
    verify: float = 0.0


class TuningFacts(FrozenModel):
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


class GateResult(FrozenModel):
    """The gate's decision: whether the bundle is proven as fast as every framework."""

    passed: bool
    reason: str = ""


class Optimality(FrozenModel):
    """How far the best measured plan can be from the optimum, by isolated costs (`collage.search.bounds`).

    Attributes:
        plan_s: sum of costs of the best measured plan, in seconds.
        bound_s: no plan of the candidates has a lower sum, in seconds; unmeasured ones have roofline bounds.
        proven: True if the measured plan is the optimum.
    """

    plan_s: float
    bound_s: float
    proven: bool


class FunctionSummary(FrozenModel):
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


class PrecisionResult(FrozenModel):
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


class ModelFile(FrozenModel):
    """The ONNX file of an entry; `sha256` covers its external data too."""

    entry: str = MAIN
    file: str
    sha256: str


class FootprintResult(FrozenModel):
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


class OtherShapesResult(FrozenModel):
    """Answers to other shapes than the compiled ones.

    Attributes:
        fallbacks: framework of the original model in the bundle, by entry.
        padding: axes that may be padded, e.g. "ids:1".
        footprint: cost of keeping the bundle open; None for a bundle of one function alone.
    """

    fallbacks: dict[str, str] = Field(default_factory=dict)
    padding: tuple[str, ...] = ()
    footprint: FootprintResult | None = None


class Summary(FrozenModel):
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
