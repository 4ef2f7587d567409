"""The documents of `explanation` as aligned text for the terminal."""

from collections.abc import Iterable, Sequence

from collage.report.data import Alternative, RegionReport
from collage.report.explanation import Difference, NodeExplanation, Overview, Totals, sum_s
from collage.report.formatting import duration, node_ranges, op_counts, precision_text, printable

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


def overview_text(found: Overview) -> str:
    """Write the totals and one line per region."""
    rows = [
        (str(number), *_region_cells(region), op_counts(region.ops))
        for number, (_, region) in enumerate(found.regions)
    ]
    parts = [printable(found.model), *map(_totals_text, found.totals), _table(REGION_HEADER, rows)]
    if found.peaks:
        peaks = found.peaks
        parts.append(
            f"bounds: {peaks.flops_per_s / 1e9:.0f} GFLOP/s and {peaks.bytes_per_s / 1e9:.0f} GB/s, the "
            f"highest rates reached here (memory: {peaks.memory_bytes_per_s / 1e9:.0f} GB/s); "
            "they hold for direct algorithms"
        )
    return "\n\n".join(parts)


def _totals_text(one: Totals) -> str:
    return (
        f"{printable(one.function)}: {one.regions} regions of {one.nodes} nodes; predicted "
        f"{duration(one.predicted_s)}, kernels in place {duration(one.kernels_s)}, one whole call "
        f"{duration(one.latency_s)}, lower bound {duration(one.bound_s)}"
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


def node_text(found: NodeExplanation) -> str:
    """Write where a node runs, what else could run it, who refused, what was never measured."""
    node, region = found.node, found.region
    parts = [
        f"node {node.index} {node.op} {node.name} -> {', '.join(node.types)}\n"
        f"region {found.region_number} of {found.function}: nodes {node_ranges(region.nodes)} on "
        f"{region.backend} {region.variant}".rstrip()
        + "".join(f", {text}" for text in [precision_text(region.precision, region.error)] if text)
        + f"\nalone {duration(region.alone_s)}, "
        f"predicted {duration(region.predicted_s)} ({_interval(region.low_s, region.high_s)}), "
        f"measured in place {duration(region.measured_s)}, lower bound {duration(region.bound_s)}"
    ]
    if found.ranked:
        rows = [_ranked_row(one) for one in found.ranked]
        header = ("regret", "backend", "nodes", "cost", "95 % interval")
        parts.append("measured, by what the best plan with it costs more\n" + _table(header, rows))
    parts += _reasons("refused", found.refused) + _reasons("never measured", found.unmeasured)
    parts += [f"{name}: no candidate with this node" for name in found.absent]
    if found.rest:
        counts = [f"{one.count} {one.state.value} on {one.backend}" for one in found.rest]
        parts.append(f"not listed: {', '.join(counts)}")
    return "\n\n".join(printable_lines(part) for part in parts)


def printable_lines(text: str) -> str:
    """Replace control characters except line ends."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _ranked_row(one: Alternative) -> tuple[str, ...]:
    regret = "chosen" if one.chosen else f"+{duration(one.regret_s)}"
    regret = "in no plan" if one.regret_s is None and not one.chosen else regret
    backend = f"{one.backend} {one.variant}".rstrip()
    cost = _interval(one.low_s, one.high_s)
    return regret, backend, node_ranges(one.nodes), duration(one.cost_s), cost


def _interval(low_s: float | None, high_s: float | None) -> str:
    return f"{duration(low_s)} to {duration(high_s)}"


def _reasons(title: str, found: Sequence[Alternative]) -> list[str]:
    if not found:
        return []
    rows = [(f"{one.backend} {one.variant}".rstrip(), node_ranges(one.nodes), one.reason)
            for one in found]  # fmt: skip
    return [f"{title}\n{_table(('backend', 'nodes', 'reason'), rows)}"]


def diff_text(found: Difference) -> str:
    """Write the totals of both plans and what each does where they differ."""
    first, second = found.first, found.second
    totals = [
        (side, *map(duration, (one.predicted_s, one.kernels_s, one.latency_s)), str(one.regions),
         one.function)
        for side, every in (("A", first), ("B", second))
        for one in every
    ]  # fmt: skip
    header = ("plan", "predicted", "kernels", "whole call", "regions", "function")
    changes = [
        (side, *_region_cells(region)[:4], op_counts(region.ops))
        for change in found.changes
        for side, regions in (("A", change.first), ("B", change.second))
        for region in regions
    ]
    parts = [_table(header, totals), f"{found.same} regions are the same"]
    if changes:
        columns = ("plan", "backend", "nodes", "predicted", "measured", "operators")
        parts.append(_table(columns, changes))
        parts.append(
            f"where they differ, measured: A {_measured(found, True)}, B {_measured(found, False)}"
        )
    return "\n\n".join(printable_lines(part) for part in parts)


def _measured(found: Difference, first: bool) -> str:
    regions = (
        one for change in found.changes for one in (change.first if first else change.second)
    )
    return duration(sum_s(one.measured_s for one in regions))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Align columns to the left."""
    lines = [header, *rows]
    widths = [max(len(printable(line[place])) for line in lines) for place in range(len(header))]
    return "\n".join(
        "  ".join(
            printable(cell).ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )
