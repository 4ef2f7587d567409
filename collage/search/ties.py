"""Ties: where costs do not differ beyond their intervals, the preferred backend computes a region.

A cost is a median with an interval. Two options of the same nodes tie where each median lies in the other's
interval. The search adds medians, so a difference that is noise would decide, and differently in each run;
the RFC falls back to fixed priorities there. The priority is the order of the backends (`--backends`).

The rule is conservative. It exchanges single regions of a plan, for an option of the same nodes and
precision whose backend is preferred, and only while the plan's predicted latency rises by at most
`MAX_TIE_SHARE` in total. It never gives up CUDA graphs, and never mixes backends in conflict.
"""

from dataclasses import replace

from collage.cost import Cost
from collage.graph.index_set import IndexSet
from collage.rules.rule import HOST
from collage.search.graph_launches import predicted_s
from collage.search.problem import Costs, Option, Plan, Problem, femtoseconds
from collage.search.shortest_path import is_measured

MAX_TIE_SHARE = 0.005
"""Largest rise of a plan's predicted latency by ties, as a share of it."""


class Ties:
    """The measured options of a problem by their nodes."""

    def __init__(self, problem: Problem, costs: Costs) -> None:
        self._problem, self._costs = problem, costs
        self._by_nodes: dict[IndexSet, list[Option]] = {}
        for option in problem.ordered:
            if is_measured(option, costs) and option.backend != HOST:
                self._by_nodes.setdefault(option.nodes, []).append(option)

    def preferred(self, plan: Plan) -> Plan:
        """Return the plan with the preferred backends where costs tie; `plan` itself without ties."""
        exchanges = sorted(
            (self._rise_fs(option, preferred), place, preferred)
            for place, option in enumerate(plan.options)
            if (preferred := self._preferred_option(option)) is not None
        )
        budget_fs = MAX_TIE_SHARE * sum(map(self._seconds_fs, plan.options))
        options = list(plan.options)
        for rise_fs, place, preferred in exchanges:
            if rise_fs > budget_fs:
                break
            if self._has_conflict(preferred, options):
                continue
            budget_fs -= max(0, rise_fs)
            options[place] = preferred
        if tuple(options) == plan.options:
            return plan
        exchanged = replace(plan, options=tuple(options))
        return replace(exchanged, predicted_s=predicted_s(self._problem, self._costs, exchanged))

    def _preferred_option(self, option: Option) -> Option | None:
        """Return the tied option of the most preferred backend, if it is preferred to the option's own."""
        tied = [
            candidate
            for candidate in self._by_nodes.get(option.nodes, ())
            if candidate.priority < option.priority
            and candidate.precision == option.precision
            and candidate.graph_capturable >= option.graph_capturable
            and are_tied(self._costs[option.key], self._costs[candidate.key])
        ]
        return min(tied, key=lambda tied: (tied.priority, self._seconds_fs(tied)), default=None)

    def _seconds_fs(self, option: Option) -> int:
        seconds = self._costs[option.key].seconds
        return femtoseconds(seconds) + self._problem.boundary_fs(option)

    def _rise_fs(self, option: Option, preferred: Option) -> int:
        return self._seconds_fs(preferred) - self._seconds_fs(option)

    def _has_conflict(self, preferred: Option, options: list[Option]) -> bool:
        conflicts = self._problem.conflicts.get(preferred.backend, frozenset())
        return any(
            option.backend in conflicts for option in options if option.nodes != preferred.nodes
        )


def are_tied(first: Cost, second: Cost) -> bool:
    """Tell whether the median of each cost lies in the interval of the other.

    >>> are_tied(Cost(1.0, 0.9, 1.1), Cost(1.05, 0.95, 1.15))
    True
    >>> are_tied(Cost(1.0, 0.9, 1.1), Cost(1.05, 1.04, 1.06))
    False
    """
    return first.low <= second.seconds <= first.high and second.low <= first.seconds <= second.high
