"""Explanations as aligned text for the terminal."""

from collections.abc import Sequence

from collage.report.data import Alternative, RegionReport
from collage.report.explanation import Difference, NodeExplanation, Overview, Totals, sum_s
from collage.report.formatting import (
    aligned_table,
    duration,
    node_ranges,
    op_counts,
    precision_text,
    printable,
)
from collage.report.summary_text import optimality_text

REGION_HEADER = (
    "region",
    "backend",
    "nodes",
    "predicted",
    "measured",
    "bound",
    "limit",
    "operators",
)


def overview_text(plan: Overview) -> str:
    """Format the totals and one line per region."""
    rows = [
        (str(number), *_region_cells(region), op_counts(region.ops))
        for number, (_, region) in enumerate(plan.regions)
    ]
    parts = [
        printable(plan.model),
        *map(_totals_text, plan.totals),
        aligned_table(REGION_HEADER, rows),
    ]
    parts += [
        f"{printable(name)}: {optimality_text(optimality)}"
        for name, optimality in plan.optimality.items()
    ]
    if plan.peaks:
        peaks = plan.peaks
        parts.append(
            f"bounds: {peaks.flops_per_s / 1e9:.0f} GFLOP/s and {peaks.bytes_per_s / 1e9:.0f} GB/s, the "
            f"highest rates reached here (memory: {peaks.memory_bytes_per_s / 1e9:.0f} GB/s); "
            "they hold for direct algorithms"
        )
    return "\n\n".join(parts)


def _totals_text(totals: Totals) -> str:
    return (
        f"{printable(totals.function)}: {totals.regions} regions of {totals.nodes} nodes; predicted "
        f"{duration(totals.predicted_s)}, kernels in context {duration(totals.kernels_s)}, one complete call "
        f"{duration(totals.latency_s)}, lower bound {duration(totals.bound_s)}"
    )


def _region_cells(region: RegionReport) -> tuple[str, ...]:
    return (
        f"{region.backend} {region.variant}".rstrip(),
        node_ranges(region.nodes),
        duration(region.predicted_s),
        duration(region.measured_s),
        duration(region.bound_s),
        region.limit,
    )


def node_text(explanation: NodeExplanation) -> str:
    """Format where a node runs, its alternatives, refusals and unmeasured candidates."""
    node, region = explanation.node, explanation.region
    parts = [
        f"node {node.index} {node.op} {node.name} -> {', '.join(node.types)}\n"
        f"region {explanation.region_number} of {explanation.function}: "
        f"nodes {node_ranges(region.nodes)} on {region.backend} {region.variant}".rstrip()
        + "".join(f", {text}" for text in [precision_text(region.precision, region.error)] if text)
        + f"\nisolated {duration(region.alone_s)}, "
        f"predicted {duration(region.predicted_s)} ({_interval(region.low_s, region.high_s)}), "
        f"measured in context {duration(region.measured_s)}, lower bound {duration(region.bound_s)}"
    ]
    if explanation.ranked:
        rows = [_ranked_row(candidate) for candidate in explanation.ranked]
        header = ("regret", "backend", "nodes", "cost", "95 % interval")
        parts.append(
            "measured, in order of regret: the extra cost of the best plan with the candidate\n"
            + aligned_table(header, rows)
        )
    parts += _reasons("refused", explanation.refused) + _reasons(
        "never measured", explanation.unmeasured
    )
    parts += [f"{name}: no candidate with this node" for name in explanation.absent]
    if explanation.rest:
        counts = [
            f"{count.count} {count.state.value} on {count.backend}" for count in explanation.rest
        ]
        parts.append(f"not listed: {', '.join(counts)}")
    return "\n\n".join(printable_lines(part) for part in parts)


def printable_lines(text: str) -> str:
    """Replace control characters except line ends."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _ranked_row(candidate: Alternative) -> tuple[str, ...]:
    regret = "chosen" if candidate.chosen else f"+{duration(candidate.regret_s)}"
    regret = "in no plan" if candidate.regret_s is None and not candidate.chosen else regret
    backend = f"{candidate.backend} {candidate.variant}".rstrip()
    cost = _interval(candidate.low_s, candidate.high_s)
    return regret, backend, node_ranges(candidate.nodes), duration(candidate.cost_s), cost


def _interval(low_s: float | None, high_s: float | None) -> str:
    return f"{duration(low_s)} to {duration(high_s)}"


def _reasons(title: str, candidates: Sequence[Alternative]) -> list[str]:
    if not candidates:
        return []
    rows = [
        (
            f"{candidate.backend} {candidate.variant}".rstrip(),
            node_ranges(candidate.nodes),
            candidate.reason,
        )
        for candidate in candidates
    ]
    return [f"{title}\n{aligned_table(('backend', 'nodes', 'reason'), rows)}"]


def diff_text(difference: Difference) -> str:
    """Format the totals of both plans and the regions that differ."""
    first, second = difference.first, difference.second
    totals = [
        (
            side,
            duration(function.predicted_s),
            duration(function.kernels_s),
            duration(function.latency_s),
            str(function.regions),
            function.function,
        )
        for side, functions in (("A", first), ("B", second))
        for function in functions
    ]
    header = ("plan", "predicted", "kernels", "full call", "regions", "function")
    changes = [
        (side, *_region_cells(region)[:4], op_counts(region.ops))
        for change in difference.changes
        for side, regions in (("A", change.first), ("B", change.second))
        for region in regions
    ]
    parts = [aligned_table(header, totals), f"{difference.same} regions are the same"]
    if changes:
        columns = ("plan", "backend", "nodes", "predicted", "measured", "operators")
        parts.append(aligned_table(columns, changes))
        parts.append(
            f"where they differ, measured: A {_measured(difference, True)}, B {_measured(difference, False)}"
        )
    return "\n\n".join(printable_lines(part) for part in parts)


def _measured(difference: Difference, first: bool) -> str:
    regions = (
        region
        for change in difference.changes
        for region in (change.first if first else change.second)
    )
    return duration(sum_s(region.measured_s for region in regions))
