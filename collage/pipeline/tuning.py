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
from collage.backends.common.tvm.tuned_schedules import write_recipe
from collage.cost import Cost
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import Work
from collage.measure.peaks import machine_peaks
from collage.pipeline.compile_context import Session
from collage.pipeline.search_checkpoint import CheckpointFile, SearchCheckpoint
from collage.pipeline.search_stage import local_measurer, model_sweep
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import worth_assembling
from collage.search.shortest_path import find_plan
from collage.tuning.records import TuningRecord, TuningRecords, workload_digest
from collage.tuning.targets import toolchain, tunable
from collage.tuning.tuner import Limits, Tuner
from collage.tuning.tuning_tasks import Prospect, find_prospects, raised_peaks, tuned_options

ROUND = 16
"""Trials of a workload in one round."""
MAX_TRIALS = 256
"""Trials of one workload in all; schedule searches stop improving well before."""
GIVE_UP_RATIOS = ((ROUND, 4.0), (2 * ROUND, 2.0), (4 * ROUND, 1.3), (MAX_TRIALS, 1.1))
"""Number of trials, and the ratio of latency to break-even cost above which tuning stops then."""
MAX_RECORD_RATIO = 1.25
"""Ratio of trial latency to break-even cost above which a record is not measured; trials are rough."""


def tune_and_search(
    search: FunctionSearch, file: CheckpointFile, reference_dir: Path, session: Session
) -> tuple[FunctionSearch, bool]:
    """Tune what could change the plan of `search`; return it with the tuned kernels as candidates.

    The flag is True if a candidate is new; remembered plans of earlier runs do not include it. A machine
    that cannot both build and run tuned kernels (without a compiler for its GPU) leaves the search as it is.
    """
    device = session.options.device
    tuned = tunable(device)
    backend = next((backend_ for backend_ in session.backends if backend_.name == tuned.name), None)
    if backend is None or not tuned.availability().available:
        return search, False
    start = time.monotonic()
    before = session.counts.measured
    function = search.enumerated.function
    peaks = machine_peaks(session.environment, session.options.store_dir, again=False)
    problem, costs = search.enumerated.problem, search.costs
    incomparable = {
        backend_.name for backend_ in session.backends if _is_no_reference(backend_, tuned)
    }
    peaks = raised_peaks(function, problem, costs, peaks, fewer_flops=incomparable)
    prospects = find_prospects(function, problem, costs, peaks, backend=tuned)
    records = TuningRecords(
        session.options.store_dir, session.environment, session.store, clock=time.monotonic
    )
    budget_s = session.options.tune_s
    checkpoint = file.read()
    if budget_s > checkpoint.tuned_s:
        ended = SearchCheckpoint.of(search.lazy.gap_s, tuned_s=budget_s)
        if prospects:
            _tune(prospects, records, search, session, reference_dir=reference_dir)
        else:
            ended = replace(checkpoint, gap_s=search.lazy.gap_s, tuned_s=budget_s)
        file.write(ended)
    best = _best_records(prospects, records, toolchain(session.threads, device))
    if best:
        search = _with_tuned(search, best, backend, session, reference_dir=reference_dir)
    session.seconds.stages["tune"] += time.monotonic() - start
    return search, session.counts.measured > before


def _is_no_reference(backend: Backend, tuned: Backend) -> bool:
    """Tell whether a backend's speed is no reference for tuned kernels.

    Libraries for a GPU use tensor cores; the tuned schedules do not.
    """
    return bool(backend.fewer_flops) or (backend.device == "cuda" and backend.name != tuned.name)


