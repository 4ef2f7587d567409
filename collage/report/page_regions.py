"""The page's sections about the regions of a plan: what runs where, when, and how close to the roof."""

from collections.abc import Mapping, Sequence

from collage.report.data import FunctionReport, PeakRates, RegionReport
from collage.report.drawing import Mark, interval
from collage.report.formatting import duration, node_ranges, op_counts, precision_text
from collage.report.page_elements import badge, escaped, meter, table
from collage.report.roofline import draw_roofline, reached

TIMELINE_WIDTH, TIMELINE_ROW = 1000.0, 34.0


def backend_table(regions: Sequence[RegionReport], marks: Mapping[str, Mark]) -> str:
    """Sum up the regions of every backend."""
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
    """Draw the regions one after another, as wide as they take long."""
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
        left = 80.0
        for number, (region, length) in enumerate(zip(regions, seconds, strict=True)):
            width = length / longest * (TIMELINE_WIDTH - 160)
            drawn.append(_segment(region, number, (left, top, width), duration(length), marks))
            left += width
        drawn.append(f'<text class="small" x="{left + 6:.1f}" y="{top + 18:g}">'
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
    marks: Mapping[str, Mark],
) -> str:
    left, top, width = place
    if width < 0.05:
        return ""
    colour, letter = marks[region.backend]
    title = f"{region.backend}: {op_counts(region.ops, 3)}, {seconds}"
    shape = (
        f'<rect class="segment k{colour}" data-region="{number}" x="{left:.2f}" y="{top:g}" '
        f'width="{width:.2f}" height="26"><title>{escaped(title)}</title></rect>'
    )
    if width < 14:
        return shape
    middle = f'x="{left + width / 2:.2f}" y="{top + 18:g}" pointer-events="none"'
    return f'{shape}<text class="letter" {middle}>{escaped(letter)}</text>'


def _sums(function: FunctionReport) -> str:
    """Compare the sum of the kernels inside the executable with one whole call."""
    known = [one.measured_s for one in function.regions if one.measured_s is not None]
    whole = next((plan.measured_s for plan in function.plans if plan.chosen), None)
    if not known or whole is None:
        return ""
    return f" The kernels sum to {duration(sum(known))}; one whole call takes {duration(whole)}."


def region_table(regions: Sequence[RegionReport], marks: Mapping[str, Mark]) -> str:
    """List the regions with their costs; columns that no region has are left out."""
    columns: list[tuple[str, list[str]]] = []
    if any(region.alone_s is not None for region in regions):
        columns.append(("alone", [duration(region.alone_s) for region in regions]))
    columns += [
        ("predicted", [duration(region.predicted_s) for region in regions]),
        ("95 % interval", [interval(region.low_s, region.high_s) for region in regions]),
    ]
    if any(region.measured_s is not None for region in regions):
        columns += [
            ("measured in place", [duration(region.measured_s) for region in regions]),
            ("off by", [_difference(region.predicted_s, region.measured_s) for region in regions]),
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
    return f"<h3>Regions</h3>\n{_words(regions)}{table(header, rows, range(3, len(header)))}"


def _words(regions: Sequence[RegionReport]) -> str:
    """Say what the columns of costs are."""
    if all(region.alone_s is None for region in regions):
        return ""
    return (
        "<p class=soft>Alone: timed by itself, with cold caches. Predicted: that, corrected by what the "
        "kernel, or others of its kind, took inside executables.</p>\n"
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
    """Draw the regions under the machine's roof, where its peaks are known."""
    drawn = draw_roofline(regions, peaks, marks)
    if not drawn or peaks is None:
        return ""
    return (
        f"<h3>Roofline</h3>\n<p class=soft>The roof: {peaks.flops_per_s / 1e9:.0f} GFLOP/s and "
        f"{peaks.bytes_per_s / 1e9:.0f} GB/s, the highest seen on this machine, by a probe or these kernels; "
        f"dashed: memory, {peaks.memory_bytes_per_s / 1e9:.0f} GB/s. It bounds direct algorithms; one "
        f"that needs fewer FLOP, such as Winograd's, may pass it.</p>\n{drawn}"
    )
