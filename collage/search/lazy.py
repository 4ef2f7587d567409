"""Lazy search: measure only options that can belong to the best plan.

Unknown costs have an optimistic estimate. Each round finds the best plan under it, measures the plan's
unmeasured options as one batch, updates the estimator, and searches again, until the best plan is fully
measured. An option is never measured if its best plan is no faster than the best measured plan even by the
estimate. If every estimate is a true lower bound, the result is the optimum of all costs: the last optimistic
plan is a lower bound of every plan and is itself measured. Estimates above the true cost by e seconds per
option can hide plans that are better by at most e times the number of their unmeasured options.

A batch is filled with options of the next best plans (by ascending weight of the best plan with the option),
so that several workers stay busy.

The clock and the measurements are injected.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from collage.cost.cost import Cost
from collage.search.bounds import LowerBounds, NoBounds
from collage.search.estimate import Estimator
from collage.search.explain import weights_through
from collage.search.problem import UNKNOWN, Costs, Option, Plan, Problem
from collage.search.shortest_path import (
    Weight,
    gap_s,
    make_plan,
    option_weight,
    remaining_weights,
    seconds_of,
    walk,
)
from collage.search.state_space import build_state_space
from collage.search.uncovered import no_cover

LEAST_IMPROVEMENT = 3e-3
"""Smallest improvement of the best plan that counts, as a share of its seconds. Less is mostly chance: costs
scatter by some per cent, and of many measured costs some are low."""

Measure = Callable[[Sequence[Hashable]], Mapping[Hashable, Cost]]
"""Measures a batch of keys; a key without a cost in the answer is not measured again."""


@dataclass(frozen=True)
class SearchBudget:
    """Limits of a lazy search; they apply once one plan is fully measured.

    Attributes:
        seconds: time limit from the start of the search, in seconds of `clock`; None for no limit.
        measurements: largest number of measured keys, seeds included; None for no limit.
        without_improvement: largest number of keys measured after the batch of the last improvement by
            `LEAST_IMPROVEMENT`; None for no limit.
        clock: monotonic clock, in seconds; required with `seconds`.
    """

    seconds: float | None = None
    measurements: int | None = None
    without_improvement: int | None = None
    clock: Callable[[], float] = field(default=lambda: 0.0)


@dataclass(frozen=True, slots=True)
class Round:
    """State after one batch.

    Attributes:
        batch: number of keys in the batch.
        optimistic_s: predicted seconds of the best plan with estimates, +inf without a plan.
        plan_s: seconds of the best measured plan, +inf until a plan is fully measured.
    """

    batch: int
    optimistic_s: float
    plan_s: float


@dataclass(frozen=True)
class LazyResult:
    """Result of a lazy search.

    Attributes:
        plan: the best fully measured plan.
        costs: all known costs by key, those from the start included.
        rounds: one entry for each batch.
        measured: number of keys measured by this search.
        unmeasured: number of keys still without a cost.
        gap_s: seconds between `plan` and the best optimistic plan; 0 if no plan can be better, provided the
            estimates are lower bounds.
    """

    plan: Plan
    costs: Costs
    rounds: Sequence[Round]
    measured: int
    unmeasured: int
    gap_s: float


def search_lazily(
    problem: Problem,
    measure: Measure,
    *,
    estimator: Estimator,
    bounds: LowerBounds | None = None,
    costs: Costs | None = None,
    seeds: Sequence[Hashable] = (),
    batch_size: int = 1,
    budget: SearchBudget | None = None,
) -> LazyResult:
    """Measure the options that can belong to the best plan, and return this plan; see `LazySearch`.

    An estimate below a lower bound of `bounds` is raised to it; default None, no bounds.
    """
    search = LazySearch(problem, measure, costs or {}, estimator, bounds=bounds or NoBounds())
    return search.run(seeds, batch_size, budget or SearchBudget())


@dataclass
class _LastImprovement:
    """Seconds of the best plan at its last improvement, and the number of keys measured by then."""

    plan_s: float = math.inf
    measured: int = 0

    def measured_since(self, best: Weight | None, measured: int) -> int:
        """Return the number of keys measured since then; `measured` is their number now."""
        if best is None or seconds_of(best) < (1 - LEAST_IMPROVEMENT) * self.plan_s:
            self.plan_s = math.inf if best is None else seconds_of(best)
            self.measured = measured
        return measured - self.measured


class LazySearch:
    """One lazy search: the state space, the known costs, and the estimator."""

    def __init__(
        self,
        problem: Problem,
        measure: Measure,
        costs: Costs,
        estimator: Estimator,
        *,
        bounds: LowerBounds,
    ) -> None:
        self.problem = problem
        self.estimator = estimator
        self.bounds = bounds
        self.costs = {key: cost for key, cost in costs.items() if not cost.is_unknown}
        self.rounds: list[Round] = []
        self.requested: set[Hashable] = set()
        self._measure_keys = measure
        for key in sorted(self.costs, key=repr):
            self._observe(key)
        self.space = build_state_space(problem, lambda option: not self._cost(option).is_invalid)
        self._measured: list[Weight | None] = []
        self._optimistic: list[Weight | None] = []
        self._refresh()

    def run(self, seeds: Sequence[Hashable], batch_size: int, budget: SearchBudget) -> LazyResult:
        """Measure the seeds, then batches of at least `batch_size` keys as long as there are enough.

        A batch is larger if the best plan alone has more unmeasured options. Seeds should contain plans of
        certain validity (one backend each, single nodes), so that the budget can stop the search at any time;
        without a fully measured plan the search continues beyond the budget.

        Raises:
            SearchError: valid options cover no plan.
        """
        deadline = math.inf if budget.seconds is None else budget.clock() + budget.seconds
        batch = [key for key in dict.fromkeys(seeds) if key not in self.costs]
        last_improvement = _LastImprovement()
        max_keys = math.inf if budget.measurements is None else budget.measurements
        patience = math.inf if budget.without_improvement is None else budget.without_improvement
        while True:
            if batch:
                self._measure_batch(batch)
            best, optimistic = self._best_weights()
            if best is not None and (optimistic is None or gap_s(best, optimistic) <= 0):
                break
            without_improvement = last_improvement.measured_since(best, len(self.requested))
            if best is not None and without_improvement >= patience:
                break
            remaining = max_keys - len(self.requested)
            if best is not None and (remaining <= 0 or budget.clock() >= deadline):
                break
            batch = self._next_batch(batch_size, best)
            if best is not None and len(batch) > remaining:
                batch = batch[: int(remaining)]
            if not batch:
                break
        return self._result()

    def _cost(self, option: Option) -> Cost:
        return self.costs.get(option.key, UNKNOWN)

    def _measure_batch(self, batch: Sequence[Hashable]) -> None:
        answers = self._measure_keys(batch)
        self.requested.update(batch)
        for key in batch:
            cost = answers.get(key, UNKNOWN)
            if not cost.is_unknown:
                self.costs[key] = cost
                self._observe(key)
        self._refresh()
        best, optimistic = self._best_weights()
        self.rounds.append(
            Round(
                len(batch),
                math.inf if optimistic is None else seconds_of(optimistic),
                math.inf if best is None else seconds_of(best),
            )
        )

    def _observe(self, key: Hashable) -> None:
        for option in self.problem.options_of(key)[:1]:
            self.estimator.observe(option, self.costs[key])
            self.bounds.observe(option, self.costs[key])

    def _refresh(self) -> None:
        """Recompute the least weights with measured costs only, and with estimates for unmeasured options."""
        options = self.space.options
        measured = [self._measured_s(option) for option in options]
        optimistic = [
            self._optimistic_s(option) if seconds is None else seconds
            for option, seconds in zip(options, measured, strict=True)
        ]
        self._measured = self._weights(measured)
        self._optimistic = self._weights(optimistic)
        self._measured_remaining = remaining_weights(self.space, self._measured)
        self._optimistic_remaining = remaining_weights(self.space, self._optimistic)

    def _weights(self, seconds: Sequence[float | None]) -> list[Weight | None]:
        pairs = zip(self.space.options, seconds, strict=True)
        return [
            option_weight(self.problem, option, option_seconds) for option, option_seconds in pairs
        ]

    def _measured_s(self, option: Option) -> float | None:
        cost = self._cost(option)
        return cost.seconds if cost.is_valid else None

    def _optimistic_s(self, option: Option) -> float | None:
        if option.key in self.costs or option.key in self.requested:
            return None
        return max(self.estimator.estimate(option), self.bounds.bound_s(option))

    def _best_weights(self) -> tuple[Weight | None, Weight | None]:
        if self._optimistic_remaining[0] is None:
            space = build_state_space(self.problem, lambda option: self._cost(option).is_valid)
            raise no_cover(space, self.costs)
        return self._measured_remaining[0], self._optimistic_remaining[0]

    def _next_batch(self, size: int, best: Weight | None) -> list[Hashable]:
        """Return the unmeasured keys of the best optimistic plan, then those of the next best plans."""
        plan = walk(self.space, self._optimistic, self._optimistic_remaining)
        batch = dict.fromkeys(option.key for option in plan if option.key not in self.costs)
        through = weights_through(self.space, self._optimistic, self._optimistic_remaining)
        order = sorted(
            (weight, number)
            for number, weight in enumerate(through)
            if weight is not None and (best is None or gap_s(best, weight) > 0)
        )
        for _, number in order:
            if len(batch) >= size:
                break
            key = self.space.options[number].key
            if key not in self.costs:
                batch[key] = None
        return list(batch)

    def _result(self) -> LazyResult:
        best, optimistic = self._best_weights()
        if best is None or optimistic is None:
            raise AssertionError("the search ends with a measured plan")
        chosen = walk(self.space, self._measured, self._measured_remaining)
        gap = max(0.0, gap_s(best, optimistic))
        keys = {option.key for option in self.problem.ordered}
        return LazyResult(
            plan=make_plan(self.problem, chosen, seconds_of(best)),
            costs=self.costs,
            rounds=tuple(self.rounds),
            measured=len(self.requested),
            unmeasured=len(keys - self.costs.keys()),
            gap_s=gap,
        )
