"""Plans with regions in less than float32, under an error budget.

The gate runs a whole plan and measures the effect of its roundings on the model's outputs. Before that, each
candidate's own error is measured together with its cost. Errors of consecutive regions add up roughly like
independent noise, so the square of a plan's error is about the sum of the regions' squares; the expected
error of a plan is the root of this sum.

The choice of regions to reduce is then a knapsack: seconds saved against squared errors. Its Lagrangian is
another additive cost, seconds + penalty x error^2, and the same shortest path solves it exactly; a rising
penalty gives plans with lower error. The natural unit of the penalty is the one at which all errors together
cost the time that they save. The gate tries the plans and keeps the fastest within the tolerance; its results
calibrate expected errors (`collage.search.error_calibration`).

Errors are first multiplied by their sensitivity: the error at the outputs for an error of the region
(`with_output_errors`; `collage.frontend.sensitivity` measures it). A residual connection or a mean reduces a
region's error on the way to the outputs, so a single candidate may exceed the tolerance by the factor
`SLACK`. A candidate of outputs only gets no slack: its error is the plan's error.

A lazy search for the fastest plan measures little beside that plan. Where it is beyond the tolerance, the
parts of a plan with lower error are still unknown. So the search continues with error-penalised costs: every
round measures the unknown options of the fastest plan within the tolerance.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage.cost import Cost
from collage.graph.index_set import IndexSet
from collage.search.estimate import AdditiveEstimator
from collage.search.lazy import Measure, SearchBudget, search_lazily
from collage.search.problem import Costs, Option, Plan, Problem
from collage.search.shortest_path import least_plan, surcharged_plan, valid_space
from collage.search.state_space import StateSpace

Sensitivity = Callable[[IndexSet], float]
"""Sensitivity of a region: error of the function's outputs divided by the region's error."""

SLACK = 4.0
"""Factor by which a single candidate's error may exceed the tolerance."""
SHARES = (2.0, 1.0, 0.5, 0.25)
"""Expected errors of the first plans, as shares of the tolerance; true errors may differ by such factors."""
HIGHEST_PENALTY = 2.0**20
"""In units of (seconds saved by the fastest plan) / (its squared error)."""
PENALTY_STEPS = 8
"""Bisections of the interval that contains the penalty."""
LOWER_ERROR_ROUNDS = 3
"""Largest number of penalties at which a search measures unknown options."""


def within_budget(cost: Cost, tolerance: float, *, is_last: bool = False) -> Cost:
    """Return the cost, or an invalid cost with the reason when its error is too high for any plan.

    Args:
        cost: a measured cost with its error.
        tolerance: largest relative error of the outputs.
        is_last: the candidate makes outputs of the function only; default False.
    """
    limit = tolerance if is_last else SLACK * tolerance
    if cost.error <= limit:
        return cost
    reason = f"its error is {cost.error:.3g} of the output's scale, above {limit:.3g}"
    return replace(Cost.invalid(reason), build_s=cost.build_s)


@dataclass(frozen=True)
class ErrorBudget:
    """Largest error of the outputs, and the sensitivity of the outputs to errors of regions.

    Attributes:
        tolerance: largest relative error of the outputs.
        sensitivity: sensitivity by region; default 1 for every region.
    """

    tolerance: float
    sensitivity: Sensitivity = lambda nodes: 1.0


def with_output_errors(
    problem: Problem, costs: Costs, sensitivity: Sensitivity
) -> dict[Hashable, Cost]:
    """Return the costs with errors at the function's outputs.

    Options of one key lie at several places of the function; the highest sensitivity of these counts.
    """
    return {key: _with_output_error(problem, key, cost, sensitivity) for key, cost in costs.items()}


def _with_output_error(
    problem: Problem, key: Hashable, cost: Cost, sensitivity: Sensitivity
) -> Cost:
    if not cost.is_valid or not cost.error:
        return cost
    highest = max((sensitivity(option.nodes) for option in problem.options_of(key)), default=1.0)
    return replace(cost, error=highest * cost.error)


def expected_error(plan: Plan, costs: Costs) -> float:
    """Return the root of the sum of the regions' squared errors."""
    return math.sqrt(_squared_error(plan, costs))