def _tune(
    prospects: Sequence[Prospect],
    records: TuningRecords,
    search: FunctionSearch,
    session: Session,
    *,
    reference_dir: Path,
) -> None:
    """Tune the tasks in turns until the time is up; every finished trial is recorded."""
    options, function = session.options, search.enumerated.function
    deadline = time.monotonic() + options.tune_s
    tuner = Tuner(
        [function],
        records,
        session.threads,
        reference_dir=reference_dir,
        sweep_bytes=model_sweep(function, options.device).size_bytes,
        limits=Limits(options.timeout_s, options.memory_bytes),
        device=options.device,
    )
    tried: set[str] = set()
    with session.progress.stage("tune", None) as stage:

        def on_trial(record: TuningRecord) -> None:
            stage.advance(1, invalid=int(not record.worked))

        try:
            for prospect in _turns(prospects, tuner):
                if time.monotonic() >= deadline:
                    break
                tried.add(prospect.digest)
                tuner.tune(prospect.work, ROUND, deadline, on_trial)
        finally:
            tuner.close()
            records.flush()
            session.tuning.trials += tuner.trials
            session.tuning.failed += tuner.failed
            session.tuning.kernels += len(tried)


def _turns(prospects: Sequence[Prospect], tuner: Tuner) -> Iterable[Prospect]:
    """Yield the tasks for one round of trials each, repeatedly, while they are promising."""
    pending = list(prospects)
    while pending:
        pending = [prospect for prospect in pending if _is_promising(prospect, tuner)]
        yield from pending


def _is_promising(prospect: Prospect, tuner: Tuner) -> bool:
    workload = tuner.workload(prospect.work)
    trials = len(tuner.records.of(workload))
    if tuner.records.ended(workload) or trials >= MAX_TRIALS:
        return False
    best = tuner.records.best(workload)
    allowed = min(
        (factor for after, factor in GIVE_UP_RATIOS if trials >= after), default=float("inf")
    )
    return best is None or best.latency_s <= allowed * prospect.break_even_s


def _best_records(
    prospects: Sequence[Prospect], records: TuningRecords, toolchain: str
) -> list[tuple[Prospect, TuningRecord]]:
    """Return the best record of every task near its break-even cost."""
    selected = []
    for prospect in prospects:
        best = records.best(workload_digest(prospect.digest, toolchain))
        if best is not None and best.latency_s <= MAX_RECORD_RATIO * prospect.break_even_s:
            selected.append((prospect, best))
    return selected


def _with_tuned(
    search: FunctionSearch,
    best: Sequence[tuple[Prospect, TuningRecord]],
    backend: Backend,
    session: Session,
    *,
    reference_dir: Path,
) -> FunctionSearch:
    """Add the tuned kernels to the candidates, measured, and search the best plans again."""
    enumerated = search.enumerated
    folder = backend.recipes or session.work_dir / "recipes"
    works: dict[Hashable, Work] = {}
    options = list(enumerated.problem.options)
    for prospect, record in best:
        variant = write_recipe(folder, record.trace)
        key = (prospect.digest, backend.identity, variant)
        works[key] = replace(prospect.work, variant=variant)
        options += tuned_options(enumerated.problem, prospect, key)
    measurer = local_measurer(enumerated.function, reference_dir, session)
    costs = {**search.costs, **_measured(works, measurer, session)}
    problem = replace(enumerated.problem, options=options)
    plan = find_plan(problem, costs)
    session.tuning.tuned += len(works)
    session.tuning.saved_s += max(0.0, search.lazy.plan.predicted_s - plan.predicted_s)
    return FunctionSearch(
        replace(enumerated, problem=problem, work={**enumerated.work, **works}),
        costs,
        tuple(
            worth_assembling(
                problem,
                costs,
                session.options.end_to_end_plans,
                search.errors,
            )
        ),
        replace(search.lazy, plan=plan, costs=costs),
        search.errors,
    )


def _measured(
    works: dict[Hashable, Work], measurer: LocalMeasurer, session: Session
) -> dict[Hashable, Cost]:
    try:
        costs = measurer.measure(list(works.values()))
    finally:
        measurer.close()
    session.counts.unique += len(works)
    session.counts.enumerated += len(works)
    session.counts.add(measurer)
    return dict(zip(works, costs, strict=True))
