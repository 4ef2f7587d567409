"""CUDA graphs in predicted plan times: the saving of captured plans, the price of uncapturable kernels.

GPU costs are those of captured kernels. One option without graph capture (its kernel waits for the host)
rules out CUDA graphs for the whole plan; each call then takes at least its launch, `Problem.launch_s`. Such
a cost is no sum over options. So the search looks at two spaces: plans of capturable options with costs as
they are, and all other plans with every cost raised to that of a launch. The better of the two best plans is
the optimum. A lazy search only decides the order of measurements and uses the lower costs.
"""

from collections.abc import Hashable
from dataclasses import replace

from collage.cost.cost import Cost
from collage.rules.rule import HOST
from collage.search.problem import FEMTOSECONDS, Costs, Plan, Problem, femtoseconds


def is_captured(plan: Plan) -> bool:
    """Tell whether the plan's kernels become CUDA graphs."""
    return all(option.graph_capturable for option in plan.options)


def has_two_spaces(problem: Problem) -> bool:
    """Tell whether launches count and some options cannot be captured."""
    return problem.launch_s > 0 and any(not option.graph_capturable for option in problem.options)


def without_graphs(problem: Problem) -> Problem:
    """Return the problem with no capturable option."""
    options = [replace(option, graph_capturable=False) for option in problem.options]
    return replace(problem, options=options)


def launched_costs(costs: Costs, launch_s: float) -> dict[Hashable, Cost]:
    """Return the costs of the same kernels launched one by one; a view takes no launch.

    >>> launched_costs({"k": Cost(1e-6)}, 3e-6)["k"].seconds
    3e-06
    """
    return {
        key: replace(cost, seconds=max(cost.seconds, launch_s))
        if cost.is_valid and key != HOST
        else cost
        for key, cost in costs.items()
    }


def predicted_s(problem: Problem, costs: Costs, plan: Plan) -> float:
    """Return the sum of a plan's costs and boundary costs, with launches unless it is captured."""
    if problem.launch_s and not is_captured(plan):
        plan_costs = {option.key: costs[option.key] for option in plan.options}
        costs = launched_costs(plan_costs, problem.launch_s)
    total_fs = sum(
        femtoseconds(costs[option.key].seconds) + problem.boundary_fs(option)
        for option in plan.options
    )
    return total_fs / FEMTOSECONDS
