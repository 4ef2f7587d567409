"""A bundle of the original model alone, for models that no executable can run.

The inputs and outputs of an executable are tensors of numbers. A model with text, sequences or maps there
runs as a whole on ONNX Runtime, behind the same API: `collage.load(bundle).run(...)`. It has no functions,
so nothing is searched or compared.
"""

import json
from pathlib import Path

from collage.bundle.manifest import FunctionGateEntry, MeasuredLatency
from collage.bundle.publish import BundledFallback, BundleMetadata, publish
from collage.errors import ModelError
from collage.frontend import Model
from collage.frontend.original_file import write_original
from collage.frontend.original_interface import OriginalInterface
from collage.pipeline.compile_context import CompileContext
from collage.report.build import environment_facts
from collage.report.data import (
    CandidateCounts,
    FunctionSummary,
    GateResult,
    Latencies,
    ModelFile,
    ReportData,
    StageSeconds,
    Summary,
)
from collage.report.html import render_html
from collage.runtime.fallback import Fallback
from collage.runtime.function_names import fallback_name
from collage.verify.original_run import OriginalRun, run_original
from collage.verify.verdict import Verdict

FRAMEWORK = "onnxruntime"
"""Framework of such models: it has every type of ONNX."""


def compile_original(
    path: Path,
    interface: OriginalInterface,
    reason: str,
    *,
    output: Path,
    context: CompileContext,
) -> Summary:
    """Write the bundle of the original model alone into the folder `output`; return its summary.

    Args:
        path: file of the model.
        interface: its inputs and outputs, and digest.
        reason: why no executable can run it.
        output: folder of the bundle.
        context: shared state of the compile.

    Raises:
        ModelError: ONNX Runtime cannot run it, or the options forbid the original model.
    """
    options = context.options
    if not options.fallback:
        raise ModelError(
            f"{path}: {reason}, so only the original model can run; compile without --no-fallback"
        )
    if FRAMEWORK not in {backend.name for backend in context.backends}:
        raise ModelError(
            f"{path}: {reason}, so only ONNX Runtime can run it; add {FRAMEWORK} to --backends"
        )
    folder = context.work_dir / "original"
    folder.mkdir(exist_ok=True)
    files = write_original(path, folder)
    with context.progress.stage("verify"), context.seconds.of("verify"):
        run = run_original(
            files,
            {name: shape for shapes in options.shapes[:1] for name, shape in shapes.items()},
            options.seed,
            threads=context.threads,
            work_dir=context.work_dir,
        )
    fallback = Fallback(
        FRAMEWORK,
        files[0].name,
        interface.inputs,
        interface.outputs,
        weights=files[1].name if len(files) > 1 else "",
    )
    reason = f"{reason}, so the original model runs in {FRAMEWORK}"
    summary = _summary(
        ModelFile(file=path.name, sha256=interface.sha256),
        reason,
        run,
        output=output,
        context=context,
    )
    report = ReportData(
        summary=summary, model=path.name, environment=environment_facts(context.environment)
    )
    backend = next(backend for backend in context.backends if backend.name == FRAMEWORK)
    bundled = BundledFallback(fallback, files, run.golden, _gate(summary.gate.reason, run))
    metadata = BundleMetadata(
        models=(Model(path, interface.sha256, (), frozenset()),),
        threads=context.threads,
        environment_digest=context.environment.digest,
        seed=options.seed,
        libraries=frozenset({FRAMEWORK}),
        toolchains={backend.name: backend.identity},
        fallbacks=(bundled,),
    )
    publish(
        output,
        None,
        (),
        metadata,
        generated_files={
            "plan.json": json.dumps([]),
            "summary.json": summary.to_json(),
            "report.json": report.to_json(),
            "report.html": render_html(report),
        },
    )
    return summary


def _gate(reason: str, run: OriginalRun) -> FunctionGateEntry:
    latency = MeasuredLatency(seconds=run.latency_s)
    return FunctionGateEntry(
        function=fallback_name(),
        original=FRAMEWORK,
        latency={"collage": latency, FRAMEWORK: latency},
        ratios={},
        verdict=Verdict.NOT_SLOWER,
        reason=reason,
        deterministic=run.deterministic,
    )


def _summary(
    model: ModelFile,
    reason: str,
    run: OriginalRun,
    *,
    output: Path,
    context: CompileContext,
) -> Summary:
    function = FunctionSummary(
        function=fallback_name(),
        latency=Latencies(collage_s=run.latency_s, baselines={FRAMEWORK: run.latency_s}),
        speedup_over_best=1.0,
        predicted_s=None,
        verdict=Verdict.NOT_SLOWER,
        reason=reason,
        original=FRAMEWORK,
        deterministic=run.deterministic,
    )
    return Summary(
        models=(model,),
        backends=tuple(backend.name for backend in context.backends),
        threads=context.threads,
        functions=(function,),
        speedup_over_best=1.0,
        plan=(),
        candidates=CandidateCounts(),
        seconds=StageSeconds.model_validate(dict(context.seconds.stages)),
        gate=GateResult(passed=True, reason=reason),
        bundle=str(output),
    )


def unlike_executable(interface: OriginalInterface) -> str:
    """Return why no executable can have these inputs and outputs, or ""."""
    for value in (*interface.inputs, *interface.outputs):
        if not value.type.is_numeric:
            return f"{value.name!r} is a {value.type}"
    return ""
