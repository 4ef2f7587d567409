"""The last stage: the compiled functions as one bundle with its manifest, plan and report."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from collage.assemble import FunctionPlan, assemble
from collage.assemble.shared_kernels import share_kernels
from collage.backends.nvidia.architecture import architecture
from collage.bundle.publish import BundledFunction, BundleMetadata, publish
from collage.frontend import Model
from collage.measure.peaks import machine_peaks
from collage.pipeline.bodies import backends_of
from collage.pipeline.compile_context import CompileContext
from collage.pipeline.footprint import with_footprint, with_other_shapes
from collage.pipeline.original_bundle import (
    OriginalEntry,
    original_toolchains,
    with_originals,
)
from collage.pipeline.other_shapes import answer_entries
from collage.report.build import CompileFacts, build_report
from collage.report.data import ReportData
from collage.report.html import render_html
from collage.report.nan_treatment import nan_regions
from collage.report.precision import FunctionResult, PrecisionPermission, manifest_precision
from collage.report.summary import CandidateCounts, Summary, TuningFacts
from collage.runtime.target import Target
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import NamedPlan


@dataclass(frozen=True, kw_only=True)
class CompiledFunction:
    """One function after the gate.

    Attributes:
        search: search with the costs and plans of the report.
        chosen: plan that ships.
        kernels: kernels of the plan.
        published: decision and golden data for the bundle.
        measured_s: seconds of the kernels inside the executable, by their position in the plan.
        speed_factor: machine speed factor of the final round, included in the costs; default 1.
    """

    search: FunctionSearch
    chosen: NamedPlan
    kernels: FunctionPlan
    published: BundledFunction
    measured_s: Mapping[int, float]
    speed_factor: float = 1.0


def build_bundle(
    models: Sequence[Model],
    compiled: Sequence[CompiledFunction],
    output: Path,
    context: CompileContext,
    *,
    originals: Sequence[OriginalEntry] = (),
) -> Summary:
    """Write the bundle of the entries' models into the folder `output`; return its summary.

    Args:
        models: models of the compiled entries.
        compiled: their functions.
        output: folder of the bundle.
        context: shared state of the compile.
        originals: entries that run as originals.
    """
    executable = _final_executable(compiled, context)
    published = [function.published for function in compiled]
    original_models = [original.model for original in originals]
    names = [model.entry for model in (*models, *original_models)]
    others = answer_entries(models, published, executable, context, entries=names)
    models = [
        replace(model, notes=(*model.notes, other.note)) if other.note else model
        for model, other in zip(models, others, strict=True)
    ]
    results = [
        FunctionResult(
            search=function.search,
            chosen=function.chosen,
            decision=function.published.decision,
            measured_s=function.measured_s,
            speed_factor=function.speed_factor,
            entry=function.published.entry,
        )
        for function in compiled
    ]
    allowed = _allowed_precision(context)
    all_models = [*models, *original_models]
    report = build_report(_report_context(all_models, output, allowed, context), results)
    options = context.options
    plans = [function.kernels for function in compiled]
    metadata = BundleMetadata(
        models=all_models,
        threads=context.threads,
        environment_digest=context.environment.digest,
        seed=options.seed,
        libraries=_libraries(plans, options.target),
        toolchains=_toolchains(plans, context)
        | (original_toolchains(context) if originals else {}),
        precision=manifest_precision(allowed, results) if allowed else None,
        nan=nan_regions(report.summary.plan),
        device=options.target,
        compute_capability=architecture().removeprefix("sm_") if options.target.is_gpu else "",
        allow_slower=options.allow_slower,
        fallbacks=[
            *(other.fallback for other in others if other.fallback),
            *(original.bundled for original in originals),
        ],
        padding={other.entry: other.padding for other in others if other.padding},
        defaults={other.entry: other.defaults for other in others if other.defaults},
    )
    report = with_originals(with_other_shapes(report, others), originals)
    if metadata.fallbacks or len(published) > 1:
        trial = context.work_dir / "trial-bundle"
        publish(trial, executable, published, metadata, generated_files=_generated_files(report))
        report = with_footprint(report, trial, models, functions=published, context=context)
    publish(output, executable, published, metadata, generated_files=_generated_files(report))
    return report.summary


def _report_context(
    models: Sequence[Model],
    output: Path,
    allowed: PrecisionPermission | None,
    context: CompileContext,
) -> CompileFacts:
    measured = context.counts.measured > 0
    return CompileFacts(
        models=models,
        backends=[backend.name for backend in context.backends],
        environment=context.environment,
        counts=CandidateCounts(**asdict(context.counts)),
        seconds=context.seconds.stages,
        output=output,
        peaks=machine_peaks(context.environment, context.options.store_dir, again=measured),
        tuning=TuningFacts(**asdict(context.tuning)),
        allowed=allowed,
        algorithmic_savings=frozenset(
            backend.name for backend in context.backends if backend.algorithmic_savings
        ),
        spreads_nan=frozenset(b.name for b in context.backends if b.spreads_nan),
    )


def _generated_files(report: ReportData) -> dict[str, str]:
    """Return the text files of the bundle by name."""
    return {
        "plan.json": json.dumps([region.model_dump() for region in report.summary.plan], indent=1),
        "summary.json": report.summary.to_json(),
        "report.json": report.to_json(),
        "report.html": render_html(report),
    }


def _allowed_precision(context: CompileContext) -> PrecisionPermission | None:
    """Return the tolerance and the backends' obstacles; None where only float32 is allowed."""
    if not context.options.may_reduce:
        return None
    reasons = {
        backend.name: f"{' or '.join(sorted(set(backend.reduced.values())))}: {reason}"
        for backend in context.backends
        if (reason := backend.reduced_reason())
    }
    return PrecisionPermission(context.options.tolerance, reasons)


def _final_executable(compiled: Sequence[CompiledFunction], context: CompileContext) -> Path:
    """Return the measured file itself; several functions are assembled into one new file.

    Kernels that are equal in several functions are in it once.
    """
    if len(compiled) == 1:
        return compiled[0].published.decision.chosen.path
    file = context.work_dir / "all.so"
    options = context.options
    plans = [function.kernels for function in compiled]
    if not options.target.takes_device_tensors:
        plans = share_kernels(plans)
    assemble(plans, context.threads, file, device=options.target, graphs=options.cuda_graphs)
    return file


def _libraries(plans: Iterable[FunctionPlan], device: Target) -> frozenset[str]:
    """Return the vendor libraries of the bundle: of its device's runtime, and of its kernels."""
    kernels = [planned.kernel for plan in plans for planned in plan.kernels if planned.kernel]
    return device.runtime_libraries.union(*(kernel.libraries for kernel in kernels))


def _toolchains(plans: Iterable[FunctionPlan], context: CompileContext) -> dict[str, str]:
    """Return the identities of the backends of the kernels, by name."""
    used = {name for plan in plans for name in backends_of(plan, context)}
    return {backend.name: backend.identity for backend in context.backends if backend.name in used}
