"""Neighbours of a plan: local search around the best plans, since the additive model is not exact.

Sums of isolated costs rank plans well but not perfectly: the caches left by one kernel help or slow
the next. So the neighbours of the best plans are assembled and measured whole (the second level of
the Collage paper, there an evolutionary search over the same moves). A window of up to
`NEIGHBOUR_WINDOW` consecutive regions is covered again with the measured options inside it. This
includes every move: another backend for a region, a moved boundary, a split, a merge.

Each window is a small search problem with fixed options outside. Complexity: windows x (options inside +
regions).
"""

from collections.abc import Iterator
from dataclasses import replace

from collage.graph.index_set import first, is_subset
from collage.search.graph_launches import predicted_s
from collage.search.k_best import find_plans
from collage.search.problem import Costs, Option, Plan, Problem
from collage.search.shortest_path import is_measured

NEIGHBOUR_WINDOW = 3
"""Largest number of consecutive regions in a window."""
PLANS_PER_WINDOW = 3
"""Number of best neighbours taken from one window."""


def neighbours(problem: Problem, costs: Costs, plan: Plan) -> list[Plan]:
    """Return the plans that differ from `plan` within one window, least predicted cost first."""
    measured = [option for option in problem.ordered if is_measured(option, costs)]
    plans: dict[tuple[Option, ...], Plan] = {}
    for window in _windows(plan):
        inside = 0
        for option in window:
            inside |= option.nodes
        fixed = [option for option in plan.options if not option.nodes & inside]
        alternatives = [option for option in measured if is_subset(option.nodes, inside)]
        if len(alternatives) > len(window):
            window_problem = replace(problem, options=[*fixed, *alternatives])
            for neighbour in find_plans(window_problem, costs, PLANS_PER_WINDOW + 1):
                seconds = predicted_s(problem, costs, neighbour)
                plans.setdefault(neighbour.options, replace(neighbour, predicted_s=seconds))
    plans.pop(plan.options, None)
    return sorted(plans.values(), key=lambda plan: (plan.predicted_s, repr(plan.options)))


def _windows(plan: Plan) -> Iterator[tuple[Option, ...]]:
    order = sorted(plan.options, key=lambda option: first(option.nodes))
    for size in range(1, NEIGHBOUR_WINDOW + 1):
        for begin in range(len(order) - size + 1):
            yield tuple(order[begin : begin + size])
