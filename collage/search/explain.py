"""Regrets: the exact loss of a plan with a given option, for all options.

The least cost from the start to every state and from every state to the end give the best plan through each
step; the best over an option's steps is the best plan with this option. Both passes together take twice the
time of one search, for all options at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collage.search.problem import UNKNOWN, Costs, Option, Plan, Problem
from collage.search.shortest_path import (
    Weight,
    gap_s,
    make_plan,
    option_weights,
    remaining_weights,
    seconds_of,
    valid_space,
    walk,
)
from collage.search.state_space import StateSpace
from collage.search.uncovered import no_cover


@dataclass(frozen=True, slots=True)
class Regret:
    """Loss of the best plan with `option`.

    Attributes:
        option: the option.
        regret_s: seconds above the best plan; 0 for its options and those of its ties, +inf for an option
            without a plan.
        reason: reason of an infinite regret, else "".
    """

    option: Option
    regret_s: float
    reason: str = ""


@dataclass(frozen=True)
class Explanation:
    """The best plan and the regret of every option, in the order of `Problem.ordered`."""

    plan: Plan
    regrets: Sequence[Regret]


def explain(problem: Problem, costs: Costs) -> Explanation:
    """Find the best plan and every option's regret.

    Raises:
        SearchError: valid options cover no plan.
    """
    space = valid_space(problem, costs)
    weights = option_weights(space, lambda option: costs[option.key].seconds)
    remaining = remaining_weights(space, weights)
    best = remaining[0]
    if best is None:
        raise no_cover(space, costs)
    through = dict(zip(space.options, weights_through(space, weights, remaining), strict=True))
    plan = make_plan(problem, walk(space, weights, remaining), seconds_of(best))
    regrets = [_regret(option, costs, best, through.get(option)) for option in problem.ordered]
    return Explanation(plan, regrets)


def weights_through(
    space: StateSpace,
    weights: Sequence[Weight | None],
    remaining: Sequence[Weight | None],
    own_weights: Sequence[Weight | None] | None = None,
) -> list[Weight | None]:
    """Return for each option the weight of the best plan with it; None without such a plan.

    Args:
        space: the state space.
        weights: weight of each option; None leaves an option out.
        remaining: least weight from each state to the end, by `weights`.
        own_weights: weight of an option in its own best plan; default `weights`.
    """
    reached: list[Weight | None] = [None] * len(space.steps)
    reached[0] = 0
    through: list[Weight | None] = [None] * len(space.options)
    for state, steps in enumerate(space.steps):
        so_far = reached[state]
        if so_far is None:
            continue
        for option, next_state in steps:
            weight, rest_weight = weights[option], remaining[next_state]
            if rest_weight is None:
                continue
            if weight is not None:
                arrived, at_target = so_far + weight, reached[next_state]
                reached[next_state] = arrived if at_target is None else min(arrived, at_target)
            own_weight = weight if own_weights is None else own_weights[option]
            if own_weight is None:
                continue
            total, best = so_far + own_weight + rest_weight, through[option]
            if best is None or total < best:
                through[option] = total
    return through


def _regret(option: Option, costs: Costs, best: Weight, through: Weight | None) -> Regret:
    if through is not None:
        return Regret(option, gap_s(through, best))
    cost = costs.get(option.key, UNKNOWN)
    if cost.is_valid:
        reason = "what it leaves over cannot be covered"
    else:
        reason = "not measured" if cost.is_unknown else cost.reason
    return Regret(option, math.inf, reason)
