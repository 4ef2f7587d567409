"""Plans with regions in less than float32: an error budget next to the budget of time.

What one region's rounding does to the model's outputs is known only when the whole plan runs, and
the gate finds that out. What can be done before: each candidate's own error is measured with its
cost, and the errors of regions that follow each other add up about like independent noise, so the
square of a plan's error is about the sum of the regions' squares: its expected error is the root of that.
Choosing what to reduce is then a knapsack: seconds saved against squared errors. Its Lagrangian is one
more additive cost, seconds + price x error^2, which the same shortest path solves exactly; a rising
price gives plans with ever fewer, or gentler, reduced regions. The price at which all errors together
cost what they save is the natural unit. The gate tries the plans and keeps the fastest one that is
within the tolerance; what it finds says how far off expected errors are (`Calibration`), and so which
plan is the fastest that may still be within.

Errors are weighed by their gain first: how many times larger, or smaller, they are at the outputs
(`weighed`; who knows the function says, `collage.frontend.sensitivity`).

A residual connection or a mean makes a region's error smaller on its way to the outputs, so a single
candidate may be `SLACK` times further off than the whole plan. One that makes nothing but outputs of
the function has no way left to go: its error is the plan's, and it gets no slack.

A lazy search for the fastest plan measures nothing beside that plan, and where that one is beyond the
tolerance, the parts of a gentler one are not measured. So it goes on with priced costs: every round
measures what the fastest plan within the tolerance would need, as far as is known.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage.cost import Cost
from collage.graph.index_set import IndexSet
from collage.search.estimate import AdditiveEstimator
from collage.search.lazy import Budget, Measure, search_lazily
from collage.search.problem import Costs, Option, Plan, Problem
from collage.search.shortest_path import least_plan, surcharged_plan, valid_space
from collage.search.state_space import StateSpace

Gain = Callable[[IndexSet], float]
"""Of a region: the error of the function's outputs, divided by that of the region's."""

SLACK = 4.0
SHARES = (2.0, 1.0, 0.5, 0.25)
"""Of the tolerance: expected errors of the plans that are tried at first. They may be off by as much."""
HIGHEST_PRICE = 2.0**20
"""In units of (seconds that the fastest plan saves) / (its squared error)."""
PRICE_STEPS = 8
"""Halvings of the interval in which a price lies."""
GENTLER_ROUNDS = 3
"""Prices at which a search looks for what is not measured yet."""
SAFE = 0.9
"""Share of the tolerance that a calibrated plan is meant to use."""


def within_budget(cost: Cost, tolerance: float, *, is_last: bool = False) -> Cost:
    """Return the cost, or an invalid one with the reason when its error is beyond all hope.

    Args:
        is_last: the candidate makes outputs of the function and nothing else.
    """
    limit = tolerance if is_last else SLACK * tolerance
    if cost.error <= limit:
        return cost
    reason = f"its error is {cost.error:.3g} of the output's scale, above {limit:.3g}"
    return replace(Cost.invalid(reason), build_s=cost.build_s)


@dataclass(frozen=True)
class ErrorBudget:
    """What the outputs may be off by, and what errors of regions do to them."""

    tolerance: float
    gain: Gain = lambda nodes: 1.0


def weighed(problem: Problem, costs: Costs, gain: Gain) -> dict[Hashable, Cost]:
    """Return the costs with the errors that the function's outputs have for them.

    Options of one key are in several places: the largest gain of these counts.
    """
    return {key: _weighed(problem, key, cost, gain) for key, cost in costs.items()}


def _weighed(problem: Problem, key: Hashable, cost: Cost, gain: Gain) -> Cost:
    if not cost.is_valid or not cost.error:
        return cost
    most = max((gain(option.nodes) for option in problem.options_of(key)), default=1.0)
    return replace(cost, error=most * cost.error)


def expected_error(plan: Plan, costs: Costs) -> float:
    """Return the root of the sum of the regions' squared errors."""
    return math.sqrt(_squared_error(plan, costs))


@dataclass(frozen=True)
class PricedPlans:
    """The best plans of a space of valid options by what their (weighed) errors cost.

    Attributes:
        unit_s: seconds that the fastest plan saves, divided by its squared error.
    """

    space: StateSpace
    costs: Costs
    unit_s: float
    _found: dict[float, Plan] = field(default_factory=dict)

    @classmethod
    def of(cls, space: StateSpace, costs: Costs) -> "PricedPlans | None":
        """Find the unit; None where there is no plan, or the fastest one has no error."""

        def unreduced(option: Option) -> float | None:
            return None if option.reduced else 0.0

        fastest = least_plan(space, lambda option: costs[option.key].seconds)
        exact = surcharged_plan(space, costs, unreduced)
        if fastest is None or exact is None or not _squared_error(fastest, costs):
            return None
        saved_s = exact.predicted_s - fastest.predicted_s
        return cls(space, costs, saved_s / _squared_error(fastest, costs))

    def at(self, price: float) -> Plan:
        """Return the best plan when errors cost `price` units."""
        if price not in self._found:
            plan = surcharged_plan(self.space, self.costs, self._surcharge(price))
            assert plan is not None, "a space with a unit holds plans"
            self._found[price] = plan
        return self._found[price]

    def within(self, limit: float) -> tuple[float, Plan]:
        """Return a low price, and its plan, at which the expected error is at most `limit`."""
        fastest = self.at(0.0)
        if expected_error(fastest, self.costs) <= limit:
            return 0.0, fastest
        low, high = 1.0, 1.0
        while low > 1 / HIGHEST_PRICE and self._error_at(low) <= limit:
            low /= 4
        while high < HIGHEST_PRICE and self._error_at(high) > limit:
            high *= 4
        for _ in range(PRICE_STEPS):
            middle = math.sqrt(low * high)
            if self._error_at(middle) <= limit:
                high = middle
            else:
                low = middle
        return high, self.at(high)

    def priced(self, price: float) -> dict[Hashable, Cost]:
        """Return the costs with their errors paid for."""
        return {key: _priced(cost, price * self.unit_s) for key, cost in self.costs.items()}

    def _error_at(self, price: float) -> float:
        return expected_error(self.at(price), self.costs)

    def _surcharge(self, price: float) -> Callable[[Option], float]:
        return lambda option: price * self.unit_s * self.costs[option.key].error ** 2


