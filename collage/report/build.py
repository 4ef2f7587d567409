"""From what the stages found to the facts that are shown."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from collage.bundle.publish import ratio_of
from collage.cost import Cost, Environment
from collage.frontend import Function, Model
from collage.frontend.region import computes_int8, region_bytes_and_flops
from collage.graph.dataflow import DataflowGraph, OpenType, TensorType
from collage.graph.index_set import indices
from collage.measure.peaks import Peaks, highest
from collage.report.data import (
    Alternative,
    CandidateCounts,
    CandidateState,
    FunctionReport,
    FunctionSummary,
    GateResult,
    GraphNode,
    InvalidCandidate,
    Latencies,
    MeasuredPlan,
    NodeRest,
    PeakRates,
    PlannedRegion,
    RegionReport,
    ReportData,
    StageSeconds,
    Summary,
    TensorInfo,
    TuningFacts,
    UnmeasuredCandidate,
)
from collage.report.precision import Allowed, FunctionResult, precision_result
from collage.rules.rule import HOST
from collage.search.explain import explain
from collage.search.graph_launches import predicted_s
from collage.search.problem import UNKNOWN, Option
from collage.verify.verdict import Verdict

LIBRARIES = ("apache-tvm", "onnxruntime", "openvino", "onednn-cpu-gomp", "numpy", "onnx")
MAX_ALTERNATIVES = 25
"""Overlapping candidates listed for a region, those of least regret first."""
MAX_BY_NODE = {
    CandidateState.VALID: 12,
    CandidateState.INVALID: 3,
    CandidateState.UNMEASURED: 3,
}
"""Candidates kept for a node and a backend, by state; the rest is counted."""
MAX_LISTED = 400
"""Invalid and never measured candidates listed for a function, smallest first."""


@dataclass(frozen=True)
class Run:
    """What the whole compile is about."""

    model: Model
    backends: Sequence[str]
    environment: Environment
    counts: CandidateCounts
    seconds: Mapping[str, float]
    output: Path
    peaks: Peaks
    tuning: TuningFacts = field(default_factory=TuningFacts)
    allowed: Allowed | None = None
    """None where nothing but float32 was allowed."""
    fewer_flops: frozenset[str] = frozenset()
    """Backends whose algorithms need fewer FLOP than direct ones."""


def build_report(run: Run, results: Sequence[FunctionResult]) -> ReportData:
    """Gather the facts of a compile."""
    peaks = _raised(run, results)
    return ReportData(
        summary=_summary(run, results),
        model=run.model.path.name,
        functions=tuple(_function(result, peaks) for result in results),
        environment=_environment(run.environment),
        notes=run.model.notes,
        peaks=PeakRates(**asdict(peaks)),
    )


def _raised(run: Run, results: Sequence[FunctionResult]) -> Peaks:
    """Raise the peaks to what the plans' kernels reached: a loaded machine hides its peaks."""
    peaks = run.peaks
    for result in results:
        function, costs = result.search.enumerated.function, result.search.lazy.costs
        for position, option in enumerate(result.chosen.plan.options):
            seconds = result.measured_s.get(position)
            if option.backend == HOST or not seconds:
                continue
            fastest_s = min(seconds, costs[option.key].seconds or seconds)
            moved, flops = region_bytes_and_flops(function, option.nodes)
            other = option.reduced or option.backend in run.fewer_flops
            flops = 0 if other else flops
            peaks = highest(peaks, Peaks(flops / fastest_s, moved / fastest_s, 0.0))
    return peaks


def _summary(run: Run, results: Sequence[FunctionResult]) -> Summary:
    functions = tuple(_function_summary(one) for one in results)
    speedups = [one.speedup_over_best for one in functions]
    failed = [one for one in functions if one.verdict is not Verdict.NOT_SLOWER]
    return Summary(
        model_sha256=run.model.sha256,
        backends=tuple(run.backends),
        threads=run.environment.threads,
        functions=functions,
        speedup_over_best=None if None in speedups else min(filter(None, speedups)),
        plan=tuple(region for one in results for region in _plan(one)),
        candidates=run.counts,
        seconds=StageSeconds.model_validate(dict(run.seconds)),
        gate=GateResult(passed=not failed, reason=_reason(failed or functions)),
        bundle=str(run.output),
        tuning=run.tuning,
        notes=run.model.notes,
        precision=precision_result(run.allowed, results) if run.allowed else None,
    )


def _reason(functions: Sequence[FunctionSummary]) -> str:
    """Join the reasons of functions, each told once; with one function it needs no name."""
    if len({one.reason for one in functions}) == 1:
        return functions[0].reason
    return "; ".join(f"{one.function}: {one.reason}" for one in functions)


def _function_summary(result: FunctionResult) -> FunctionSummary:
    decision = result.decision
    baselines = {
        name: None if found.reason else found.seconds for name, found in decision.baselines.items()
    }
    counted = [seconds for name, seconds in baselines.items() if name not in decision.excused]
    best = min((seconds for seconds in counted if seconds), default=None)
    return FunctionSummary(
        function=result.search.enumerated.function.name,
        latency=Latencies(
            collage_s=decision.latency.seconds,
            baselines=baselines,
            baseline_reasons={n: f.reason for n, f in decision.baselines.items() if f.reason},
        ),
        speedup_over_best=best / decision.latency.seconds if best else None,
        predicted_s=result.chosen.plan.predicted_s,
        alone_s=_alone_s(result),
        pace=result.pace,
        verdict=decision.verdict,
        reason=decision.reason,
        ratios={name: ratio_of(found) for name, found in decision.ratios.items()},
        original=decision.chosen.original,
        deterministic=decision.golden is None or decision.golden.deterministic,
    )


def _alone_s(result: FunctionResult) -> float | None:
    """Return what the chosen plan was predicted to take before any was measured whole."""
    search = result.search
    return _finite(predicted_s(search.enumerated.problem, search.lazy.costs, result.chosen.plan))


def _plan(result: FunctionResult) -> list[PlannedRegion]:
    function, costs = result.search.enumerated.function, result.search.costs
    return [
        PlannedRegion(
            function=function.name,
            nodes=tuple(indices(option.nodes)),
            ops=_ops(function.graph, option),
            backend=option.backend,
            label=_label(_ops(function.graph, option)),
            cost_s=costs[option.key].seconds,
            precision=_precision(function, option),
            error=costs[option.key].error,
        )
        for option in result.chosen.plan.options
    ]


def _precision(function: Function, option: Option) -> str:
    quantised = option.backend != HOST and computes_int8(function, option.nodes)
    return "int8" if quantised else option.precision


def _ops(graph: DataflowGraph, option: Option) -> tuple[str, ...]:
    return tuple(graph.nodes[index].op for index in indices(option.nodes))


def _label(ops: Sequence[str]) -> str:
    return "+".join(ops) if len(ops) <= 6 else f"{ops[0]}..{ops[-1]} ({len(ops)} nodes)"


def _function(result: FunctionResult, peaks: Peaks) -> FunctionReport:
    function = result.search.enumerated.function
    graph = function.graph
    considered = _Considered(result, peaks)
    listed, rest = considered.by_node()
    return FunctionReport(
        name=function.name,
        inputs=_tensors(function, graph.inputs),
        outputs=_tensors(function, graph.outputs),
        nodes=tuple(_nodes(function)),
        regions=tuple(
            considered.region(option, result.measured_s.get(position))
            for position, option in enumerate(result.chosen.plan.options)
        ),
        invalid=tuple(considered.invalid()),
        unmeasured=tuple(considered.unmeasured()),
        plans=tuple(_plans(result)),
        considered=listed,
        rest=rest,
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
            types=tuple(_text(function.type_of(value)) for value in node.outputs),
        )


def _tensors(function: Function, names: Sequence[str]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name=name, type=_text(function.type_of(name))) for name in names)


def _text(of: TensorType | OpenType) -> str:
    if of.shape is None:
        return f"{of.dtype}[...]" if of.dtype else "no tensor"
    return f"{of.dtype}[{', '.join('?' if size < 0 else str(size) for size in of.shape)}]"


