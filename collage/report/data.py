"""The details of the report's page beside the summary (`collage.report.summary`).

Times are in seconds; None means no measurement, with a reason beside it.
"""

from enum import StrEnum

from pydantic import Field

from collage.report.summary import FrozenModel, Summary
from collage.runtime.function_names import MAIN


class CandidateState(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    UNMEASURED = "unmeasured"


class TensorInfo(FrozenModel):
    """A named tensor; `type` is a text like `float32[1, 3, 224, 224]`."""

    name: str
    type: str


class GraphNode(FrozenModel):
    """One node; `inputs` and `outputs` are indices of neighbours, `types` the types of its results."""

    index: int
    name: str
    op: str
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    types: tuple[str, ...] = ()


class Alternative(FrozenModel):
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


class RegionReport(FrozenModel):
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


class InvalidCandidate(FrozenModel):
    backend: str
    variant: str = ""
    nodes: tuple[int, ...]
    ops: tuple[str, ...] = ()
    reason: str


class UnmeasuredCandidate(FrozenModel):
    """A candidate without a measurement; `bound_s` is its lower bound, in seconds."""

    backend: str
    variant: str = ""
    nodes: tuple[int, ...]
    bound_s: float | None = None
    reason: str


class MeasuredPlan(FrozenModel):
    """A plan, or an original framework (`baseline`), with its end-to-end latency."""

    name: str
    predicted_s: float | None = None
    measured_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    reason: str = ""
    baseline: bool = False
    chosen: bool = False


class NodeRest(FrozenModel):
    """Count of unlisted candidates with a node, for one backend and state."""

    node: int
    backend: str
    state: CandidateState
    count: int


class FunctionReport(FrozenModel):
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


class PeakRates(FrozenModel):
    """Highest measured rates of the machine; bounds use `bytes_per_s`, the highest rate of any cache."""

    flops_per_s: float
    bytes_per_s: float
    memory_bytes_per_s: float


REPORT_SCHEMA_VERSION = 3


class ReportData(FrozenModel):
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
