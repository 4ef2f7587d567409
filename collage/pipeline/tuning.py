"""The tuning stage, between search and complete plans: kernels that could change the plan are tuned.

Tuning tasks (`collage.tuning.tuning_tasks`) get a first round of trials in the order of their possible gain.
Tasks near their break-even cost, at which they would change the plan, get further rounds until the time is
up. The best schedule of each task, from this run or an earlier one, for this model or another, becomes a
candidate and is measured. Then the best plans are searched again.
"""

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from collage.backends.base import Backend
from collage.backends.common.tvm.tuned_schedules import write_trace
from collage.cost import Cost
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.peaks import machine_peaks
from collage.pipeline.compile_context import CompileContext
from collage.pipeline.search_checkpoint import CheckpointFile, SearchCheckpoint
from collage.pipeline.search_stage import local_measurer, model_sweep
from collage.runtime.target import Target
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import select_plans
from collage.search.shortest_path import find_plan
from collage.tuning.records import TuningRecord, TuningRecords, workload_digest
from collage.tuning.targets import toolchain, tunable
from collage.tuning.tuner import Tuner, TuningLimits
from collage.tuning.tuning_tasks import TuningTask, find_tuning_tasks, raised_peaks, tuned_options

ROUND = 16
"""Trials of a workload in one round."""
MAX_TRIALS = 256
"""Trials of one workload in all; schedule searches stop improving well before."""
GIVE_UP_RATIOS = ((ROUND, 4.0), (2 * ROUND, 2.0), (4 * ROUND, 1.3), (MAX_TRIALS, 1.1))
"""Number of trials, and the ratio of latency to break-even cost above which tuning stops then."""
MAX_RECORD_RATIO = 1.25
"""Ratio of trial latency to break-even cost above which a record is not measured; trials are rough."""


def tune_and_search(
    search: FunctionSearch, file: CheckpointFile, reference_dir: Path, context: CompileContext
) -> tuple[FunctionSearch, bool]:
    """Tune what could change the plan of `search`; return it with the tuned kernels as candidates.

    The flag is True if a candidate is new; remembered plans of earlier runs do not include it. A machine
    that cannot both build and run tuned kernels (without a compiler for its GPU) leaves the search as it is.
    """
    device = context.options.target
    tuned = tunable(device)
    backend = next(
        (candidate for candidate in context.backends if candidate.name == tuned.name), None
    )
    if backend is None or not tuned.availability().available:
        return search, False
    start = time.monotonic()
    before = context.counts.measured
    function = search.enumerated.function
    peaks = machine_peaks(context.environment, context.options.store_dir, again=False)
    problem, costs = search.enumerated.problem, search.costs
    incomparable = {
        library.name for library in context.backends if _is_no_reference(library, tuned)
    }
    peaks = raised_peaks(function, problem, costs, peaks, algorithmic_savings=incomparable)
    tuning_tasks = find_tuning_tasks(function, problem, costs, peaks, backend=tuned)
    records = TuningRecords(
        context.options.store_dir, context.environment, context.store, clock=time.monotonic
    )
    budget_s = context.options.tune_s
    checkpoint = file.read()
    if budget_s > checkpoint.tuned_s:
        ended = SearchCheckpoint.of(search.lazy.gap_s, tuned_s=budget_s)
        if tuning_tasks:
            _tune(tuning_tasks, records, search, context, reference_dir=reference_dir)
        else:
            ended = replace(checkpoint, gap_s=search.lazy.gap_s, tuned_s=budget_s)
        file.write(ended)
    best = _best_records(tuning_tasks, records, toolchain(context.threads, device))
    if best:
        search = _with_tuned(search, best, backend, context, reference_dir=reference_dir)
    context.seconds.stages["tune"] += time.monotonic() - start
    return search, context.counts.measured > before


def _is_no_reference(backend: Backend, tuned: Backend) -> bool:
    """Tell whether a backend's speed is no reference for tuned kernels.

    Libraries for a GPU use tensor cores; the tuned schedules do not.
    """
    return bool(backend.algorithmic_savings) or (
        Target(backend.device).is_gpu and backend.name != tuned.name
    )


