"""Why not that one? The exact price of insisting on any option.

The least cost from the start to every state and from every state to the end give, for each step,
the best plan that takes it; the best over an option's steps is the best plan that uses it. Both
passes together cost twice one search, for all options at once.
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
    """How much slower the best plan that uses `option` is.

    `regret_s` is 0 for the options of the best plan and of its ties, and +inf for an option that no
    plan can use; `reason` says why then ("" otherwise).
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
    asked: Sequence[Weight | None] | None = None,
) -> list[Weight | None]:
    """Return per option the weight of the best plan that uses it; None where there is none.

    With `asked` an option has that weight where the plan is about it, and `weights` where it is not.
    """
    reached: list[Weight | None] = [None] * len(space.steps)
    reached[0] = 0
    through: list[Weight | None] = [None] * len(space.options)
    for state, steps in enumerate(space.steps):
        so_far = reached[state]
        if so_far is None:
            continue
        for option, target in steps:
            weight, rest = weights[option], remaining[target]
            if rest is None:
                continue
            if weight is not None:
                arrived, at_target = so_far + weight, reached[target]
                reached[target] = arrived if at_target is None else min(arrived, at_target)
            price, best = weight if asked is None else asked[option], through[option]
            if price is not None and (best is None or so_far + price + rest < best):
                through[option] = so_far + price + rest
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
