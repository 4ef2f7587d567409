"""Sections of the page about the regions of a plan: backends, timeline, table, roofline."""

from collections.abc import Mapping, Sequence

from collage.report.data import FunctionReport, PeakRates, RegionReport
from collage.report.drawing import Mark, interval
from collage.report.formatting import duration, node_ranges, op_counts, precision_text
from collage.report.page_elements import badge, escaped, meter, table
from collage.report.roofline import draw_roofline, reached

TIMELINE_WIDTH, TIMELINE_ROW = 1000.0, 34.0


def backend_table(regions: Sequence[RegionReport], marks: Mapping[str, Mark]) -> str:
    """Sum the regions of every backend."""
    totals = {
        name: sum(region.predicted_s or 0.0 for region in regions if region.backend == name)
        for name in sorted({region.backend for region in regions})
    }
    everything = sum(totals.values()) or 1.0
    rows = []
    for name, seconds in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        own = [region for region in regions if region.backend == name]
        rows.append(
            f'<tr><td>{badge(name, marks)}</td><td class="n">{len(own)}</td>'
            f'<td class="n">{sum(len(region.nodes) for region in own)}</td>'
            f'<td class="n">{duration(seconds)}</td><td class="n">{seconds / everything:.0%}</td>'
            f"{meter(seconds, everything, False)}</tr>"
        )
    return table(
        ("backend", "regions", "nodes", "predicted", "share", ""), rows, (1, 2, 3, 4), wide=True
    )


def timeline(function: FunctionReport, marks: Mapping[str, Mark]) -> str:
    """Draw the regions in order of execution, with widths in proportion to time."""
    regions = function.regions
    rows = [("predicted", [region.predicted_s or 0.0 for region in regions])]
    if any(region.measured_s is not None for region in regions):
        rows.append(("measured", [region.measured_s or 0.0 for region in regions]))
    longest = max((sum(seconds) for _, seconds in rows), default=0.0)
    if not longest:
        return ""
    drawn = []
    for line, (name, seconds) in enumerate(rows):
        top = line * TIMELINE_ROW
        drawn.append(f'<text x="0" y="{top + 18:g}">{name}</text>')
        x = 80.0
        for number, (region, length) in enumerate(zip(regions, seconds, strict=True)):
            width = length / longest * (TIMELINE_WIDTH - 160)
            drawn.append(_segment(region, number, (x, top, width), duration(length), marks=marks))
            x += width
        drawn.append(f'<text class="small" x="{x + 6:.1f}" y="{top + 18:g}">'
                     f"{duration(sum(seconds))}</text>")  # fmt: skip
    height = len(rows) * TIMELINE_ROW
    return (
        "<h3>Timeline</h3>\n<p class=soft>Every region as wide as its time, in order of execution."
        f"{_sums(function)}</p>\n"
        f'<svg viewBox="0 0 {TIMELINE_WIDTH:g} {height:g}" width="100%" role="img" '
        f'aria-label="Predicted and measured time of every region">{"".join(drawn)}</svg>\n'
    )


def _segment(
    region: RegionReport,
    number: int,
    place: tuple[float, float, float],
    seconds: str,
    *,
    marks: Mapping[str, Mark],
) -> str:
    x, top, width = place
    if width < 0.05:
        return ""
    colour, letter = marks[region.backend]
    title = f"{region.backend}: {op_counts(region.ops, 3)}, {seconds}"
    shape = (
        f'<rect class="segment k{colour}" data-region="{number}" x="{x:.2f}" y="{top:g}" '
        f'width="{width:.2f}" height="26"><title>{escaped(title)}</title></rect>'
    )
    if width < 14:
        return shape
    middle = f'x="{x + width / 2:.2f}" y="{top + 18:g}" pointer-events="none"'
    return f'{shape}<text class="letter" {middle}>{escaped(letter)}</text>'


def _sums(function: FunctionReport) -> str:
    """Compare the sum of the in-context kernel times with one complete call."""
    kernels_s = [region.measured_s for region in function.regions if region.measured_s is not None]
    call_s = next((plan.measured_s for plan in function.plans if plan.chosen), None)
    if not kernels_s or call_s is None:
        return ""
    return f" The kernels sum to {duration(sum(kernels_s))}; one complete call takes {duration(call_s)}."


def region_table(regions: Sequence[RegionReport], marks: Mapping[str, Mark]) -> str:
    """List the regions with their costs; empty columns are omitted."""
    columns: list[tuple[str, list[str]]] = []
    if any(region.alone_s is not None for region in regions):
        columns.append(("isolated", [duration(region.alone_s) for region in regions]))
    columns += [
        ("predicted", [duration(region.predicted_s) for region in regions]),
        ("95 % interval", [interval(region.low_s, region.high_s) for region in regions]),
    ]
    if any(region.measured_s is not None for region in regions):
        columns += [
            ("measured in context", [duration(region.measured_s) for region in regions]),
            (
                "deviation",
                [_difference(region.predicted_s, region.measured_s) for region in regions],
            ),
        ]
    if any(region.precision for region in regions):
        texts = [precision_text(region.precision, region.error) for region in regions]
        columns.append(("precision", [escaped(text) for text in texts]))
    if any(region.bound_s is not None for region in regions):
        columns += [
            ("lower bound", [duration(region.bound_s) for region in regions]),
            ("limit", [escaped(region.limit) for region in regions]),
            ("reached", [_percent(reached(region)) for region in regions]),
        ]
    rows = []
    for number, region in enumerate(regions):
        cells = "".join(f'<td class="n">{texts[number]}</td>' for _, texts in columns)
        rows.append(
            f'<tr data-region="{number}" tabindex="0"><td>{badge(region.backend, marks)}</td>'
            f'<td class="long">{escaped(op_counts(region.ops))}</td>'
            f'<td class="long">{node_ranges(region.nodes)}</td>{cells}</tr>'
        )
    header = ("backend", "operators", "nodes", *(name for name, _ in columns))
    return f"<h3>Regions</h3>\n{_column_help(regions)}{table(header, rows, range(3, len(header)))}"


def _column_help(regions: Sequence[RegionReport]) -> str:
    """Explain the columns of costs."""
    if all(region.alone_s is None for region in regions):
        return ""
    return (
        "<p class=soft>Isolated: measured alone, with cold caches. Predicted: the isolated cost, corrected "
        "by in-context costs of this kernel or of kernels of the same kind.</p>\n"
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _difference(predicted_s: float | None, measured_s: float | None) -> str:
    if not predicted_s or measured_s is None:
        return ""
    return f"{measured_s / predicted_s - 1:+.0%}"


def roofline(
    regions: Sequence[RegionReport], peaks: PeakRates | None, marks: Mapping[str, Mark]
) -> str:
    """Draw the roofline; "" without measured peaks."""
    drawn = draw_roofline(regions, peaks, marks)
    if not drawn or peaks is None:
        return ""
    return (
        f"<h3>Roofline</h3>\n<p class=soft>The roof: {peaks.flops_per_s / 1e9:.0f} GFLOP/s and "
        f"{peaks.bytes_per_s / 1e9:.0f} GB/s, the highest rates of a probe or these kernels; "
        f"dashed: memory, {peaks.memory_bytes_per_s / 1e9:.0f} GB/s. It bounds direct algorithms; "
        f"algorithms with fewer FLOP, such as Winograd's, may exceed it.</p>\n{drawn}"
    )