@dataclass(frozen=True)
class PenalisedPlans:
    """Best plans of a space by error-penalised costs, by penalty.

    Attributes:
        space: state space of valid options.
        costs: costs with output errors, by option key.
        unit_s: seconds saved by the fastest plan, divided by its squared error.
    """

    space: StateSpace
    costs: Costs
    unit_s: float
    _plans: dict[float, Plan] = field(default_factory=dict)

    @classmethod
    def of(cls, space: StateSpace, costs: Costs) -> "PenalisedPlans | None":
        """Compute the unit; None where the space has no plan or the fastest plan has no error."""

        def exact_surcharge(option: Option) -> float | None:
            return None if option.reduced else 0.0

        fastest = least_plan(space, lambda option: costs[option.key].seconds)
        exact = surcharged_plan(space, costs, exact_surcharge)
        if fastest is None or exact is None or not _squared_error(fastest, costs):
            return None
        saved_s = exact.predicted_s - fastest.predicted_s
        return cls(space, costs, saved_s / _squared_error(fastest, costs))

    def at(self, penalty: float) -> Plan:
        """Return the best plan at a penalty of `penalty` units."""
        if penalty not in self._plans:
            plan = surcharged_plan(self.space, self.costs, self._surcharge(penalty))
            assert plan is not None, "a space with a unit holds plans"
            self._plans[penalty] = plan
        return self._plans[penalty]

    def within(self, limit: float) -> tuple[float, Plan]:
        """Return a low penalty, and its plan, with an expected error of at most `limit`."""
        fastest = self.at(0.0)
        if expected_error(fastest, self.costs) <= limit:
            return 0.0, fastest
        low, high = 1.0, 1.0
        while low > 1 / HIGHEST_PENALTY and self._error_at(low) <= limit:
            low /= 4
        while high < HIGHEST_PENALTY and self._error_at(high) > limit:
            high *= 4
        for _ in range(PENALTY_STEPS):
            middle = math.sqrt(low * high)
            if self._error_at(middle) <= limit:
                high = middle
            else:
                low = middle
        return high, self.at(high)

    def penalised_costs(self, penalty: float) -> dict[Hashable, Cost]:
        """Return the costs with the penalty of their errors added to their seconds."""
        return {key: _penalised(cost, penalty * self.unit_s) for key, cost in self.costs.items()}

    def _error_at(self, penalty: float) -> float:
        return expected_error(self.at(penalty), self.costs)

    def _surcharge(self, penalty: float) -> Callable[[Option], float]:
        return lambda option: penalty * self.unit_s * self.costs[option.key].error ** 2


def lower_error_plans(penalised: PenalisedPlans, tolerance: float) -> Iterator[Plan]:
    """Yield reduced plans with lower and lower expected error, around the tolerance."""
    for share in SHARES:
        _, plan = penalised.within(share * tolerance)
        if plan.reduced:
            yield plan


def search_lower_error(
    problem: Problem,
    measure: Measure,
    costs: Costs,
    *,
    errors: ErrorBudget,
    batch_size: int,
    budget: SearchBudget,
) -> dict[Hashable, Cost]:
    """Measure the options of the fastest plan with an expected error within the tolerance.

    Args:
        problem: the function's search problem.
        measure: measures a batch of keys.
        costs: known costs after the search for the fastest plan.
        errors: the error budget.
        batch_size: smallest number of keys measured together.
        budget: budget of all rounds together, at most `LOWER_ERROR_ROUNDS`.

    Returns:
        All known costs.
    """
    known_costs, output_errors = dict(costs), with_output_errors(problem, costs, errors.sensitivity)
    end = math.inf if budget.seconds is None else budget.clock() + budget.seconds
    for _ in range(LOWER_ERROR_ROUNDS):
        before = len(known_costs)
        penalised = PenalisedPlans.of(valid_space(problem, output_errors), output_errors)
        penalty = penalised.within(errors.tolerance)[0] if penalised else 0.0
        if not penalised or not penalty:
            break
        penalty_s = penalty * penalised.unit_s

        def measure_penalised(
            keys: Sequence[Hashable], penalty_s: float = penalty_s
        ) -> Mapping[Hashable, Cost]:
            measured = measure(keys)
            known_costs.update(measured)
            output_errors.update(with_output_errors(problem, measured, errors.sensitivity))
            return {key: _penalised(output_errors[key], penalty_s) for key in measured}

        search_lazily(
            problem,
            measure_penalised,
            costs=penalised.penalised_costs(penalty),
            estimator=_PenalisedEstimator(problem, output_errors, penalty_s),
            batch_size=batch_size,
            budget=replace(budget, seconds=max(0.0, end - budget.clock())),
        )
        if len(known_costs) == before:
            break
    return known_costs


class _PenalisedEstimator:
    """Separate estimates of seconds and squared errors: each is additive over nodes, their sum is not."""

    def __init__(self, problem: Problem, costs: Costs, penalty_s: float) -> None:
        self._costs = costs
        self._penalty_s = penalty_s
        self._seconds = AdditiveEstimator(problem)
        self._errors = AdditiveEstimator(problem, margin=0.0)

    def estimate(self, option: Option) -> float:
        seconds = self._seconds.estimate(option)
        if not option.reduced:
            return seconds
        return seconds + self._penalty_s * self._errors.estimate(option)

    def observe(self, option: Option, _: Cost) -> None:
        """Learn from the option's cost without penalty, from the costs of the constructor."""
        cost = self._costs[option.key]
        self._seconds.observe(option, cost)
        if option.reduced and cost.error:
            self._errors.observe(option, Cost(cost.error**2))


def _squared_error(plan: Plan, costs: Costs) -> float:
    return sum(costs[option.key].error ** 2 for option in plan.options)


def _penalised(cost: Cost, penalty_s: float) -> Cost:
    if not cost.is_valid or not cost.error:
        return cost
    return replace(cost, seconds=cost.seconds + penalty_s * cost.error**2)