class _Considered:
    """Everything that one function's search considered, with regrets."""

    def __init__(self, result: FunctionResult, peaks: Peaks) -> None:
        search = result.search
        self.peaks = peaks
        self.function = search.enumerated.function
        self.costs = search.costs
        self.alone = search.lazy.costs
        self.graph = search.enumerated.function.graph
        self.variants = {key: work.variant for key, work in search.enumerated.work.items()}
        self.chosen = set(result.chosen.plan.options)
        problem = search.enumerated.problem
        self.options = [option for option in problem.ordered if option.backend != HOST]
        explanation = explain(problem, search.costs)
        self.regrets = {one.option: one.regret_s for one in explanation.regrets}
        self.gap_s = search.lazy.gap_s

    def region(self, option: Option, measured_s: float | None) -> RegionReport:
        cost = self.costs[option.key]
        known = [
            other
            for other in self.options
            if other.nodes & option.nodes and not self._cost(other).is_unknown
        ]
        known.sort(key=lambda o: (self.regrets.get(o, math.inf), -o.size, o.backend, o.nodes))
        moved, flops = region_bytes_and_flops(self.function, option.nodes)
        return RegionReport(
            nodes=tuple(indices(option.nodes)),
            ops=_ops(self.graph, option),
            backend=option.backend,
            variant=self.variants.get(option.key, ""),
            precision=_precision(self.function, option),
            error=cost.error,
            label=_label(_ops(self.graph, option)),
            alone_s=self.alone[option.key].seconds,
            predicted_s=cost.seconds,
            low_s=_finite(cost.low),
            high_s=_finite(cost.high),
            measured_s=measured_s,
            bound_s=None if option.reduced else self.peaks.bound_s(moved, flops),
            limit=self.peaks.limit(moved, flops) if (moved or flops) and not option.reduced else "",
            moved_bytes=moved,
            flops=flops,
            alternatives=tuple(self._alternative(other) for other in known[:MAX_ALTERNATIVES]),
        )

    def invalid(self) -> Iterator[InvalidCandidate]:
        found = [option for option in self.options if self._cost(option).is_invalid]
        for option in sorted(found, key=lambda o: (o.size, o.backend, o.nodes))[:MAX_LISTED]:
            yield InvalidCandidate(
                backend=option.backend,
                variant=self.variants.get(option.key, ""),
                nodes=tuple(indices(option.nodes)),
                ops=_ops(self.graph, option),
                reason=self._cost(option).reason,
            )

    def by_node(self) -> tuple[tuple[Alternative, ...], tuple[NodeRest, ...]]:
        """Return the best few candidates of every node, backend and state, and how many are left."""
        seen: Counter[tuple[int, str, CandidateState]] = Counter()
        listed: Counter[tuple[int, str, CandidateState]] = Counter()
        kept: list[Option] = []
        for option in sorted(self.options, key=self._rank):
            state = self._state(option)
            keys = [(node, option.backend, state) for node in indices(option.nodes)]
            if option in self.chosen or any(seen[key] < MAX_BY_NODE[state] for key in keys):
                kept.append(option)
                listed.update(keys)
            seen.update(keys)
        rest = tuple(
            NodeRest(node=node, backend=backend, state=state, count=count - listed[key])
            for key, count in sorted(seen.items())
            for node, backend, state in (key,)
            if count > listed[key]
        )
        return tuple(self._alternative(option) for option in kept), rest

    def _rank(self, option: Option) -> tuple[float, int, str, int]:
        return self.regrets.get(option, math.inf), option.size, option.backend, option.nodes

    def unmeasured(self) -> Iterator[UnmeasuredCandidate]:
        found = [option for option in self.options if self._cost(option).is_unknown]
        for option in sorted(found, key=lambda o: (o.size, o.backend, o.nodes))[:MAX_LISTED]:
            moved, flops = region_bytes_and_flops(self.function, option.nodes)
            yield UnmeasuredCandidate(
                backend=option.backend,
                variant=self.variants.get(option.key, ""),
                nodes=tuple(indices(option.nodes)),
                bound_s=self.peaks.bound_s(moved, flops),
                reason=self._why_unmeasured(),
            )

    def _why_unmeasured(self) -> str:
        if not self.gap_s:
            return "no plan with it was estimated to be faster than the measured one"
        could = f"{self.gap_s * 1e6:.0f} us"
        return f"time was up; plans with such candidates could save up to {could}"

    def _state(self, option: Option) -> CandidateState:
        cost = self._cost(option)
        if cost.is_valid:
            return CandidateState.VALID
        return CandidateState.UNMEASURED if cost.is_unknown else CandidateState.INVALID

    def _cost(self, option: Option) -> Cost:
        return self.costs.get(option.key, UNKNOWN)

    def _alternative(self, option: Option) -> Alternative:
        cost = self._cost(option)
        state = self._state(option)
        reason = self._why_unmeasured() if state is CandidateState.UNMEASURED else cost.reason
        return Alternative(
            backend=option.backend,
            variant=self.variants.get(option.key, ""),
            nodes=tuple(indices(option.nodes)),
            state=state,
            cost_s=_finite(cost.seconds),
            low_s=_finite(cost.low),
            high_s=_finite(cost.high),
            regret_s=_finite(self.regrets.get(option, math.inf)),
            reason=reason,
            chosen=option in self.chosen,
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plans(result: FunctionResult) -> Iterator[MeasuredPlan]:
    decision = result.decision
    for named in result.search.plans:
        latency = decision.latencies.get(named.name)
        yield MeasuredPlan(
            name=named.name,
            predicted_s=named.plan.predicted_s,
            measured_s=_finite(latency.seconds) if latency else None,
            low_s=_finite(latency.low) if latency else None,
            high_s=_finite(latency.high) if latency else None,
            reason=decision.rejected.get(named.name, latency.reason if latency else ""),
            chosen=named.name == decision.chosen.name,
        )
    for name, latency in decision.baselines.items():
        yield MeasuredPlan(
            name=name,
            measured_s=_finite(latency.seconds),
            low_s=_finite(latency.low),
            high_s=_finite(latency.high),
            reason=latency.reason,
            baseline=True,
        )


def _environment(environment: Environment) -> dict[str, str]:
    facts = {name: str(value) for name, value in asdict(environment).items()}
    for name in LIBRARIES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    return facts
