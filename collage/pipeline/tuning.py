"""The stage between search and assembly: kernels that could change the plan are tuned, then measured.

The search has found the best plan of what there is. Prospects (`collage.tuning.tuning_tasks`) get a first
round of trials in the order of what they could win; those that come near the cost at which they would
change the plan get further rounds, until the time is up. The best schedule of each, found now or long
ago, for this model or another, is measured like any candidate, and the best plans are looked for once
more.
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
from collage.pipeline.search_checkpoint import SearchMark
from collage.pipeline.search_stage import local_measurer, model_sweep
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import worth_assembling
from collage.search.shortest_path import find_plan
from collage.tuning.records import TuningRecord, TuningRecords, workload_digest
from collage.tuning.targets import toolchain, tunable
from collage.tuning.tuner import Limits, Tuner
from collage.tuning.tuning_tasks import Prospect, find_prospects, raised_peaks, tuned_options

ROUND = 16
"""Trials of a workload before the next one has its turn."""
MOST_TRIALS = 256
"""Of one workload in all; by then a search has long stopped finding anything."""
HOPES = ((ROUND, 4.0), (2 * ROUND, 2.0), (4 * ROUND, 1.3), (MOST_TRIALS, 1.1))
"""After so many trials, how many times slower than its break-even a kernel may be to go on."""
NEAR = 1.25
"""A record is measured unless the trial was so much slower than break-even: trials are rough."""


def tuned_search(
    search: FunctionSearch, mark: SearchMark, reference_dir: Path, session: Session
) -> tuple[FunctionSearch, bool]:
    """Tune what could change the plan of `search`; return it with the tuned kernels as candidates.

    The flag tells whether a candidate came that was not there before: plans that are remembered from
    earlier runs do not know of it. A machine that cannot both build and run what is tuned (one without a
    compiler for its GPU, where others build) leaves the search as it is.
    """
    device = session.options.device
    tuned = tunable(device)
    backend = next((one for one in session.backends if one.name == tuned.name), None)
    if backend is None or not tuned.availability().available:
        return search, False
    start = time.monotonic()
    before = session.counts.measured
    function = search.enumerated.function
    peaks = machine_peaks(session.environment, session.options.store_dir, again=False)
    problem, costs = search.enumerated.problem, search.costs
    others = {one.name for one in session.backends if _says_nothing(one, tuned)}
    peaks = raised_peaks(function, problem, costs, peaks, others)
    prospects = find_prospects(function, problem, costs, peaks, tuned)
    records = TuningRecords(
        session.options.store_dir, session.environment, session.store, time.monotonic
    )
    budget_s = session.options.tune_s
    if budget_s > mark.tuned_s():
        remembered, seen = mark.plans(search), mark.in_place(search)
        if prospects:
            _tune(prospects, records, reference_dir, search, session)
            remembered, seen = (), ()
        mark.write(search.lazy.gap_s, remembered, budget_s, seen)
    best = _best_records(prospects, records, toolchain(session.threads, device))
    if best:
        search = _with_tuned(search, best, backend, reference_dir, session)
    session.seconds.stages["tune"] += time.monotonic() - start
    return search, session.counts.measured > before


def _says_nothing(backend: Backend, tuned: Backend) -> bool:
    """Tell whether what a backend reaches is no sign that a tuned kernel could.

    Libraries for a GPU multiply on tensor cores, which the schedules that are searched for do not use.
    """
    return bool(backend.fewer_flops) or (backend.device == "cuda" and backend.name != tuned.name)


def _tune(
    prospects: Sequence[Prospect],
    records: TuningRecords,
    reference_dir: Path,
    search: FunctionSearch,
    session: Session,
) -> None:
    """Spend the time on the prospects in turns; every finished trial is recorded."""
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
    """Yield the prospects for a round of trials each, again and again, while there is hope."""
    left = list(prospects)
    while left:
        left = [prospect for prospect in left if _is_hopeful(prospect, tuner)]
        yield from left


def _is_hopeful(prospect: Prospect, tuner: Tuner) -> bool:
    workload = tuner.workload(prospect.work)
    trials = len(tuner.records.of(workload))
    if tuner.records.ended(workload) or trials >= MOST_TRIALS:
        return False
    best = tuner.records.best(workload)
    allowed = min((factor for after, factor in HOPES if trials >= after), default=float("inf"))
    return best is None or best.latency_s <= allowed * prospect.break_even_s


def _best_records(
    prospects: Sequence[Prospect], records: TuningRecords, toolchain: str
) -> list[tuple[Prospect, TuningRecord]]:
    """Return the best record of every prospect whose kernel comes near its break-even."""
    found = []
    for prospect in prospects:
        best = records.best(workload_digest(prospect.digest, toolchain))
        if best is not None and best.latency_s <= NEAR * prospect.break_even_s:
            found.append((prospect, best))
    return found


def _with_tuned(
    search: FunctionSearch,
    best: Sequence[tuple[Prospect, TuningRecord]],
    backend: Backend,
    reference_dir: Path,
    session: Session,
) -> FunctionSearch:
    """Add the tuned kernels to the candidates, measured, and look for the best plans again."""
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
