"""Sections of the page: alternatives, plans, invalid and unmeasured candidates."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from collage.report.data import (
    Alternative,
    InvalidCandidate,
    MeasuredPlan,
    RegionReport,
    UnmeasuredCandidate,
)
from collage.report.drawing import Mark, interval
from collage.report.formatting import duration, node_ranges, op_counts
from collage.report.page_elements import badge, escaped, meter, table

ROWS_SHOWN = 50


def alternatives(regions: Sequence[RegionReport], marks: Mapping[str, Mark]) -> str:
    """List the alternatives of every region; this works without the script."""
    parts = []
    for number, region in enumerate(regions):
        rejected = [candidate for candidate in region.alternatives if not candidate.chosen]
        rows = [
            f"<tr><td>{badge(candidate.backend, marks)} {escaped(candidate.variant)}</td>"
            f"<td class=long>{node_ranges(candidate.nodes)}</td>"
            f'<td class="n">{duration(candidate.cost_s)}</td>'
            f'<td class="n">{interval(candidate.low_s, candidate.high_s)}</td>'
            f'<td class="n">{_regret(candidate)}</td><td class="long">{escaped(candidate.reason)}</td></tr>'
            for candidate in rejected
        ]
        if rows:
            header = ("backend", "nodes", "cost", "95 % interval", "best plan with it", "reason")
            parts.append(
                f"<details><summary>{badge(region.backend, marks)} region {number}: nodes "
                f'{node_ranges(region.nodes)} <span class="soft">({len(rows)})</span></summary>'
                f"{table(header, rows, (2, 3, 4))}</details>\n"
            )
    return f"<h3>Alternatives</h3>\n{''.join(parts)}" if parts else ""


def _regret(candidate: Alternative) -> str:
    return f"{duration(candidate.regret_s)} slower" if candidate.regret_s is not None else ""


def plan_table(plans: Sequence[MeasuredPlan]) -> str:
    """List the plans that were measured end to end, fastest first."""
    if not plans:
        return ""
    ordered = sorted(
        plans, key=lambda plan: (plan.measured_s is None, plan.measured_s or 0.0, plan.name)
    )
    slowest_s = max((plan.measured_s for plan in plans if plan.measured_s), default=1.0)
    rows = []
    for plan in ordered:
        name = f"{plan.name} (original framework)" if plan.baseline else plan.name
        rows.append(
            f"<tr{' class=chosen' if plan.chosen else ''}><td class=long>{escaped(name)}"
            f"{', shipped' if plan.chosen else ''}</td>"
            f'<td class="n">{duration(plan.predicted_s)}</td>'
            f'<td class="n">{duration(plan.measured_s)}</td>'
            f'<td class="n">{interval(plan.low_s, plan.high_s)}</td>'
            f"{meter(plan.measured_s, slowest_s, plan.chosen, plan.reason)}</tr>"
        )
    header = ("plan", "predicted", "measured", "95 % interval", "")
    return "<h3>Measured end to end, interleaved</h3>\n" + table(header, rows, (1, 2, 3), wide=True)


def invalid_candidates(candidates: Sequence[InvalidCandidate], marks: Mapping[str, Mark]) -> str:
    """List what could not be built or computed something else, by backend and reason."""
    groups: dict[tuple[str, str], list[InvalidCandidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.backend, candidate.reason), []).append(candidate)
    if not groups:
        return ""
    parts = ["<h3>Invalid candidates</h3>\n"]
    for (backend, reason), members in sorted(
        groups.items(), key=lambda item: (-len(item[1]), item[0])
    ):
        rows = [
            f"<tr><td class=long>{node_ranges(candidate.nodes)}</td>"
            f"<td class=long>{escaped(op_counts(candidate.ops))}</td>"
            f"<td>{escaped(candidate.variant)}</td></tr>"
            for candidate in sorted(members, key=attrgetter("nodes", "variant"))[:ROWS_SHOWN]
        ]
        parts.append(
            f"<details><summary>{badge(backend, marks)}: {escaped(reason)} "
            f'<span class="soft">({len(members)})</span></summary>'
            f"{table(('nodes', 'operators', 'variant'), rows)}{_rest(len(members))}</details>\n"
        )
    return "".join(parts)


def unmeasured_candidates(
    candidates: Sequence[UnmeasuredCandidate], marks: Mapping[str, Mark]
) -> str:
    """List what was never measured, by reason."""
    groups: dict[str, list[UnmeasuredCandidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.reason, []).append(candidate)
    if not groups:
        return ""
    parts = [f"<h3>Never measured ({len(candidates)})</h3>\n"]
    for reason, members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        ordered = sorted(members, key=attrgetter("nodes", "backend", "variant"))
        rows = [
            f"<tr><td>{badge(candidate.backend, marks)} {escaped(candidate.variant)}</td>"
            f"<td class=long>{node_ranges(candidate.nodes)}</td>"
            f'<td class="n">{duration(candidate.bound_s)}</td></tr>'
            for candidate in ordered[:ROWS_SHOWN]
        ]
        parts.append(
            f'<details><summary>{escaped(reason)} <span class="soft">({len(members)})</span></summary>'
            f"{table(('backend', 'nodes', 'lower bound'), rows, (2,))}{_rest(len(members))}"
            "</details>\n"
        )
    return "".join(parts)


def _rest(count: int) -> str:
    return f'<p class="soft">and {count - ROWS_SHOWN} more</p>' if count > ROWS_SHOWN else ""