def _tune(
    tuning_tasks: Sequence[TuningTask],
    records: TuningRecords,
    search: FunctionSearch,
    context: CompileContext,
    *,
    reference_dir: Path,
) -> None:
    """Tune the tasks in turns until the time is up; every finished trial is recorded."""
    options, function = context.options, search.enumerated.function
    deadline = time.monotonic() + options.tune_s
    tuner = Tuner(
        [function],
        records,
        context.threads,
        reference_dir=reference_dir,
        cache_flush_bytes=model_sweep(function, options.target).size_bytes,
        limits=TuningLimits(options.timeout_s, options.memory_bytes),
        device=options.target,
    )
    tried: set[str] = set()
    with context.progress.stage("tune", None) as stage:

        def on_trial(record: TuningRecord) -> None:
            stage.advance(1, invalid=int(not record.worked))

        try:
            for tuning_task in _turns(tuning_tasks, tuner):
                if time.monotonic() >= deadline:
                    break
                tried.add(tuning_task.digest)
                tuner.tune(tuning_task.work, ROUND, deadline, on_trial)
        finally:
            tuner.close()
            records.flush()
            context.tuning.trials += tuner.trials
            context.tuning.failed += tuner.failed
            context.tuning.kernels += len(tried)


def _turns(tuning_tasks: Sequence[TuningTask], tuner: Tuner) -> Iterable[TuningTask]:
    """Yield the tasks for one round of trials each, repeatedly, while they are promising."""
    pending = list(tuning_tasks)
    while pending:
        pending = [tuning_task for tuning_task in pending if _is_promising(tuning_task, tuner)]
        yield from pending


def _is_promising(tuning_task: TuningTask, tuner: Tuner) -> bool:
    workload = tuner.workload(tuning_task.work)
    trials = len(tuner.records.of(workload))
    if tuner.records.ended(workload) or trials >= MAX_TRIALS:
        return False
    best = tuner.records.best(workload)
    allowed = min(
        (factor for after, factor in GIVE_UP_RATIOS if trials >= after), default=float("inf")
    )
    return best is None or best.latency_s <= allowed * tuning_task.break_even_s


def _best_records(
    tuning_tasks: Sequence[TuningTask], records: TuningRecords, toolchain: str
) -> list[tuple[TuningTask, TuningRecord]]:
    """Return the best record of every task near its break-even cost."""
    selected = []
    for tuning_task in tuning_tasks:
        best = records.best(workload_digest(tuning_task.digest, toolchain))
        if best is not None and best.latency_s <= MAX_RECORD_RATIO * tuning_task.break_even_s:
            selected.append((tuning_task, best))
    return selected


def _with_tuned(
    search: FunctionSearch,
    best: Sequence[tuple[TuningTask, TuningRecord]],
    backend: Backend,
    context: CompileContext,
    *,
    reference_dir: Path,
) -> FunctionSearch:
    """Add the tuned kernels to the candidates, measured, and search the best plans again."""
    enumerated = search.enumerated
    requests: dict[Hashable, MeasurementRequest] = {}
    options = list(enumerated.problem.options)
    for tuning_task, record in best:
        variant = write_trace(context.tuned_schedules_dir, record.trace)
        key = (tuning_task.digest, backend.identity, variant)
        requests[key] = replace(tuning_task.work, variant=variant)
        options += tuned_options(enumerated.problem, tuning_task, key)
    measurer = local_measurer(enumerated.function, reference_dir, context)
    costs = {**search.costs, **_measured(requests, measurer, context)}
    problem = replace(enumerated.problem, options=options)
    plan = find_plan(problem, costs)
    context.tuning.tuned += len(requests)
    context.tuning.saved_s += max(0.0, search.lazy.plan.predicted_s - plan.predicted_s)
    return FunctionSearch(
        replace(enumerated, problem=problem, work={**enumerated.work, **requests}),
        costs,
        tuple(
            select_plans(
                problem,
                costs,
                context.options.end_to_end_plans,
                search.errors,
            )
        ),
        replace(search.lazy, plan=plan, costs=costs),
        errors=search.errors,
    )


def _measured(
    requests: dict[Hashable, MeasurementRequest], measurer: LocalMeasurer, context: CompileContext
) -> dict[Hashable, Cost]:
    try:
        costs = measurer.measure(list(requests.values()))
    finally:
        measurer.close()
    context.counts.unique += len(requests)
    context.counts.enumerated += len(requests)
    context.counts.add(measurer)
    return dict(zip(requests, costs, strict=True))