def gentler_plans(priced: PricedPlans, tolerance: float) -> Iterator[Plan]:
    """Yield plans with ever less error, around what the tolerance allows, while they are reduced."""
    for share in SHARES:
        _, plan = priced.within(share * tolerance)
        if plan.reduced:
            yield plan


def search_gentler(
    problem: Problem,
    measure: Measure,
    costs: Costs,
    errors: ErrorBudget,
    batch_size: int,
    budget: Budget,
) -> dict[Hashable, Cost]:
    """Measure what the fastest plan needs whose expected error is within the tolerance.

    Args:
        problem: the whole one.
        measure: of keys.
        costs: those known from the search for the fastest plan.
        errors: what is allowed.
        batch_size: keys that are measured together, at least.
        budget: for all of the rounds, of which there are at most `GENTLER_ROUNDS`.

    Returns:
        All known costs.
    """
    known, effects = dict(costs), weighed(problem, costs, errors.gain)
    end = math.inf if budget.seconds is None else budget.clock() + budget.seconds
    for _ in range(GENTLER_ROUNDS):
        before = len(known)
        priced = PricedPlans.of(valid_space(problem, effects), effects)
        price = priced.within(errors.tolerance)[0] if priced else 0.0
        if not priced or not price:
            break
        price_s = price * priced.unit_s
        paid = priced.priced(price)

        def measured(keys: Sequence[Hashable], price_s: float = price_s) -> Mapping[Hashable, Cost]:
            found = measure(keys)
            known.update(found)
            effects.update(weighed(problem, found, errors.gain))
            return {key: _priced(effects[key], price_s) for key in found}

        search_lazily(
            problem,
            measured,
            costs=paid,
            estimator=_PricedEstimator(problem, effects, price_s),
            batch_size=batch_size,
            budget=replace(budget, seconds=max(0.0, end - budget.clock())),
        )
        if len(known) == before:
            break
    return known


class _PricedEstimator:
    """Estimates seconds and squared errors apart; either adds up over nodes, their mixture does not."""

    def __init__(self, problem: Problem, known: Costs, price_s: float) -> None:
        self._known = known
        self._price_s = price_s
        self._seconds = AdditiveEstimator(problem)
        self._errors = AdditiveEstimator(problem, margin=0.0)

    def estimate(self, option: Option) -> float:
        seconds = self._seconds.estimate(option)
        if not option.reduced:
            return seconds
        return seconds + self._price_s * self._errors.estimate(option)

    def observe(self, option: Option, _: Cost) -> None:
        """Take in the cost without its price, which `known` holds."""
        cost = self._known[option.key]
        self._seconds.observe(option, cost)
        if option.reduced and cost.error:
            self._errors.observe(option, Cost(cost.error**2))


@dataclass
class Calibration:
    """How far off expected errors are, by the plans that were tried whole.

    A plan is tried with its expected error and the error that it had, +inf where integers differ.
    """

    tolerance: float
    tried: list[tuple[float, float]] = field(default_factory=list)

    def add(self, expected: float, error: float) -> None:
        self.tried.append((expected, error))

    def limit(self) -> float | None:
        """Return the highest expected error that may be within the tolerance.

        None while no plan was beyond it: then expected errors limit nothing. Between a plan that was
        beyond and one that was not, halfway; below all that were beyond, in proportion.
        """
        beyond = self._beyond()
        if not beyond:
            return None
        expected, error = min(beyond, key=lambda one: (one[1], one[0]))
        kept = [one[0] for one in self.tried if one[1] <= self.tolerance and 0 < one[0] < expected]
        if kept:
            return math.sqrt(max(kept) * expected)
        share = 0.5 if math.isinf(error) else SAFE * self.tolerance / error
        return share * expected

    def next_below(self) -> float:
        """Return an expected error just below those of all plans that were beyond the tolerance.

        Where plans are few, none may lie between that and `limit`, and the next one still be within.
        """
        return (1 - 1e-6) * min((one[0] for one in self._beyond()), default=0.0)

    def _beyond(self) -> list[tuple[float, float]]:
        return [one for one in self.tried if one[1] > self.tolerance and one[0] > 0]


def _squared_error(plan: Plan, costs: Costs) -> float:
    return sum(costs[option.key].error ** 2 for option in plan.options)


def _priced(cost: Cost, price_s: float) -> Cost:
    if not cost.is_valid or not cost.error:
        return cost
    return replace(cost, seconds=cost.seconds + price_s * cost.error**2)
