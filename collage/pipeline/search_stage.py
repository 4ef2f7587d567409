"""The first stages: import, reference run, enumeration, and the search with measurements.

A search uses stored costs first, then new measurements, from worker processes of this machine or from Jobs
of a cluster.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collage.cost import Cost
from collage.entries import ModelEntry
from collage.errors import ModelError
from collage.frontend import Function, Model
from collage.frontend.inputs import input_sets
from collage.frontend.sensitivity import Sensitivity
from collage.measure.cache_flush import CacheFlush
from collage.measure.conditions import MeasuringConditions, WorkerLimits
from collage.measure.cost_key import launch_key
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest, OnCost, SearchMeasurer
from collage.measure.messages import KernelFolder
from collage.measure.peaks import stored_peaks
from collage.options import Options
from collage.pipeline.compile_context import CompileContext
from collage.pipeline.entry_import import import_entry
from collage.pipeline.search_checkpoint import CheckpointFile, SearchCheckpoint
from collage.runtime.function_names import MAIN
from collage.runtime.target import Target
from collage.search.bounds import RooflineBounds
from collage.search.enumeration import EnumeratedFunction, enumerate_function
from collage.search.function_search import FunctionSearch, SearchLimits, search_function
from collage.search.graph_launches import without_graphs
from collage.search.reduced_precision import ErrorBudget, within_budget
from collage.verify.reference_run import Samples, sample

HIDES_NAN = "hides NaN where the original keeps it; --keep-nan refuses this"
SENSITIVITY_S = 20.0
"""Time to estimate the sensitivity of outputs to errors inside a function, in seconds."""


def imported(
    path: Path, context: CompileContext, *, entry: str = MAIN, entries: Sequence[str] = (MAIN,)
) -> Model:
    """Import the model of an entry with the shapes of the options; `entries` are those of the bundle."""
    with context.progress.stage("import"), context.seconds.of("import"):
        return import_entry(ModelEntry(entry, path), entries, context.options, context.work_dir)


def sampled(model: Model, function: Function, context: CompileContext) -> Samples:
    """Make inputs, and run the original model on them.

    Raises:
        ModelError: ONNX Runtime cannot run it within the limits of import, or it is in bfloat16 and for
            a CPU.
    """
    target = context.options.target
    for value in (*function.graph.inputs, *function.graph.outputs):
        if function.type_of(value).dtype == "bfloat16" and not target.has_half_precision:
            raise ModelError(
                f"{value!r} is bfloat16, for which only a GPU has kernels: add --device cuda"
            )
    with context.seconds.of("import"):
        return sample(
            model,
            function,
            context.options.seed,
            context.work_dir,
            generates_golden=context.options.golden == "generated",
        )


def enumerated_function(function: Function, context: CompileContext) -> EnumeratedFunction:
    """List the candidates of a function and count them."""
    with context.progress.stage("enumerate"), context.seconds.of("enumerate"):
        may_reduce = context.options.may_reduce and not function.drawn_outputs
        enumerated = enumerate_function(
            function, context.compatible_backends, may_reduce=may_reduce
        )
    context.counts.enumerated += len(enumerated.candidates)
    context.counts.unique += len(enumerated.work)
    return enumerated


def local_measurer(
    function: Function,
    reference_dir: Path,
    context: CompileContext,
    kernels: KernelFolder | None = None,
) -> LocalMeasurer:
    """Make a measurer with worker processes on this machine; `kernels` as in `LocalMeasurer`."""
    target = context.options.target
    return LocalMeasurer(
        [function],
        context.backends,
        context.table,
        MeasuringConditions(context.environment, target, model_sweep(function, target)),
        build=context.build,
        reference_dir=reference_dir,
        limits=worker_limits(context.options),
        kernels=kernels,
    )


def worker_limits(options: Options) -> WorkerLimits:
    """Return the limits of a measurer's workers."""
    return WorkerLimits(
        workers=options.workers, timeout_s=options.timeout_s, memory_bytes=options.memory_bytes
    )


def search_with_measurements(
    enumerated: EnumeratedFunction, measurer: SearchMeasurer, context: CompileContext
) -> tuple[FunctionSearch, CheckpointFile]:
    """Search with stored and new costs; also return the location of the search's checkpoint.

    A search with a checkpoint measures only missing costs of its best plan. The budget covers measurements,
    not the wait for machines. The measurer is closed at the end.
    """
    options = context.options
    if not options.cuda_graphs:
        enumerated = replace(enumerated, problem=without_graphs(enumerated.problem))
    start = time.monotonic()
    measuring_s = 0.0
    with context.progress.stage("measure", None) as stage:

        def on_cost(_: MeasurementRequest, cost: Cost, cached: bool) -> None:
            stage.advance(1, cached=int(cached), invalid=int(cost.is_invalid))

        try:
            checkpoint = CheckpointFile.of(enumerated, context)
            gap_s = checkpoint.read().gap_s
            requests = list(enumerated.work.values())
            recalled = dict(zip(enumerated.work, measurer.recall(requests, on_cost), strict=True))
            judged = _JudgingMeasurer(measurer, enumerated, options)
            search = search_function(
                enumerated,
                judged,
                {
                    key: judged.judge(enumerated.work[key], cost)
                    for key, cost in recalled.items()
                    if not cost.is_unknown
                },
                SearchLimits(
                    plans=options.end_to_end_plans,
                    budget_s=options.measure_budget_s if gap_s is None else 0.0,
                    clock=lambda: time.monotonic() - measurer.waited_s,
                    batch=measurer.batch,
                    errors=_allowed_errors(enumerated.function, options),
                    bounds=_known_bounds(enumerated.function, context),
                ),
                on_cost=on_cost,
                launch_s=lambda: _launch_s(context),
            )
            measuring_s = judged.seconds
            if gap_s is None:
                checkpoint.write(SearchCheckpoint.of(search.lazy.gap_s))
            else:
                search = replace(search, lazy=replace(search.lazy, gap_s=gap_s))
        finally:
            measurer.close()
    context.seconds.stages["measure"] += measuring_s
    context.seconds.stages["search"] += time.monotonic() - start - measuring_s
    context.counts.add(measurer)
    return search, checkpoint


def _launch_s(context: CompileContext) -> float:
    """Return the measured minimum time of a call without CUDA graphs, in seconds."""
    table = context.table.within(context.environment)
    cost = table.get(launch_key(context.environment))
    return cost.seconds if cost else 0.0


def _known_bounds(function: Function, context: CompileContext) -> RooflineBounds | None:
    """Return bounds by the stored rates of the measuring machine; None before they were measured."""
    peaks = stored_peaks(context.environment, context.options.store_dir)
    if peaks is None:
        return None
    return RooflineBounds(
        function,
        peaks,
        algorithmic_savings={b.name for b in context.backends if b.algorithmic_savings},
        bounds_flops=not context.options.target.is_gpu,
    )


def _allowed_errors(function: Function, options: Options) -> ErrorBudget | None:
    if not options.may_reduce or function.drawn_outputs:
        return None
    inputs = input_sets(function, options.seed)[0]
    level = 0.5 * options.tolerance
    return ErrorBudget(
        options.tolerance, Sensitivity(function, inputs, level, SENSITIVITY_S).of_region
    )


class _JudgingMeasurer:
    """Measures batches, adds up the wall seconds, and rejects unwanted costs.

    Rejected are errors far beyond the tolerance, and kernels that hide NaN where that is refused.

    The cost table keeps both verdicts, so another option repeats no measurement.
    """

    def __init__(
        self, inner: SearchMeasurer, enumerated: EnumeratedFunction, options: Options
    ) -> None:
        self.inner = inner
        self.tolerance = options.tolerance
        self.keep_nan = options.keep_nan
        self.last = {enumerated.work[key] for key in enumerated.last}
        self.seconds = 0.0

    def measure(
        self, batch: Sequence[MeasurementRequest], on_cost: OnCost | None = None
    ) -> list[Cost]:
        start = time.monotonic()
        try:
            costs = self.inner.measure(batch, on_cost)
            return [self.judge(work, cost) for work, cost in zip(batch, costs, strict=True)]
        finally:
            self.seconds += time.monotonic() - start

    def judge(self, work: MeasurementRequest, cost: Cost) -> Cost:
        if self.keep_nan and cost.is_valid and cost.hides_nan:
            return replace(Cost.invalid(HIDES_NAN), build_s=cost.build_s)
        return within_budget(cost, self.tolerance, is_last=work in self.last)


def model_sweep(function: Function, device: Target, cache_bytes: int | None = None) -> CacheFlush:
    """Return the cache flush before each timing of the function's kernels.

    Args:
        function: function of the kernels.
        device: device of the kernels; the flush on a GPU does not depend on the model.
        cache_bytes: size of the last-level cache, in bytes; None: this machine's (`CacheFlush.of`).
    """
    if not device.flushes_by_footprint:
        return CacheFlush(0)
    return CacheFlush.of(footprint_bytes(function), cache_bytes)


def footprint_bytes(function: Function) -> int:
    """Estimate the memory of one run in bytes: weights and live activations.

    Executables reuse the memory of dead activations; twice the largest inputs and outputs of one node
    approximate the live ones. Kernels pad weights, or transform them for Winograd's algorithm to 1.8 to 4
    times the size; twice the model's weights approximate these.
    """
    graph = function.graph
    weights = sum(value.nbytes for value in function.weights.values())
    activations = [
        sum(
            graph.types[value].size_bytes
            for value in {*node.inputs, *node.outputs} - graph.constants
            if value in graph.types
        )
        for node in graph.nodes
    ]
    return 2 * (weights + max(activations, default=0))
