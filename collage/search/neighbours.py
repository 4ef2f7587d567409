"""Plans that differ from a given one in one place: where the additive model may be wrong, look near by.

Sums of isolated costs rank plans well but not perfectly: what one kernel leaves in the caches helps
or hurts the next. So the best plans are improved by measuring their neighbours whole (the Collage
paper's second level, there with an evolutionary search over the same moves). A window of up to
`WINDOW` regions that follow each other is covered anew by the measured options inside it. That is
every move at once: another backend for a region, a border moved, a region split, two merged.

Each window is a small search problem: the options outside it are fixed. Complexity: windows x
(options inside + regions).
"""

from collections.abc import Iterator
from dataclasses import replace

from collage.graph.index_set import first, is_subset
from collage.search.graph_launches import predicted_s
from collage.search.k_best import find_plans
from collage.search.problem import Costs, Option, Plan, Problem
from collage.search.shortest_path import is_measured

WINDOW = 3
"""Most regions that are covered anew together."""
EACH = 3
"""Best covers taken from one window."""


def neighbours(problem: Problem, costs: Costs, plan: Plan) -> list[Plan]:
    """Return the plans that differ from `plan` within one window, least predicted cost first."""
    measured = [option for option in problem.ordered if is_measured(option, costs)]
    found: dict[tuple[Option, ...], Plan] = {}
    for window in _windows(plan):
        inside = 0
        for option in window:
            inside |= option.nodes
        kept = [option for option in plan.options if not option.nodes & inside]
        fresh = [option for option in measured if is_subset(option.nodes, inside)]
        if len(fresh) > len(window):
            small = replace(problem, options=[*kept, *fresh])
            for other in find_plans(small, costs, EACH + 1):
                real_s = predicted_s(problem, costs, other)
                found.setdefault(other.options, replace(other, predicted_s=real_s))
    found.pop(plan.options, None)
    return sorted(found.values(), key=lambda other: (other.predicted_s, repr(other.options)))


def _windows(plan: Plan) -> Iterator[tuple[Option, ...]]:
    order = sorted(plan.options, key=lambda option: first(option.nodes))
    for size in range(1, WINDOW + 1):
        for begin in range(len(order) - size + 1):
            yield tuple(order[begin : begin + size])
