"""What a bundle has for other shapes, and what it costs to keep it open, for the summary and the report."""

import logging
from collections.abc import Sequence
from pathlib import Path

from collage.bundle.manifest import ManifestDocument
from collage.bundle.publish import BundledFunction
from collage.errors import MeasureError
from collage.frontend import Model
from collage.frontend.model_files import open_model
from collage.pipeline.compile_context import CompileContext
from collage.pipeline.other_shapes import OtherShapes
from collage.report.data import ReportData
from collage.report.summary import FootprintResult, OtherShapesResult
from collage.runtime.bundle_folder import MANIFEST
from collage.runtime.function_names import MAIN
from collage.verify.footprint import bundle_footprint, onnxruntime_footprint

log = logging.getLogger(__name__)


def with_other_shapes(report: ReportData, others: Sequence[OtherShapes]) -> ReportData:
    """Return the report with the answers to other shapes of all entries."""
    result = OtherShapesResult(
        fallbacks={
            other.entry: other.fallback.fallback.framework for other in others if other.fallback
        },
        padding=tuple(
            f"{'' if other.entry == MAIN else f'{other.entry}/'}{axis.input}:{axis.axis}"
            for other in others
            for axis in other.padding
        ),
    )
    return _changed(report, result)


def with_footprint(
    report: ReportData,
    bundle: Path,
    models: Sequence[Model],
    *,
    functions: Sequence[BundledFunction],
    context: CompileContext,
) -> ReportData:
    """Return the report with the bundle's footprint; without one where a process dies."""
    feeds = [
        [function.inputs for function in functions if function.entry == model.entry]
        for model in models
    ]
    try:
        with context.seconds.of("verify"):
            ours = bundle_footprint(bundle, context.threads)
            theirs = onnxruntime_footprint(
                [(model.path, own) for model, own in zip(models, feeds, strict=True)],
                context.threads,
                context.work_dir,
            )
    except MeasureError as error:
        log.debug("no footprint: %s", error)
        return report
    manifest = ManifestDocument.model_validate_json((bundle / MANIFEST).read_text())
    serving = {manifest.executable} | {
        name
        for fallback in manifest.fallbacks
        for name in (fallback.file, fallback.weights)
        if name
    }
    model_bytes = 0
    for model in models:
        with open_model(model.path) as files:
            model_bytes += files.size_bytes
    footprint = FootprintResult(
        size_bytes=sum((bundle / name).stat().st_size for name in serving),
        load_s=ours.load_s,
        rss_bytes=ours.rss_bytes,
        onnxruntime_size_bytes=model_bytes,
        onnxruntime_load_s=theirs.load_s,
        onnxruntime_rss_bytes=theirs.rss_bytes,
    )
    shapes = report.summary.other_shapes.model_copy(update={"footprint": footprint})
    return _changed(report, shapes)


def _changed(report: ReportData, shapes: OtherShapesResult) -> ReportData:
    summary = report.summary.model_copy(update={"other_shapes": shapes})
    return report.model_copy(update={"summary": summary})
