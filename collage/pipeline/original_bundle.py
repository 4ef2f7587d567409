"""Original models as entries of a bundle, for models that no executable can run.

The inputs and outputs of an executable are tensors of numbers. A model with text, sequences or maps there
runs as a whole on ONNX Runtime, behind the same API: `collage.load(bundle).run(...)`. It has no functions,
so nothing is searched or compared. A bundle may hold such entries alone, or beside compiled ones.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.bundle.manifest import FunctionGateEntry, MeasuredLatency
from collage.bundle.publish import BundledFallback, BundleMetadata, publish
from collage.entries import ModelEntry
from collage.errors import ModelError
from collage.frontend import Model
from collage.frontend.input_names import input_names
from collage.frontend.original_file import write_original
from collage.frontend.original_interface import OriginalInterface
from collage.frontend.sample_files import read_samples
from collage.frontend.samples import named_samples
from collage.options import Options
from collage.pipeline.compile_context import CompileContext
from collage.report.build import environment_facts
from collage.report.data import ReportData
from collage.report.html import render_html
from collage.report.summary import (
    CandidateCounts,
    FunctionSummary,
    GateResult,
    Latencies,
    ModelFile,
    StageSeconds,
    Summary,
)
from collage.runtime.fallback import Fallback
from collage.runtime.function_names import fallback_name
from collage.verify.original_run import OriginalRun, run_original
from collage.verify.verdict import Verdict

FRAMEWORK = "onnxruntime"
"""Framework of such models: it has every type of ONNX."""


@dataclass(frozen=True)
class OriginalEntry:
    """An entry whose original model runs as a whole.

    Attributes:
        model: the model, without functions.
        bundled: files, golden data and the gate's entry for the bundle.
        summary: results for the summary.
    """

    model: Model
    bundled: BundledFallback
    summary: FunctionSummary


def compile_original(
    entry: ModelEntry,
    interface: OriginalInterface,
    reason: str,
    *,
    options: Options,
    context: CompileContext,
) -> OriginalEntry:
    """Run the original model of an entry; return what a bundle needs of it.

    Args:
        entry: the entry.
        interface: inputs and outputs of its model, and digest.
        reason: why no executable can run it.
        options: options of the entry.
        context: shared state of the compile.

    Raises:
        ModelError: ONNX Runtime cannot run it or type its outputs, or the options forbid the original model.
    """
    backends = [backend.name for backend in context.backends]
    require_original_allowed(str(entry.path), reason, options, backends)
    if interface.untyped:
        raise ModelError(
            f"{entry.path}: {reason}, so only the original model can run, and {interface.untyped}; state"
            " the types of all outputs in the file"
        )
    folder = context.work_dir / f"original-{entry.name}"
    folder.mkdir()
    files = write_original(entry.path, folder, entry.name)
    with context.progress.stage("verify"), context.seconds.of("verify"):
        run = run_original(
            files,
            {name: shape for shapes in options.shapes[:1] for name, shape in shapes.items()},
            options.seed,
            values=_values(entry.path, options),
            threads=context.threads,
            work_dir=folder,
        )
    fallback = Fallback(
        FRAMEWORK,
        files[0].name,
        interface.inputs,
        interface.outputs,
        weights=files[1].name if len(files) > 1 else "",
        entry=entry.name,
    )
    reason = f"{reason}, so the original model runs in {FRAMEWORK}"
    golden = {
        f"{fallback_name(entry.name)}{name.removeprefix(fallback_name())}": value
        for name, value in run.golden.items()
    }
    return OriginalEntry(
        Model(entry.path, interface.sha256, (), frozenset(), entry=entry.name),
        BundledFallback(fallback, files, golden, _gate(entry.name, reason, run)),
        _summary(entry.name, reason, run),
    )


def publish_originals(
    originals: Sequence[OriginalEntry], output: Path, context: CompileContext
) -> Summary:
    """Write the bundle of original models alone into the folder `output`; return its summary."""
    report = with_originals(_empty_report(originals, output, context), originals)
    metadata = BundleMetadata(
        models=[original.model for original in originals],
        threads=context.threads,
        environment_digest=context.environment.digest,
        seed=context.options.seed,
        libraries=frozenset({FRAMEWORK}),
        toolchains=original_toolchains(context),
        fallbacks=[original.bundled for original in originals],
    )
    publish(
        output,
        None,
        (),
        metadata,
        generated_files={
            "plan.json": json.dumps([]),
            "summary.json": report.summary.to_json(),
            "report.json": report.to_json(),
            "report.html": render_html(report),
        },
    )
    return report.summary


def _values(path: Path, options: Options) -> dict[str, np.ndarray]:
    """Return the user's values for the golden data: the first sample set, unless they are generated."""
    samples = read_samples(options.samples, options.inputs)
    sets = named_samples(samples, input_names(path)).sets if samples else ()
    first = sets[0] if sets and options.golden == "samples" else {}
    return {**first, **samples.settings}


def with_originals(report: ReportData, originals: Sequence[OriginalEntry]) -> ReportData:
    """Return the report with the results of entries that run as originals."""
    if not originals:
        return report
    summary = report.summary
    functions = (*summary.functions, *(original.summary for original in originals))
    reasons = [f"{item.summary.function}: {item.summary.reason}" for item in originals]
    if len(functions) == 1:
        reasons = [functions[0].reason]
    reason = "; ".join(filter(None, [summary.gate.reason, *reasons]))
    gate = summary.gate.model_copy(update={"reason": reason})
    return report.model_copy(
        update={"summary": summary.model_copy(update={"functions": functions, "gate": gate})}
    )


def original_toolchains(context: CompileContext) -> dict[str, str]:
    """Return the identity of the original models' framework, by name."""
    return {
        backend.name: backend.identity for backend in context.backends if backend.name == FRAMEWORK
    }


def require_original_allowed(
    model: str, reason: str, options: Options, backends: Collection[str]
) -> None:
    """Check that the original model may run.

    Args:
        model: name of the model for the message.
        reason: why no executable can run it.
        options: options of the compile.
        backends: names of its backends.

    Raises:
        ModelError: the options forbid it.
    """
    if not options.fallback:
        raise ModelError(
            f"{model}: {reason}, so only the original model can run; compile without --no-fallback"
        )
    if options.target.is_gpu:
        raise ModelError(
            f"{model}: {reason}, so only ONNX Runtime on a processor can run it; compile for the cpu"
        )
    if FRAMEWORK not in backends:
        raise ModelError(
            f"{model}: {reason}, so only ONNX Runtime can run it; add {FRAMEWORK} to --backends"
        )


def _gate(entry: str, reason: str, run: OriginalRun) -> FunctionGateEntry:
    latency = MeasuredLatency(seconds=run.latency_s)
    return FunctionGateEntry(
        function=fallback_name(entry),
        original=FRAMEWORK,
        latency={"collage": latency, FRAMEWORK: latency},
        ratios={},
        verdict=Verdict.NOT_SLOWER,
        reason=reason,
        deterministic=run.deterministic,
    )


def _summary(entry: str, reason: str, run: OriginalRun) -> FunctionSummary:
    return FunctionSummary(
        function=fallback_name(entry),
        entry=entry,
        latency=Latencies(collage_s=run.latency_s, baselines={FRAMEWORK: run.latency_s}),
        speedup_over_best=1.0,
        predicted_s=None,
        verdict=Verdict.NOT_SLOWER,
        reason=reason,
        original=FRAMEWORK,
        deterministic=run.deterministic,
    )


def _empty_report(
    originals: Sequence[OriginalEntry], output: Path, context: CompileContext
) -> ReportData:
    models = [original.model for original in originals]
    summary = Summary(
        models=tuple(
            ModelFile(entry=model.entry, file=model.path.name, sha256=model.sha256)
            for model in models
        ),
        backends=tuple(backend.name for backend in context.backends),
        threads=context.threads,
        functions=(),
        speedup_over_best=1.0,
        plan=(),
        candidates=CandidateCounts(),
        seconds=StageSeconds.model_validate(dict(context.seconds.stages)),
        gate=GateResult(passed=True, reason=""),
        bundle=str(output),
    )
    return ReportData(
        summary=summary,
        model=", ".join(model.path.name for model in models),
        environment=environment_facts(context.environment),
    )


def unlike_executable(interface: OriginalInterface) -> str:
    """Return why no executable can have these inputs and outputs, or ""."""
    for value in (*interface.inputs, *interface.outputs):
        if not value.type.is_numeric:
            return f"{value.name!r} is a {value.type}"
    return ""
