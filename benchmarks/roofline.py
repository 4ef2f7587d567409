"""Gap between the shipped plans and the roofline: `python -m benchmarks.roofline`.

Reads the reports of the bundles of `python -m benchmarks.models` in the same work folder. The roofline is
the lower bound of every direct algorithm at the machine's peaks, as in `collage explain`: every tensor
moved once, every product computed at the highest measured rate. Winograd's algorithm computes less, so its
plans may be above 100 %.
"""

import argparse
from pathlib import Path

from benchmarks.model_set import BenchmarkModel, chosen_models, model_options
from benchmarks.results import machine, write_section
from collage.report.data import RegionReport
from collage.report.stored_report import read_report

REGIONS_SHOWN = 3
"""Number of named regions of a model, farthest above the roofline first."""


def row(model: BenchmarkModel, work: Path) -> str:
    """Return the line of one model's bundle."""
    report = read_report(work / f"{model.name}.collage")
    regions = [region for function in report.functions for region in function.regions]
    plan_s, bound_s = sum(map(_seconds, regions)), sum(region.bound_s or 0.0 for region in regions)
    named = sorted(regions, key=_gap_s, reverse=True)[:REGIONS_SHOWN]
    return (
        f"| {model.name} | {plan_s * 1e3:.2f} | {bound_s * 1e3:.2f} | {bound_s / plan_s:.0%} | "
        f"{'; '.join(map(_text, named))} |"
    )


def _seconds(region: RegionReport) -> float:
    return region.measured_s or region.predicted_s or 0.0


def _gap_s(region: RegionReport) -> float:
    return _seconds(region) - (region.bound_s or 0.0)


def _text(region: RegionReport) -> str:
    bound_s, seconds = region.bound_s or 0.0, _seconds(region)
    return (
        f"{region.label} by {region.backend} {seconds * 1e6:.0f} us, {bound_s / seconds:.0%}"
        f"{f' of {region.limit}' if region.limit else ''}"
    )


def main() -> None:
    arguments = model_options(__doc__).parse_args()
    models = chosen_models(arguments.work, arguments.models)
    rows = [row(model, arguments.work) for model in models]
    print(*rows, sep="\n")
    write_section(arguments.output, "roofline", _document(rows, arguments))


def _document(rows: list[str], arguments: argparse.Namespace) -> str:
    return (
        f"## What remains to the roofline\n\n`python -m benchmarks.roofline` after "
        f"`python -m benchmarks.models --threads {arguments.threads}` on {machine()}.\n"
        "Regions as they were timed inside the executable that ships; the roofline is what no direct\n"
        f"algorithm can beat at the machine's peaks. The {REGIONS_SHOWN} regions of each model that "
        "lose most.\n\n"
        "| model | regions ms | roofline ms | reached | where it is lost |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


if __name__ == "__main__":
    main()
