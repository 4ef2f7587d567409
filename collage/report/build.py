"""Building the report data from the results of the stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from collage.bundle.publish import ratio_of
from collage.cost import Environment
from collage.frontend import Function, Model
from collage.frontend.region import region_bytes_and_flops
from collage.graph.dataflow import OpenType, TensorType
from collage.graph.index_set import indices
from collage.measure.device import capability_of
from collage.measure.peaks import Peaks, highest
from collage.report.candidate_listing import (
    CandidateListing,
    operators_of,
    region_label,
    region_precision,
)
from collage.report.data import (
    FunctionReport,
    GraphNode,
    MeasuredPlan,
    PeakRates,
    ReportData,
    TensorInfo,
)
from collage.report.formatting import finite_or_none
from collage.report.nan_treatment import nan_treatment
from collage.report.precision import FunctionResult, PrecisionPermission, precision_result
from collage.report.summary import (
    CandidateCounts,
    FunctionSummary,
    GateResult,
    Latencies,
    ModelFile,
    Optimality,
    PlannedRegion,
    StageSeconds,
    Summary,
    TuningFacts,
)
from collage.rules.rule import HOST
from collage.search.bounds import RooflineBounds, bounded_optimum
from collage.search.graph_launches import predicted_s
from collage.verify.verdict import Verdict

LIBRARIES = ("apache-tvm", "onnxruntime", "openvino", "onednn-cpu-gomp", "numpy", "onnx")


@dataclass(frozen=True)
class CompileFacts:
    """Facts about the whole compile, for all functions."""

    models: Sequence[Model]
    backends: Sequence[str]
    environment: Environment
    counts: CandidateCounts
    seconds: Mapping[str, float]
    output: Path
    peaks: Peaks
    tuning: TuningFacts = field(default_factory=TuningFacts)
    allowed: PrecisionPermission | None = None
    """Permission for reduced precision; None if only float32 was allowed."""
    algorithmic_savings: frozenset[str] = frozenset()
    """Backends with algorithmic savings: fewer FLOP than direct algorithms, like Winograd's."""
    spreads_nan: frozenset[str] = frozenset()
    """Backends that spread NaN, like Winograd's."""


def build_report(run: CompileFacts, results: Sequence[FunctionResult]) -> ReportData:
    """Build the report of a compile."""
    peaks = _raised_peaks(run, results)
    return ReportData(
        summary=_summary(run, results, peaks),
        model=", ".join(model.path.name for model in run.models),
        functions=tuple(_function(result, peaks) for result in results),
        environment=environment_facts(run.environment),
        notes=_notes(run.models),
        peaks=PeakRates(**asdict(peaks)),
    )


def _raised_peaks(run: CompileFacts, results: Sequence[FunctionResult]) -> Peaks:
    """Raise the peaks to the rates of the plans' kernels: a probe on a loaded machine is too low."""
    peaks = run.peaks
    for result in results:
        function, costs = result.search.enumerated.function, result.search.lazy.costs
        for position, option in enumerate(result.chosen.plan.options):
            seconds = result.measured_s.get(position)
            if option.backend == HOST or not seconds:
                continue
            fastest_s = min(seconds, costs[option.key].seconds or seconds)
            moved, flops = region_bytes_and_flops(function, option.nodes)
            exceeds_peaks = option.reduced or option.backend in run.algorithmic_savings
            flops = 0 if exceeds_peaks else flops
            peaks = highest(peaks, Peaks(flops / fastest_s, moved / fastest_s, 0.0))
    return peaks


def _summary(run: CompileFacts, results: Sequence[FunctionResult], peaks: Peaks) -> Summary:
    functions = tuple(
        _function_summary(result).model_copy(update={"optimality": _optimality(run, result, peaks)})
        for result in results
    )
    speedups = [summary.speedup_over_best for summary in functions]
    failed = [summary for summary in functions if summary.verdict is not Verdict.NOT_SLOWER]
    return Summary(
        models=tuple(
            ModelFile(entry=model.entry, file=model.path.name, sha256=model.sha256)
            for model in run.models
        ),
        backends=tuple(run.backends),
        threads=run.environment.threads,
        functions=functions,
        speedup_over_best=None if None in speedups else min(filter(None, speedups)),
        plan=tuple(region for result in results for region in _plan(run, result)),
        candidates=run.counts,
        seconds=StageSeconds.model_validate(dict(run.seconds)),
        gate=GateResult(passed=not failed, reason=_reason(failed or functions)),
        bundle=str(run.output),
        tuning=run.tuning,
        notes=_notes(run.models),
        precision=precision_result(run.allowed, results) if run.allowed else None,
    )


def _notes(models: Sequence[Model]) -> tuple[str, ...]:
    """Return the notes of all imports; where there are several entries, each with its entry's name."""
    several = len(models) > 1
    return tuple(
        f"{model.entry}: {note}" if several else note for model in models for note in model.notes
    )


def _reason(functions: Sequence[FunctionSummary]) -> str:
    """Join the reasons of functions without repetition; one function is not named."""
    if len({summary.reason for summary in functions}) == 1:
        return functions[0].reason
    return "; ".join(f"{summary.function}: {summary.reason}" for summary in functions)


