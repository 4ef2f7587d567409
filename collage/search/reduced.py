"""Plans with regions in less than float32: an error budget next to the budget of time.

What one region's rounding does to the model's outputs is known only when the whole plan runs, and
the gate finds that out. What can be done before: each candidate's own error is measured with its
cost, and the errors of regions that follow each other add up about like independent noise, so the
square of a plan's error is about the sum of the regions' squares. Choosing what to reduce is then a
knapsack: seconds saved against squared errors. Its Lagrangian is one more additive cost, seconds +
price x error^2, which the same shortest path solves exactly; a rising price gives plans with ever
fewer, or gentler, reduced regions. The price at which all errors together cost what they save is the
natural unit. The gate tries the plans and keeps the fastest one that is within the tolerance.

A residual connection or a mean makes a region's error smaller on its way to the outputs, so a single
candidate may be `SLACK` times further off than the whole plan.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace

from collage.cost import Cost
from collage.search.problem import Option, Plan
from collage.search.shortest_path import least_plan
from collage.search.state_space import StateSpace

SLACK = 4.0
PRICES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""In units of (seconds that the fastest plan saves) / (its squared error)."""


def within_budget(cost: Cost, tolerance: float) -> Cost:
    """Return the cost, or an invalid one with the reason when its error is beyond all hope."""
    limit = SLACK * tolerance
    if cost.error <= limit:
        return cost
    reason = f"its error is {cost.error:.3g} of the output's scale, above {limit:.3g}"
    return replace(Cost.invalid(reason), build_s=cost.build_s)


def gentler_plans(space: StateSpace, costs: Mapping[Hashable, Cost]) -> Iterator[Plan]:
    """Yield plans with ever less error, from the fastest one's towards an unreduced one."""

    def seconds(option: Option) -> float:
        return costs[option.key].seconds

    def unreduced(option: Option) -> float | None:
        return None if option.reduced else seconds(option)

    def squared_error(plan: Plan) -> float:
        return sum(costs[option.key].error ** 2 for option in plan.options)

    fastest, exact = least_plan(space, seconds), least_plan(space, unreduced)
    if fastest is None or exact is None or not squared_error(fastest):
        return
    unit = (exact.predicted_s - fastest.predicted_s) / squared_error(fastest)
    for price in PRICES:
        plan = least_plan(space, _priced(costs, price * unit))
        if plan is not None and plan.reduced:
            surcharge_s = price * unit * squared_error(plan)
            yield replace(plan, predicted_s=plan.predicted_s - surcharge_s)


def _priced(costs: Mapping[Hashable, Cost], price: float) -> Callable[[Option], float]:
    return lambda option: costs[option.key].seconds + price * costs[option.key].error ** 2
