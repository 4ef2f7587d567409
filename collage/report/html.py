"""The report of a compile as one HTML file without external references.

Tables are plain HTML and need no script; the graph is drawn by `page.js` from a data element. Names
come from untrusted models: `escaped` escapes text, and the data element holds no `<`. The page's content
security policy forbids all loading. The same data gives the same bytes.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib.resources import files

from collage.report.data import FunctionReport, ReportData
from collage.report.drawing import Mark, backend_marks, draw_function
from collage.report.formatting import duration
from collage.report.page_candidates import (
    alternatives,
    invalid_candidates,
    plan_table,
    unmeasured_candidates,
)
from collage.report.page_elements import badge, escaped, meter, table
from collage.report.page_regions import backend_table, region_table, roofline, timeline
from collage.report.summary import FunctionSummary, ModelFile, PrecisionResult, Summary
from collage.report.summary_text import optimality_text, speed_text, tuning_text


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
        f'<meta http-equiv="Content-Security-Policy" content="{escaped(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(data.model)}: Collage report</title>\n<style>\n{style}</style>\n</head>\n"
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


def _backends(data: ReportData) -> Iterable[str]:
    yield from data.summary.backends
    for function in data.functions:
        for region in function.regions:
            yield region.backend
            yield from (candidate.backend for candidate in region.alternatives)
        yield from (candidate.backend for candidate in function.invalid)
        yield from (candidate.backend for candidate in function.unmeasured)


def _heading(data: ReportData) -> str:
    summary = data.summary
    gate = summary.gate
    verdict = '<b class="good">passed</b>' if gate.passed else '<b class="bad">not passed</b>'
    speedup = summary.speedup_over_best
    several = len(summary.functions) > 1
    facts = [
        (f"{name}, {function.function}" if several else name, f"<b>{duration(seconds)}</b>")
        for function in summary.functions
        for name, seconds in (
            ("median latency", function.latency.collage_s), ("predicted", function.predicted_s),
        )
    ]  # fmt: skip
    facts[1:1] = [
        ("over the best baseline", f"<b>{speedup:.2f}×</b>" if speedup else "<b>–</b>"),
    ]
    facts += [
        ("threads", f"<b>{summary.threads}</b>"),
        ("gate", verdict),
        ("candidates measured", f"<b>{_share(summary)}</b>"),
    ]
    cards = "".join(f'<div class="fact">{value}<span class="soft">{escaped(name)}</span></div>'
                    for name, value in facts)  # fmt: skip
    reason = f"<p>Gate: {escaped(gate.reason)}</p>\n" if gate.reason else ""
    for function in summary.functions:
        if text := optimality_text(function.optimality):
            name = f"{function.function}, " if several else ""
            reason += f"<p>Search: {escaped(name + text)}</p>\n"
    notes = "".join(f"<li>{escaped(note)}</li>" for note in data.notes)
    notes_section = f"<h3>Notes from the import</h3>\n<ul>{notes}</ul>\n" if notes else ""
    models = "".join(
        f'<p class="soft">Collage report, {escaped(_model_name(model, summary))} sha256 '
        f"<code>{escaped(model.sha256)}</code></p>\n"
        for model in summary.models
    )
    return (
        f"<header><h1>{escaped(data.model)}</h1>\n{models}"
        f'<div class="facts">{cards}</div>\n{reason}{notes_section}</header>\n<main>\n'
    )


def _model_name(model: ModelFile, summary: Summary) -> str:
    return model.entry if len(summary.models) > 1 else "model"


def _share(summary: Summary) -> str:
    counts = summary.candidates
    return f"{counts.measured + counts.cached} of {counts.unique}"


def _precision(result: PrecisionResult | None) -> str:
    """Show the errors of the shipped plan and of reduced-precision frameworks, with notes."""
    if result is None:
        return ""
    errors = [(f"output {name}", error, "") for name, error in result.errors.items()]
    errors += [
        (name, error, f"excluded: {result.excused[name]}" if name in result.excused else "")
        for name, error in result.baselines.items()
    ]
    rows = [
        f'<tr><td class=long>{escaped(name)}</td><td class="n">{_error(error)}</td>'
        f"<td class=long>{escaped(note)}</td></tr>"
        for name, error, note in errors
    ]
    notes = "".join(f"<li>{escaped(note)}</li>" for note in result.notes)
    listed = f"<ul>{notes}</ul>\n" if notes else ""
    return (
        f"<h3>Precision</h3>\n<p>{result.reduced_regions} regions compute below float32 precision. Errors "
        "are the largest deviation relative to the output's scale (1 for probabilities), over "
        f"{result.trials} sets of inputs; {result.tolerance:g} is allowed, and {len(result.rejected)} plans "
        f"exceed it.</p>\n{table(('output or framework', 'error', ''), rows, (1,))}{listed}"
    )


def _error(value: float | None) -> str:
    return "cannot be compared" if value is None else f"{value:.2g}"


def _latencies(summary: Summary) -> str:
    several = len(summary.functions) > 1
    return "<h2>Latency</h2>\n" + "".join(
        _function_latencies(function, f"<h3>{escaped(function.function)}</h3>\n" if several else "")
        for function in summary.functions
    )


def _function_latencies(function: FunctionSummary, title: str) -> str:
    """Show median latencies, and the ratio to each framework with its interval."""
    latency = function.latency
    baselines = [
        (name, seconds, latency.baseline_reasons.get(name, ""))
        for name, seconds in latency.baselines.items()
    ]
    baselines.sort(key=lambda entry: (entry[1] is None, entry[1] or 0.0, entry[0]))
    entries = [("collage", latency.collage_s, ""), *baselines]
    slowest_s = max((seconds for _, seconds, _ in entries if seconds), default=1.0)
    rows = [
        f"<tr{' class=chosen' if name == 'collage' else ''}><td>{escaped(name)}</td>"
        f'<td class="n">{duration(seconds)}</td><td class="n">{_ratio(function, name)}</td>'
        f"{meter(seconds, slowest_s, name == 'collage', reason)}</tr>"
        for name, seconds, reason in entries
    ]
    header = ("", "median", "collage takes", "")
    proven = f"<p>The gate: {escaped(function.verdict)}. {escaped(function.reason)}</p>\n"
    return title + proven + table(header, rows, (1, 2), wide=True)


def _ratio(function: FunctionSummary, baseline: str) -> str:
    """Format the ratio to a framework with its interval."""
    interval = function.ratios.get(baseline)
    if interval is None:
        return ""
    low = "0" if interval.low is None else f"{interval.low:.3f}"
    high = "∞" if interval.high is None else f"{interval.high:.3f}"
    return f"{interval.ratio:.3f}× ({low} to {high})"


def _function(
    function: FunctionReport, number: int, marks: Mapping[str, Mark], data: ReportData
) -> str:
    several = len(data.functions) > 1
    title = f"Function {escaped(function.name)}" if several else "Plan"
    signature = "; ".join(
        f"{kind}: {', '.join(f'{escaped(tensor.name)} {escaped(tensor.type)}' for tensor in tensors)}"
        for kind, tensors in (("inputs", function.inputs), ("outputs", function.outputs))
        if tensors
    )
    return (
        f'<section data-function="{number}"><h2>{title}</h2>\n<p class="soft">{signature}</p>\n'
        f"{backend_table(function.regions, marks)}{_graph(function, marks)}"
        f"{timeline(function, marks)}{region_table(function.regions, marks)}"
        f"{roofline(function.regions, data.peaks, marks)}{alternatives(function.regions, marks)}"
        f"{plan_table(function.plans)}{invalid_candidates(function.invalid, marks)}"
        f"{unmeasured_candidates(function.unmeasured, marks)}</section>\n"
    )


def _graph(function: FunctionReport, marks: Mapping[str, Mark]) -> str:
    used = sorted({region.backend for region in function.regions})
    legend = "".join(f"<span>{badge(name, marks)}</span>" for name in used)
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
        "Ctrl and wheel to zoom, arrow keys and Enter to select.</span></div>\n"
        f'<div class="legend">{legend}</div>\n<div class="graph"><div class="canvas"></div>'
        '<div class="details" tabindex="0" aria-live="polite"><p class="soft">Select a region to '
        "see its alternatives and their costs.</p></div></div>\n"
    )


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
        *(
            (f"machine speed, {function.function}", speed_text(function.pace) or "steady")
            for function in summary.functions
        ),
        ("time of the stages", ", ".join(f"{name} {duration(seconds)}" for name, seconds in stages.items())),
        ("bundle", summary.bundle),
    ]  # fmt: skip
    rows = [
        f"<tr><td>{escaped(name)}</td><td class=long>{escaped(value)}</td></tr>"
        for name, value in facts
    ]
    return f"<h2>Environment</h2>\n{table(('fact', 'value'), rows, wide=True)}</main>\n"
