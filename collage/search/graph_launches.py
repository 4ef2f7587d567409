"""What CUDA graphs save of a plan, and what a kernel that forbids them costs it.

On a GPU costs are those of captured kernels. One option that may not be captured (it waits for the host)
takes the graphs from the whole plan: then each call takes at least what its launch takes,
`Problem.launch_s`. That is no sum over the options, so there are two spaces: plans of options that all
capture, with costs as they are, and all other plans, with every cost raised to a launch's. The best of
both is the best plan, exactly. A lazy search, which only says what to measure, goes by the lower costs.
"""

from collections.abc import Hashable
from dataclasses import replace

from collage.cost.cost import Cost
from collage.rules.rule import HOST
from collage.search.problem import FEMTOSECONDS, Costs, Plan, Problem, femtoseconds


def captures(plan: Plan) -> bool:
    """Tell whether the plan's kernels become CUDA graphs."""
    return all(option.captures for option in plan.options)


def is_divided(problem: Problem) -> bool:
    """Tell whether plans of the problem differ in that."""
    return problem.launch_s > 0 and any(not option.captures for option in problem.options)


def without_graphs(problem: Problem) -> Problem:
    """Return the problem where nothing is captured."""
    return replace(problem, options=[replace(one, captures=False) for one in problem.options])


def launched(costs: Costs, launch_s: float) -> dict[Hashable, Cost]:
    """Return the costs of the same kernels launched one by one; a view takes no launch.

    >>> launched({"k": Cost(1e-6)}, 3e-6)["k"].seconds
    3e-06
    """
    return {
        key: replace(cost, seconds=max(cost.seconds, launch_s))
        if cost.is_valid and key != HOST
        else cost
        for key, cost in costs.items()
    }


def predicted_s(problem: Problem, costs: Costs, plan: Plan) -> float:
    """Return the sum of the costs and boundary costs of a plan's options, launched or captured."""
    if problem.launch_s and not captures(plan):
        used = {option.key: costs[option.key] for option in plan.options}
        costs = launched(used, problem.launch_s)
    real_fs = sum(
        femtoseconds(costs[option.key].seconds) + problem.boundary_fs(option)
        for option in plan.options
    )
    return real_fs / FEMTOSECONDS
