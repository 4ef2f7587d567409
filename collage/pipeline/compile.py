"""The stages in order, as plain functions: what the command line, a flow or a test calls.

import, enumerate, measure and search (in rounds), tune, assemble and compare whole, gate, bundle.
Every stage is idempotent: costs live in the store under content keys, so whatever interrupts a
compile, the next one repeats no measurement.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from collage.assemble import FunctionPlan, assemble
from collage.backends.base import Backend, PluginKernel
from collage.backends.nvidia.architecture import architecture
from collage.backends.nvidia.tensorrt.engine import ENGINES
from collage.bundle.publish import Facts, Published, publish
from collage.errors import GateError, MeasureError, SearchError, UnprovenError
from collage.frontend import Function, Model
from collage.frontend.inputs import random_inputs
from collage.measure.peaks import machine_peaks
from collage.options import Options
from collage.pipeline.compile_context import Session, open_session
from collage.pipeline.original_plan import OriginalFile, with_original, without_plans
from collage.pipeline.plans import WholePlans, seconds_by_position
from collage.pipeline.refinement import Refinement
from collage.pipeline.search_checkpoint import worth_remembering
from collage.pipeline.search_stage import (
    enumerated_function,
    imported,
    local_measurer,
    measured_search,
    sampled,
)
from collage.pipeline.tuning import tuned_search
from collage.report.build import Run, build_report
from collage.report.data import CandidateCounts, Summary, TuningFacts
from collage.report.html import render_html
from collage.report.precision import Allowed, FunctionResult, manifest_precision
from collage.report.progress import Progress
from collage.runtime.blob import unpack
from collage.runtime.plugin import library_names
from collage.search.function_search import Enumerated, FunctionSearch
from collage.search.plan_selection import NamedPlan
from collage.store.atomic_folder import check_output
from collage.verify import Contender, profile_kernels
from collage.verify.accuracy_checker import Budget
from collage.verify.accuracy_samples import MORE_SEEDS, write_trials
from collage.verify.gate import Decision, Gate
from collage.verify.plan_executable import PlanExecutable, function_signature
from collage.verify.reference_run import Samples


@dataclass(frozen=True)
class Compiled:
    """One function after all stages."""

    search: FunctionSearch
    chosen: NamedPlan
    kernels: FunctionPlan
    published: Published
    measured_s: Mapping[int, float]
    """Seconds of the kernels inside the executable, by their position in the plan."""
    pace: float


def compile_model(
    path: Path, options: Options, output: Path, progress: Progress | None = None
) -> Summary:
    """Compile the model at `path` into the bundle folder `output`.

    Raises:
        GateError: no executable has the right numbers, or none is proven as fast as every framework.
        CollageError: see `collage.errors`; nothing is written then.
    """
    check_output(output)
    with open_session(options, progress) as session:
        return _compile(path, output, session)


def _compile(path: Path, output: Path, session: Session) -> Summary:
    model = imported(path, session)
    compiled = [_compile_function(model, function, session) for function in model.functions]
    executable = _final_executable(compiled, session)
    published = [one.published for one in compiled]
    results = [
        FunctionResult(one.search, one.chosen, one.published.decision, one.measured_s, one.pace)
        for one in compiled
    ]
    allowed = _allowed(session)
    facts = Facts(
        model,
        session.threads,
        session.environment.digest,
        session.options.seed,
        _libraries((one.kernels for one in compiled), session.options.device),
        _toolchains((one.kernels for one in compiled), session.backends),
        manifest_precision(allowed, results) if allowed else None,
        session.options.device,
        "" if session.options.device == "cpu" else architecture().removeprefix("sm_"),
        session.options.allow_slower,
    )
    run = Run(
        model,
        [backend.name for backend in session.backends],
        session.environment,
        CandidateCounts(**asdict(session.counts)),
        session.seconds.stages,
        output,
        machine_peaks(
            session.environment, session.options.store_dir, again=session.counts.measured > 0
        ),
        TuningFacts(**asdict(session.tuning)),
        allowed,
        frozenset(backend.name for backend in session.backends if backend.fewer_flops),
    )
    report = build_report(run, results)
    texts = {
        "plan.json": json.dumps([region.model_dump() for region in report.summary.plan], indent=1),
        "summary.json": report.summary.to_json(),
        "report.json": report.to_json(),
        "report.html": render_html(report),
    }
    publish(output, executable, published, facts, generated_files=texts)
    return report.summary


def _compile_function(model: Model, function: Function, session: Session) -> Compiled:
    samples = sampled(model, function, session)
    enumerated = enumerated_function(function, session)
    measurer = local_measurer(function, samples.reference_dir, session)
    original = OriginalFile(model, function, session)
    try:
        search, mark = measured_search(enumerated, measurer, session)
    except SearchError as error:
        if not original.plans.baselines:
            raise
        return _original_alone(error, enumerated, samples, original, session)
    search, is_new = tuned_search(search, mark, samples.reference_dir, session)
    plans = WholePlans(search, session)
    remembered = () if is_new else mark.plans(search)
    executables = _assemble_all(plans, remembered or search.plans)
    refinement = (
        Refinement(plans, 0.0, mark.in_place(search))
        if remembered
        else Refinement(plans, session.options.refine_s)
    )
    with _gate(model, function, samples, session) as gate:
        decision = gate.decide(
            function,
            executables,
            samples.inputs,
            samples.expected,
            refinement.next_heat,
            lambda: [plans.assemble(one) for one in plans.fresh()],
            original.plans,
        )
        best = worth_remembering(plans.named, decision.latencies, decision.finalists)
        mark.write(search.lazy.gap_s, best, in_place=refinement.in_place.seen)
    pace = refinement.pace(decision)
    return _compiled(refinement.learnt(pace), plans, original, decision, samples, session, pace)


def _original_alone(
    error: SearchError,
    enumerated: Enumerated,
    samples: Samples,
    original: OriginalFile,
    session: Session,
) -> Compiled:
    """Ship the original file where no plan of regions computes its numbers, as with random operators.

    Raises:
        SearchError: it does not run either.
    """
    search = without_plans(enumerated)
    function = enumerated.function
    with _gate(original.model, function, samples, session) as gate:
        try:
            decision = gate.decide(
                function, (), samples.inputs, samples.expected, originals=original.plans
            )
        except GateError:
            raise error from None
    plans = WholePlans(search, session)
    return _compiled(search, plans, original, decision, samples, session)


def _compiled(
    search: FunctionSearch,
    plans: WholePlans,
    original: OriginalFile,
    decision: Decision,
    samples: Samples,
    session: Session,
    pace: float = 1.0,
) -> Compiled:
    """Gather what came of a function; raises UnprovenError where it must not ship."""
    function, name = search.enumerated.function, decision.chosen.name
    if not decision.passed and not session.options.allow_slower:
        raise UnprovenError(_refusal(function, decision, session.options))
    expected: Mapping[str, np.ndarray] = samples.expected
    if decision.golden is not None:
        expected = decision.golden.outputs
        kernels = original.kernels[name]
        search, chosen = with_original(search, original.named[name], decision)
    else:
        kernels = plans.kernels[name]
        chosen = next(one for one in search.plans if one.name == name)
    session.chosen.update(one.backend for one in kernels.kernels)
    with session.seconds.of("verify"):
        measured_s = _kernel_seconds(kernels, decision, samples.inputs, session)
    published = Published(function, decision, samples.inputs, expected)
    return Compiled(search, chosen, kernels, published, measured_s, pace)


def _refusal(function: Function, decision: Decision, options: Options) -> str:
    """Say what the gate refuses, and how to go on."""
    advice = "run it again on a machine that does less beside, or with a longer --verify"
    if not options.fallback:
        advice += ". Without --no-fallback the original file itself can ship"
    return (
        f"{function.name} is {decision.reason}; nothing was written. To go on, {advice}. --allow-slower "
        "writes the bundle all the same, for trying out: it is refused where bundles are published or served"
    )


@contextmanager
def _gate(model: Model, function: Function, samples: Samples, session: Session) -> Iterator[Gate]:
    """Make the gate of one function, while its stage is shown and its seconds are counted."""
    budget = _budget(function, samples, session)
    with session.progress.stage("verify") as stage, session.seconds.of("verify"):

        def on_round(done: int, total: int) -> None:
            stage.total = stage.done + total - done + 1
            stage.advance(1)

        yield Gate(
            model.path,
            session.threads,
            session.options.verify_s,
            session.work_dir,
            on_round,
            budget,
            session.options.device,
            session.options.store_dir / ENGINES,
        )


def _allowed(session: Session) -> Allowed | None:
    if not session.options.may_reduce:
        return None
    reasons = {
        one.name: f"{' or '.join(sorted(set(one.reduced.values())))}: {reason}"
        for one in session.backends
        if (reason := one.reduced_reason())
    }
    return Allowed(session.options.tolerance, reasons)


def _budget(function: Function, samples: Samples, session: Session) -> Budget | None:
    """Write the trials of plans in less than float32: the gate's inputs, and those of more seeds."""
    options = session.options
    if not options.may_reduce:
        return None
    seeds = range(options.seed + 1, options.seed + 1 + MORE_SEEDS)
    sets = [samples.inputs, *(random_inputs(function, seed) for seed in seeds)]
    folder = session.work_dir / f"trials-{function.name}"
    write_trials(function, sets, folder)
    return Budget(options.tolerance, folder)