def _function_summary(result: FunctionResult) -> FunctionSummary:
    decision = result.decision
    baselines = {
        name: None if baseline.reason else baseline.seconds
        for name, baseline in decision.baselines.items()
    }
    counted = [seconds for name, seconds in baselines.items() if name not in decision.exempt]
    best = min((seconds for seconds in counted if seconds), default=None)
    return FunctionSummary(
        function=result.search.enumerated.function.name,
        entry=result.entry,
        latency=Latencies(
            collage_s=decision.latency.seconds,
            baselines=baselines,
            baseline_reasons={n: f.reason for n, f in decision.baselines.items() if f.reason},
        ),
        speedup_over_best=best / decision.latency.seconds if best else None,
        predicted_s=result.chosen.plan.predicted_s,
        alone_s=_alone_s(result),
        pace=result.speed_factor,
        verdict=decision.verdict,
        reason=decision.reason,
        ratios={name: ratio_of(interval) for name, interval in decision.ratios.items()},
        original=decision.chosen.original,
        deterministic=decision.is_deterministic,
    )


def _optimality(run: CompileFacts, result: FunctionResult, peaks: Peaks) -> Optimality | None:
    """Bound the optimum of the additive model from below, by isolated costs."""
    search = result.search
    bounds = RooflineBounds(
        search.enumerated.function,
        peaks,
        algorithmic_savings=run.algorithmic_savings,
        bounds_flops=not capability_of(run.environment.driver),
    )
    optimum = bounded_optimum(search.enumerated.problem, search.lazy.costs, bounds)
    if optimum is None:
        return None
    return Optimality(plan_s=optimum.plan_s, bound_s=optimum.bound_s, proven=optimum.is_proven)


def _alone_s(result: FunctionResult) -> float | None:
    """Return the latency of the chosen plan predicted from isolated costs, in seconds."""
    search = result.search
    return finite_or_none(
        predicted_s(search.enumerated.problem, search.lazy.costs, result.chosen.plan)
    )


def _plan(run: CompileFacts, result: FunctionResult) -> list[PlannedRegion]:
    function, costs = result.search.enumerated.function, result.search.costs
    return [
        PlannedRegion(
            function=function.name,
            nodes=tuple(indices(option.nodes)),
            ops=operators_of(function.graph, option),
            backend=option.backend,
            label=region_label(operators_of(function.graph, option)),
            cost_s=costs[option.key].seconds,
            precision=region_precision(function, option),
            error=costs[option.key].error,
            nan=nan_treatment(option, costs[option.key], run.spreads_nan),
        )
        for option in result.chosen.plan.options
    ]


def _function(result: FunctionResult, peaks: Peaks) -> FunctionReport:
    function = result.search.enumerated.function
    graph = function.graph
    listing = CandidateListing(result, peaks)
    listed, unlisted = listing.by_node()
    return FunctionReport(
        name=function.name,
        entry=result.entry,
        inputs=_tensors(function, graph.inputs),
        outputs=_tensors(function, graph.outputs),
        nodes=tuple(_nodes(function)),
        regions=tuple(
            listing.region(option, result.measured_s.get(position))
            for position, option in enumerate(result.chosen.plan.options)
        ),
        invalid=tuple(listing.invalid()),
        unmeasured=tuple(listing.unmeasured()),
        plans=tuple(_plans(result)),
        considered=listed,
        rest=unlisted,
    )


def _nodes(function: Function) -> Iterator[GraphNode]:
    graph = function.graph
    for node in graph.nodes:
        yield GraphNode(
            index=node.index,
            name=node.name,
            op=node.op,
            inputs=tuple(indices(graph.predecessors[node.index])),
            outputs=tuple(indices(graph.successors[node.index])),
            types=tuple(_type_text(function.type_of(value)) for value in node.outputs),
        )


def _tensors(function: Function, names: Sequence[str]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name=name, type=_type_text(function.type_of(name))) for name in names)


def _type_text(tensor: TensorType | OpenType) -> str:
    if tensor.shape is None:
        return f"{tensor.dtype}[...]" if tensor.dtype else "no tensor"
    return f"{tensor.dtype}[{', '.join('?' if size < 0 else str(size) for size in tensor.shape)}]"


def _plans(result: FunctionResult) -> Iterator[MeasuredPlan]:
    decision = result.decision
    for named in result.search.plans:
        latency = decision.latencies.get(named.name)
        yield MeasuredPlan(
            name=named.name,
            predicted_s=named.plan.predicted_s,
            measured_s=finite_or_none(latency.seconds) if latency else None,
            low_s=finite_or_none(latency.low) if latency else None,
            high_s=finite_or_none(latency.high) if latency else None,
            reason=decision.rejected.get(named.name, latency.reason if latency else ""),
            chosen=named.name == decision.chosen.name,
        )
    for name, latency in decision.baselines.items():
        yield MeasuredPlan(
            name=name,
            measured_s=finite_or_none(latency.seconds),
            low_s=finite_or_none(latency.low),
            high_s=finite_or_none(latency.high),
            reason=latency.reason,
            baseline=True,
        )


def environment_facts(environment: Environment) -> dict[str, str]:
    """Return the environment and the versions of the libraries, by name."""
    facts = {name: str(value) for name, value in asdict(environment).items()}
    for name in LIBRARIES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    return facts
