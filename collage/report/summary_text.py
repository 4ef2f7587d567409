"""The summary of a compile as aligned text for the terminal."""

from collage.report.formatting import aligned_table, duration, printable, size
from collage.report.nan_treatment import nan_text
from collage.report.summary import (
    FunctionSummary,
    Optimality,
    OtherShapesResult,
    Summary,
    TuningFacts,
)

STEADY_SPEED_CHANGE = 0.03
"""Relative change of machine speed below which the summary does not mention it."""


def format_summary(summary: Summary) -> str:
    """Format latencies, the plan by backend, the gate and the path of the bundle."""
    parts = [
        *(_latency_table(summary, function) for function in summary.functions),
        _plan_table(summary),
    ]
    gate = "passed" if summary.gate.passed else "not passed"
    counts = summary.candidates
    facts = [
        ("gate", f"{gate}: {printable(summary.gate.reason)}" if summary.gate.reason else gate),
        *_verdict_facts(summary),
        ("candidates", f"{counts.enumerated} found, {counts.unique} different, "
         f"{counts.measured} measured, {counts.cached} cached, {counts.invalid} invalid"),
        *_optimality_facts(summary),
        *_precision_facts(summary),
        *([("NaN", nan)] if (nan := nan_text(summary.plan)) else []),
        *([("tuning", tuning)] if (tuning := tuning_text(summary.tuning)) else []),
        *_shape_facts(summary.other_shapes),
        ("bundle", printable(summary.bundle)),
        *_speed_facts(summary),
        *(("note", printable(note)) for note in summary.notes),
    ]  # fmt: skip
    parts.append("\n".join(f"{name:<12}{text}" for name, text in facts))
    return "\n\n".join(parts)


def _verdict_facts(summary: Summary) -> list[tuple[str, str]]:
    """Return the verdict of each function; nothing for a single function."""
    if len(summary.functions) == 1:
        return []
    return [
        ("", f"{printable(function.function)}: {function.verdict}")
        for function in summary.functions
    ]


def _speed_facts(summary: Summary) -> list[tuple[str, str]]:
    several = len(summary.functions) > 1
    return [
        ("speed", f"{printable(function.function)}: {change}" if several else change)
        for function in summary.functions
        if (change := speed_text(function.pace))
    ]


def _optimality_facts(summary: Summary) -> list[tuple[str, str]]:
    several = len(summary.functions) > 1
    return [
        ("search", f"{printable(function.function)}: {text}" if several else text)
        for function in summary.functions
        if (text := optimality_text(function.optimality))
    ]


def optimality_text(optimality: Optimality | None) -> str:
    """Say what the search proves; "" without a measured plan."""
    if optimality is None:
        return ""
    if optimality.proven or not optimality.plan_s:
        return "proven: no plan of these candidates has a lower sum of costs"
    possible = 1 - optimality.bound_s / optimality.plan_s
    return (
        f"not proven: the bounds of unmeasured candidates allow {duration(optimality.bound_s)}, "
        f"{possible:.0%} below the best sum of costs"
    )


def _precision_facts(summary: Summary) -> list[tuple[str, str]]:
    result = summary.precision
    if result is None:
        return []
    worst = max((error for error in result.errors.values() if error), default=0.0)
    text = (
        f"{result.reduced_regions} regions below fp32 precision, error {worst:.2g} of {result.tolerance:g} "
        f"allowed, on {result.trials} inputs; {len(result.rejected)} plans exceed it"
    )
    exempt = [f"{printable(name)}: {printable(reason)}" for name, reason in result.excused.items()]
    notes = [
        *(printable(note) for note in result.notes),
        *(f"excluded: {reason}" for reason in exempt),
    ]
    return [("precision", text), *(("", note) for note in notes)]


def tuning_text(tuning: TuningFacts) -> str:
    """Summarise the trials and their saving; "" without trials."""
    if not tuning.trials and not tuning.tuned:
        return ""
    trials = f"{tuning.trials} trials on {tuning.kernels} kernels"
    if not tuning.tuned:
        return f"{trials}, none fast enough to be a candidate"
    effect = f"save {duration(tuning.saved_s)}" if tuning.saved_s else "change no plan"
    return f"{trials}, {tuning.tuned} tuned candidates {effect} (predicted)"


def speed_text(speed_factor: float) -> str:
    """Summarise the change of machine speed since the measurement of costs; "" if it is small.

    Args:
        speed_factor: 1.2 means that calls took 20 % longer in the final comparison.
    """
    if abs(speed_factor - 1) < STEADY_SPEED_CHANGE:
        return ""
    change = (
        f"{speed_factor - 1:.0%} longer"
        if speed_factor > 1
        else f"{1 - speed_factor:.0%} less time"
    )
    return (
        f"calls took {change} in the final comparison than while costs were measured; "
        "predictions are scaled by this factor"
    )


def _shape_facts(shapes: OtherShapesResult) -> list[tuple[str, str]]:
    """Return how other shapes are answered, and the cost of keeping the bundle open."""
    facts = []
    if shapes.padding:
        facts.append(("padding", ", ".join(map(printable, shapes.padding))))
    if shapes.fallbacks:
        frameworks = " and ".join(sorted(set(shapes.fallbacks.values())))
        facts.append(("fallback", f"other shapes: the original model in {frameworks}"))
    if footprint := shapes.footprint:
        times = footprint.rss_bytes / footprint.onnxruntime_rss_bytes
        facts.append(
            ("footprint", f"{size(footprint.size_bytes)} on disk, {duration(footprint.load_s)} to load, "
             f"{size(footprint.rss_bytes)} of memory; ONNX Runtime {size(footprint.onnxruntime_size_bytes)}, "
             f"{duration(footprint.onnxruntime_load_s)}, {size(footprint.onnxruntime_rss_bytes)} "
             f"({times:.2f}x its memory)")
        )  # fmt: skip
    return facts


def _latency_table(summary: Summary, function: FunctionSummary) -> str:
    latency = function.latency
    rows = [("collage", duration(latency.collage_s), _times(function.speedup_over_best))]
    for name, seconds in sorted(
        latency.baselines.items(), key=lambda item: (item[1] is None, item[1] or 0, item[0])
    ):
        reason = printable(latency.baseline_reasons.get(name, "")) if seconds is None else ""
        rows.append((printable(name), duration(seconds), reason))
    several = len(summary.functions) > 1
    title = f"latency of {printable(function.function)}" if several else "latency"
    return aligned_table((title, "median", ""), rows, right=(1,))


def _times(speedup: float | None) -> str:
    return f"{speedup:.2f}x the best baseline" if speedup is not None else ""


def _plan_table(summary: Summary) -> str:
    totals: dict[str, list[float]] = {}
    for region in summary.plan:
        nodes, regions, seconds = totals.setdefault(region.backend, [0, 0, 0.0])
        totals[region.backend] = [
            nodes + len(region.nodes),
            regions + 1,
            seconds + (region.cost_s or 0),
        ]
    total = sum(seconds for _, _, seconds in totals.values()) or 1.0
    rows = [
        (
            printable(name),
            f"{regions:.0f}",
            f"{nodes:.0f}",
            duration(seconds),
            f"{seconds / total:.0%}",
        )
        for name, (nodes, regions, seconds) in sorted(
            totals.items(), key=lambda item: (-item[1][2], item[0])
        )
    ]
    header = ("plan", "regions", "nodes", "predicted", "share")
    return aligned_table(header, rows, right=(1, 2, 3, 4))
