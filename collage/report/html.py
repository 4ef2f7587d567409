"""The report of a compile as one HTML file without outside references.

Tables are plain HTML and need no script; the graph is drawn by `page.js` from a data element. Names
come from untrusted models: text is escaped by `_text`, and the data element holds no `<`. A policy in
the page forbids loading anything. The same data gives the same bytes.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from collage.report.data import (
    Alternative,
    FunctionReport,
    InvalidCandidate,
    MeasuredPlan,
    PeakRates,
    PrecisionResult,
    RegionReport,
    ReportData,
    Summary,
    UnmeasuredCandidate,
)
from collage.report.drawing import Mark, backend_marks, draw_function, interval
from collage.report.roofline import draw_roofline, reached
from collage.report.terminal import tuning_text
from collage.report.words import duration, node_ranges, op_counts, precision_text

ROWS_SHOWN = 50
TIMELINE_WIDTH, TIMELINE_ROW = 1000.0, 34.0


def render_html(data: ReportData) -> str:
    """Return the page as text; write it as UTF-8."""
    marks = backend_marks(_backends(data))
    style, script = _asset("page.css"), _asset("page.js")
    drawings = [draw_function(function, marks) for function in data.functions]
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_sha256(script)}'"
    body = "".join(
        (
            _heading(data),
            _latencies(data.summary),
            _precision(data.summary.precision),
            *(
                _function(function, number, marks, data)
                for number, function in enumerate(data.functions)
            ),
            _environment(data),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_text(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(data.model)}: Collage report</title>\n<style>\n{style}</style>\n</head>\n"
        f'<body>\n{body}<script type="application/json" id="data">{_json(drawings)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return (files("collage.report") / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(text: object) -> str:
    """Escape for HTML; characters that no XML or HTML may hold become the replacement character."""
    clean = "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in str(text)
    )
    return escape(clean)


def _backends(data: ReportData) -> Iterable[str]:
    yield from data.summary.backends
    for function in data.functions:
        for region in function.regions:
            yield region.backend
            yield from (other.backend for other in region.alternatives)
        yield from (found.backend for found in function.invalid)
        yield from (found.backend for found in function.unmeasured)


def _badge(backend: str, marks: Mapping[str, Mark]) -> str:
    colour, letter = marks[backend]
    return (
        f'<span class="badge k{colour}" aria-hidden="true">{_text(letter)}</span>{_text(backend)}'
    )


def _table(
    header: Sequence[str], rows: Iterable[str], numbers: Sequence[int] = (), wide: bool = False
) -> str:
    cells = "".join(
        f'<th scope="col"{" class=n" if place in numbers else ""}>{_text(name)}</th>'
        for place, name in enumerate(header)
    )
    kind = "scroll wide" if wide else "scroll"
    return (
        f'<div class="{kind}" tabindex="0"><table><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>\n"
    )


def _heading(data: ReportData) -> str:
    summary = data.summary
    gate = summary.gate
    verdict = '<b class="good">passed</b>' if gate.passed else '<b class="bad">not passed</b>'
    speedup = summary.speedup_over_best
    facts = [
        ("median latency", f"<b>{duration(summary.latency.collage_s)}</b>"),
        ("over the best baseline", f"<b>{speedup:.2f}×</b>" if speedup else "<b>–</b>"),
        ("predicted", f"<b>{duration(summary.predicted_s)}</b>"),
        ("threads", f"<b>{summary.threads}</b>"),
        ("gate", verdict),
        ("candidates measured", f"<b>{_share(summary)}</b>"),
    ]
    cards = "".join(f'<div class="fact">{value}<span class="soft">{name}</span></div>'
                    for name, value in facts)  # fmt: skip
    reason = f"<p>Gate: {_text(gate.reason)}</p>\n" if gate.reason else ""
    notes = "".join(f"<li>{_text(note)}</li>" for note in data.notes)
    noted = f"<h3>Notes from the import</h3>\n<ul>{notes}</ul>\n" if notes else ""
    return (
        f"<header><h1>{_text(data.model)}</h1>\n"
        f'<p class="soft">Collage report, model sha256 <code>{_text(summary.model_sha256)}</code></p>'
        f'\n<div class="facts">{cards}</div>\n{reason}{noted}</header>\n<main>\n'
    )


def _share(summary: Summary) -> str:
    counts = summary.candidates
    return f"{counts.measured + counts.cached} of {counts.unique}"


def _precision(found: PrecisionResult | None) -> str:
    """Show the errors of what ships and of frameworks in less than float32, and why it came so."""
    if found is None:
        return ""
    errors = [(f"output {name}", error, "") for name, error in found.errors.items()]
    errors += [
        (name, error, f"does not count: {found.excused[name]}" if name in found.excused else "")
        for name, error in found.baselines.items()
    ]
    rows = [
        f'<tr><td class=long>{_text(name)}</td><td class="n">{_error(error)}</td>'
        f"<td class=long>{_text(note)}</td></tr>"
        for name, error, note in errors
    ]
    notes = "".join(f"<li>{_text(note)}</li>" for note in found.notes)
    listed = f"<ul>{notes}</ul>\n" if notes else ""
    return (
        f"<h3>Precision</h3>\n<p>{found.reduced_regions} regions compute in less than float32. Errors are "
        "the largest deviation as a share of the output's scale (1 for probabilities), over "
        f"{found.trials} sets of inputs; {found.tolerance:g} is allowed, and {len(found.rejected)} plans "
        f"were beyond it.</p>\n{_table(('what', 'error', ''), rows, (1,))}{listed}"
    )


def _error(value: float | None) -> str:
    return "cannot be compared" if value is None else f"{value:.2g}"


def _latencies(summary: Summary) -> str:
    latency = summary.latency
    baselines = [
        (name, seconds, latency.baseline_reasons.get(name, ""))
        for name, seconds in latency.baselines.items()
    ]
    baselines.sort(key=lambda entry: (entry[1] is None, entry[1] or 0.0, entry[0]))
    entries = [("collage", latency.collage_s, ""), *baselines]
    most = max((seconds for _, seconds, _ in entries if seconds), default=1.0)
    rows = [
        f"<tr{' class=chosen' if name == 'collage' else ''}><td>{_text(name)}</td>"
        f'<td class="n">{duration(seconds)}</td>{_meter(seconds, most, name == "collage", reason)}</tr>'
        for name, seconds, reason in entries
    ]
    return "<h2>Latency</h2>\n" + _table(("what", "median", ""), rows, (1,), wide=True)


def _meter(seconds: float | None, most: float, own: bool, reason: str = "") -> str:
    if seconds is None:
        return f'<td class="soft long">{_text(reason)}</td>'
    kind = "meter own" if own else "meter"
    return (
        f'<td class="meters"><span class="{kind}" style="width:{100 * seconds / most:.1f}%">'
        "</span></td>"
    )


def _function(
    function: FunctionReport, number: int, marks: Mapping[str, Mark], data: ReportData
) -> str:
    several = len(data.functions) > 1
    title = f"Function {_text(function.name)}" if several else "Plan"
    signature = "; ".join(
        f"{what}: {', '.join(f'{_text(tensor.name)} {_text(tensor.type)}' for tensor in tensors)}"
        for what, tensors in (("inputs", function.inputs), ("outputs", function.outputs))
        if tensors
    )
    return (
        f'<section data-function="{number}"><h2>{title}</h2>\n<p class="soft">{signature}</p>\n'
        f"{_backend_table(function.regions, marks)}{_graph(function, marks)}"
        f"{_timeline(function, marks)}{_region_table(function.regions, marks)}"
        f"{_roofline(function.regions, data.peaks, marks)}{_alternatives(function.regions, marks)}"
        f"{_plans(function.plans)}{_invalid(function.invalid, marks)}"
        f"{_unmeasured(function.unmeasured, marks)}</section>\n"
    )


def _backend_table(regions: Sequence[RegionReport], marks: Mapping[str, Mark]) -> str:
    totals = {
        name: sum(region.predicted_s or 0.0 for region in regions if region.backend == name)
        for name in sorted({region.backend for region in regions})
    }
    everything = sum(totals.values()) or 1.0
    rows = []
    for name, seconds in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        own = [region for region in regions if region.backend == name]
        rows.append(
            f'<tr><td>{_badge(name, marks)}</td><td class="n">{len(own)}</td>'
            f'<td class="n">{sum(len(region.nodes) for region in own)}</td>'
            f'<td class="n">{duration(seconds)}</td><td class="n">{seconds / everything:.0%}</td>'
            f"{_meter(seconds, everything, False)}</tr>"
        )
    return _table(
        ("backend", "regions", "nodes", "predicted", "share", ""), rows, (1, 2, 3, 4), wide=True
    )


def _graph(function: FunctionReport, marks: Mapping[str, Mark]) -> str:
    used = sorted({region.backend for region in function.regions})
    legend = "".join(f"<span>{_badge(name, marks)}</span>" for name in used)
    buttons = "".join(
        f'<button type="button" data-{kind}="{value}"{pressed}>{label}</button>'
        for kind, value, label, pressed in (
            ("view", "regions", "Regions", ' aria-pressed="false"'),
            ("view", "nodes", "Nodes", ' aria-pressed="false"'),
            ("zoom", "1.25", "Zoom in", ""),
            ("zoom", "0.8", "Zoom out", ""),
            ("zoom", "fit", "Fit", ""),
        )
    )
    return (
        f'<h3>Graph</h3>\n<div class="tools">{buttons}<span class="soft">Drag or scroll to move, '
        "Ctrl and wheel to zoom, arrow keys and Enter to choose.</span></div>\n"
        f'<div class="legend">{legend}</div>\n<div class="graph"><div class="canvas"></div>'
        '<div class="details" tabindex="0" aria-live="polite"><p class="soft">Choose a region to '
        "see what else could have run there, at what cost.</p></div></div>\n"
    )


def _roofline(
    regions: Sequence[RegionReport], peaks: PeakRates | None, marks: Mapping[str, Mark]
) -> str:
    drawn = draw_roofline(regions, peaks, marks)
    if not drawn or peaks is None:
        return ""
    return (
        f"<h3>Roofline</h3>\n<p class=soft>The roof: {peaks.flops_per_s / 1e9:.0f} GFLOP/s and "
        f"{peaks.bytes_per_s / 1e9:.0f} GB/s, the highest seen on this machine, by a probe or these kernels; "
        f"dashed: memory, {peaks.memory_bytes_per_s / 1e9:.0f} GB/s. It bounds direct algorithms; one "
        f"that needs fewer FLOP, such as Winograd's, may pass it.</p>\n{drawn}"
    )


def _alternatives(regions: Sequence[RegionReport], marks: Mapping[str, Mark]) -> str:
    """List what else could have run in every region, without a script."""
    parts = []
    for number, region in enumerate(regions):
        others = [one for one in region.alternatives if not one.chosen]
        rows = [
            f"<tr><td>{_badge(one.backend, marks)} {_text(one.variant)}</td>"
            f"<td class=long>{node_ranges(one.nodes)}</td>"
            f'<td class="n">{duration(one.cost_s)}</td>'
            f'<td class="n">{interval(one.low_s, one.high_s)}</td>'
            f'<td class="n">{_regret(one)}</td><td class="long">{_text(one.reason)}</td></tr>'
            for one in others
        ]
        if rows:
            header = ("backend", "nodes", "cost", "95 % interval", "best plan with it", "reason")
            parts.append(
                f"<details><summary>{_badge(region.backend, marks)} region {number}: nodes "
                f'{node_ranges(region.nodes)} <span class="soft">({len(rows)})</span></summary>'
                f"{_table(header, rows, (2, 3, 4))}</details>\n"
            )
    return f"<h3>Alternatives</h3>\n{''.join(parts)}" if parts else ""


def _regret(one: Alternative) -> str:
    return f"{duration(one.regret_s)} slower" if one.regret_s is not None else ""


def _sums(function: FunctionReport) -> str:
    """Compare the sum of the kernels inside the executable with one whole call."""
    known = [one.measured_s for one in function.regions if one.measured_s is not None]
    whole = next((plan.measured_s for plan in function.plans if plan.chosen), None)
    if not known or whole is None:
        return ""
    return f" The kernels sum to {duration(sum(known))}; one whole call takes {duration(whole)}."


def _timeline(function: FunctionReport, marks: Mapping[str, Mark]) -> str:
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
        f'width="{width:.2f}" height="26"><title>{_text(title)}</title></rect>'
    )
    if width < 14:
        return shape
    middle = f'x="{left + width / 2:.2f}" y="{top + 18:g}" pointer-events="none"'
    return f'{shape}<text class="letter" {middle}>{_text(letter)}</text>'


def _region_table(regions: Sequence[RegionReport], marks: Mapping[str, Mark]) -> str:
    columns: list[tuple[str, list[str]]] = [
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
        columns.append(("precision", [_text(text) for text in texts]))
    if any(region.bound_s is not None for region in regions):
        columns += [
            ("lower bound", [duration(region.bound_s) for region in regions]),
            ("limit", [_text(region.limit) for region in regions]),
            ("reached", [_percent(reached(region)) for region in regions]),
        ]
    rows = []
    for number, region in enumerate(regions):
        cells = "".join(f'<td class="n">{texts[number]}</td>' for _, texts in columns)
        rows.append(
            f'<tr data-region="{number}" tabindex="0"><td>{_badge(region.backend, marks)}</td>'
            f'<td class="long">{_text(op_counts(region.ops))}</td>'
            f'<td class="long">{node_ranges(region.nodes)}</td>{cells}</tr>'
        )
    header = ("backend", "operators", "nodes", *(name for name, _ in columns))
    return f"<h3>Regions</h3>\n{_table(header, rows, range(3, len(header)))}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _difference(predicted_s: float | None, measured_s: float | None) -> str:
    if not predicted_s or measured_s is None:
        return ""
    return f"{measured_s / predicted_s - 1:+.0%}"


def _plans(plans: Sequence[MeasuredPlan]) -> str:
    if not plans:
        return ""
    ordered = sorted(
        plans, key=lambda plan: (plan.measured_s is None, plan.measured_s or 0.0, plan.name)
    )
    most = max((plan.measured_s for plan in plans if plan.measured_s), default=1.0)
    rows = []
    for plan in ordered:
        name = f"{plan.name} (original framework)" if plan.baseline else plan.name
        rows.append(
            f"<tr{' class=chosen' if plan.chosen else ''}><td class=long>{_text(name)}"
            f"{', shipped' if plan.chosen else ''}</td>"
            f'<td class="n">{duration(plan.predicted_s)}</td>'
            f'<td class="n">{duration(plan.measured_s)}</td>'
            f'<td class="n">{interval(plan.low_s, plan.high_s)}</td>'
            f"{_meter(plan.measured_s, most, plan.chosen, plan.reason)}</tr>"
        )
    header = ("plan", "predicted", "measured", "95 % interval", "")
    return "<h3>Measured end to end, interleaved</h3>\n" + _table(
        header, rows, (1, 2, 3), wide=True
    )


def _invalid(found: Sequence[InvalidCandidate], marks: Mapping[str, Mark]) -> str:
    groups: dict[tuple[str, str], list[InvalidCandidate]] = {}
    for candidate in found:
        groups.setdefault((candidate.backend, candidate.reason), []).append(candidate)
    if not groups:
        return ""
    parts = ["<h3>Invalid candidates</h3>\n"]
    for (backend, reason), members in sorted(
        groups.items(), key=lambda item: (-len(item[1]), item[0])
    ):
        rows = [
            f"<tr><td class=long>{node_ranges(one.nodes)}</td>"
            f"<td class=long>{_text(op_counts(one.ops))}</td><td>{_text(one.variant)}</td></tr>"
            for one in sorted(members, key=lambda one: (one.nodes, one.variant))[:ROWS_SHOWN]
        ]
        parts.append(
            f"<details><summary>{_badge(backend, marks)}: {_text(reason)} "
            f'<span class="soft">({len(members)})</span></summary>'
            f"{_table(('nodes', 'operators', 'variant'), rows)}{_rest(len(members))}</details>\n"
        )
    return "".join(parts)


def _unmeasured(found: Sequence[UnmeasuredCandidate], marks: Mapping[str, Mark]) -> str:
    groups: dict[str, list[UnmeasuredCandidate]] = {}
    for candidate in found:
        groups.setdefault(candidate.reason, []).append(candidate)
    if not groups:
        return ""
    parts = [f"<h3>Never measured ({len(found)})</h3>\n"]
    for reason, members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        ordered = sorted(members, key=lambda one: (one.nodes, one.backend, one.variant))
        rows = [
            f"<tr><td>{_badge(one.backend, marks)} {_text(one.variant)}</td>"
            f'<td class=long>{node_ranges(one.nodes)}</td><td class="n">{duration(one.bound_s)}</td></tr>'
            for one in ordered[:ROWS_SHOWN]
        ]
        parts.append(
            f'<details><summary>{_text(reason)} <span class="soft">({len(members)})</span></summary>'
            f"{_table(('backend', 'nodes', 'lower bound'), rows, (2,))}{_rest(len(members))}"
            "</details>\n"
        )
    return "".join(parts)


def _rest(count: int) -> str:
    return f'<p class="soft">and {count - ROWS_SHOWN} more</p>' if count > ROWS_SHOWN else ""


def _environment(data: ReportData) -> str:
    summary = data.summary
    counts = summary.candidates
    stages = summary.seconds.model_dump(by_alias=True)
    facts = [
        *sorted(data.environment.items()),
        ("threads", str(summary.threads)),
        ("backends", ", ".join(summary.backends)),
        ("candidates", f"{counts.enumerated} found, {counts.unique} different, {counts.measured} "
         f"measured, {counts.cached} cached, {counts.invalid} invalid"),
        ("tuning", tuning_text(summary.tuning) or "nothing that could change the plan"),
        ("time of the stages", ", ".join(f"{name} {duration(of)}" for name, of in stages.items())),
        ("bundle", summary.bundle),
    ]  # fmt: skip
    rows = [
        f"<tr><td>{_text(name)}</td><td class=long>{_text(value)}</td></tr>"
        for name, value in facts
    ]
    return f"<h2>Environment</h2>\n{_table(('fact', 'value'), rows, wide=True)}</main>\n"