def _assemble_all(plans: WholePlans, wanted: Sequence[NamedPlan]) -> list[PlanExecutable]:
    session, executables = plans.session, []
    with session.seconds.of("assemble"), session.progress.stage("assemble", len(wanted)) as stage:
        for plan in wanted:
            executables.append(plans.assemble(plan))
            stage.advance(1)
    return executables


def _kernel_seconds(
    plan: FunctionPlan,
    decision: Decision,
    inputs: dict[str, np.ndarray],
    session: Session,
) -> dict[int, float]:
    """Time the kernels inside the executable that ships; views have no kernel.

    They are told at the pace of the comparison that the executable has won.
    """
    executable = decision.chosen
    signature = function_signature(plan.function, executable.kernel)
    contender = Contender(
        executable.name, "executable", executable.path, signature, executable.device
    )
    try:
        found = profile_kernels(contender, inputs, session.threads, session.work_dir)
    except MeasureError:
        return {}  # facts for the report alone: the executable has passed its gate without them
    pace = decision.latency.seconds / found.call_s
    return {
        position: pace * seconds
        for position, seconds in seconds_by_position(plan, found.kernels_s).items()
    }


def _final_executable(compiled: Sequence[Compiled], session: Session) -> Path:
    """The very file that was measured; several functions are assembled once more into one."""
    if len(compiled) == 1:
        return compiled[0].published.decision.chosen.path
    file = session.work_dir / "all.so"
    options = session.options
    kernels = [one.kernels for one in compiled]
    assemble(kernels, session.threads, file, options.device, options.cuda_graphs)
    return file


def _libraries(plans: Iterator[FunctionPlan], device: str) -> frozenset[str]:
    found: set[str] = set() if device == "cpu" else {"cudart"}
    for plan in plans:
        for planned in plan.kernels:
            if isinstance(planned.kernel, PluginKernel):
                kind = planned.kernel.kind
                header, _ = unpack(planned.kernel.blob)
                if kind == "on_host":
                    kind = str(header["kind"])
                libraries = header.get("libraries", ())
                found.update(map(str, libraries if isinstance(libraries, list) else ()))
                if kind in library_names():  # the plug-in's own kernels need no library
                    found.add(kind)
    return frozenset(found)


def _toolchains(plans: Iterator[FunctionPlan], backends: Sequence[Backend]) -> dict[str, str]:
    used = {planned.backend for plan in plans for planned in plan.kernels}
    return {backend.name: backend.identity for backend in backends if backend.name in used}
