"""Search that measures only what could matter.

Unknown costs take an optimistic estimate. Each round finds the best plan under it, measures the
unmeasured options of that plan as one batch, learns, and searches again, until the best plan is
fully measured. An option whose best plan is, even so, no faster than the best measured plan is never
measured. When every estimate is a true lower bound the result is the optimum of all costs: the last
optimistic plan is then a lower bound of every plan and is itself measured. Estimates that are too
high by e seconds an option can hide plans that are better by at most e times their unmeasured
options.

A batch is filled beyond the best plan's options with those of the next best plans (options by
ascending weight of the best plan that uses them), so that several workers stay busy.

The module reads no clock and measures nothing: both are injected.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from collage.cost.cost import Cost
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

LEAST_GAIN = 3e-3
"""Share of the best plan's seconds that another one must save to have been worth its measurements. Less
is mostly luck: costs scatter by some per cent, and of many that are measured some come out low."""

Measure = Callable[[Sequence[Hashable]], Mapping[Hashable, Cost]]
"""Measures a batch of keys; a key that is absent or unknown in the answer is not asked for again."""


@dataclass(frozen=True)
class Budget:
    """When to stop measuring; nothing stops before one plan is fully measured.

    Attributes:
        seconds: by `clock`, from the start of the search; None means no limit.
        measurements: number of keys measured, the seeds included; None means no limit.
        in_vain: number of keys measured since the best plan last became faster by `LEAST_GAIN`, the
            batch that made it so not included; None means no limit.
        clock: monotonic seconds; needed with `seconds`.
    """

    seconds: float | None = None
    measurements: int | None = None
    in_vain: int | None = None
    clock: Callable[[], float] = field(default=lambda: 0.0)


@dataclass(frozen=True, slots=True)
class Round:
    """State after one batch; `plan_s` is +inf until a plan is fully measured."""

    asked: int
    optimistic_s: float
    plan_s: float


@dataclass(frozen=True)
class LazyResult:
    """What a lazy search found.

    Attributes:
        plan: the best plan whose options are all measured.
        costs: every known cost by key, given ones included.
        rounds: one entry for each batch.
        measured: keys asked for by this search.
        unmeasured: keys of the problem whose cost is still unknown.
        gap_s: how much faster than `plan` the best optimistic plan is; where it is 0, no plan is better, as
            far as the estimates were lower bounds.
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
    costs: Costs | None = None,
    seeds: Sequence[Hashable] = (),
    batch_size: int = 1,
    budget: Budget | None = None,
) -> LazyResult:
    """Measure what is needed to find the best plan, and return it; see `LazySearch`."""
    search = LazySearch(problem, measure, costs or {}, estimator)
    return search.run(seeds, batch_size, budget or Budget())


@dataclass
class _LastGain:
    """The best plan when it last became faster by enough, and what had been measured by then."""

    plan_s: float = math.inf
    measured: int = 0

    def measured_since(self, best: Weight | None, measured: int) -> int:
        """Return how much was measured since; `measured` keys were by now."""
        if best is None or seconds_of(best) < (1 - LEAST_GAIN) * self.plan_s:
            self.plan_s = math.inf if best is None else seconds_of(best)
            self.measured = measured
        return measured - self.measured


class LazySearch:
    """One search: the state space, the costs known so far, and the estimator."""

    def __init__(
        self, problem: Problem, measure: Measure, costs: Costs, estimator: Estimator
    ) -> None:
        self.problem = problem
        self.estimator = estimator
        self.costs = {key: cost for key, cost in costs.items() if not cost.is_unknown}
        self.rounds: list[Round] = []
        self.asked: set[Hashable] = set()
        self._measure = measure
        for key in sorted(self.costs, key=repr):
            self._observe(key)
        self.space = build_state_space(problem, lambda option: not self._cost(option).is_invalid)
        self._known: list[Weight | None] = []
        self._hoped: list[Weight | None] = []
        self._refresh()

    def run(self, seeds: Sequence[Hashable], batch_size: int, budget: Budget) -> LazyResult:
        """Measure the seeds, then batches of at least `batch_size` keys where there are as many.

        The batch is larger when the best plan alone has more unmeasured options. Seeds should
        hold plans that certainly work (one backend each, single nodes), so that a budget can stop the
        search at any time; until a plan is fully measured, the search goes on beyond the budget.

        Raises:
            SearchError: no plan consists of valid options.
        """
        deadline = math.inf if budget.seconds is None else budget.clock() + budget.seconds
        batch = [key for key in dict.fromkeys(seeds) if key not in self.costs]
        gain = _LastGain()
        while True:
            if batch:
                self._ask(batch)
            best, hoped = self._best_s()
            if best is not None and (hoped is None or gap_s(best, hoped) <= 0):
                break
            in_vain = gain.measured_since(best, len(self.asked))
            if best is not None and budget.in_vain is not None and in_vain >= budget.in_vain:
                break
            left = (
                math.inf if budget.measurements is None else budget.measurements - len(self.asked)
            )
            if best is not None and (left <= 0 or budget.clock() >= deadline):
                break
            batch = self._next_batch(batch_size, best)
            if best is not None and len(batch) > left:
                batch = batch[: int(left)]
            if not batch:
                break
        return self._result()

    def _cost(self, option: Option) -> Cost:
        return self.costs.get(option.key, UNKNOWN)

    def _ask(self, batch: Sequence[Hashable]) -> None:
        found = self._measure(batch)
        self.asked.update(batch)
        for key in batch:
            cost = found.get(key, UNKNOWN)
            if not cost.is_unknown:
                self.costs[key] = cost
                self._observe(key)
        self._refresh()
        best, hoped = self._best_s()
        self.rounds.append(
            Round(
                len(batch),
                math.inf if hoped is None else seconds_of(hoped),
                math.inf if best is None else seconds_of(best),
            )
        )

    def _observe(self, key: Hashable) -> None:
        for option in self.problem.options_of(key)[:1]:
            self.estimator.observe(option, self.costs[key])

    def _refresh(self) -> None:
        """Recompute the least weights with measured costs alone, and with estimates for the rest."""
        options = self.space.options
        known = [self._known_s(option) for option in options]
        hoped = [
            self._hoped_s(option) if seconds is None else seconds
            for option, seconds in zip(options, known, strict=True)
        ]
        self._known = self._weights(known)
        self._hoped = self._weights(hoped)
        self._known_rest = remaining_weights(self.space, self._known)
        self._hoped_rest = remaining_weights(self.space, self._hoped)

    def _weights(self, seconds: Sequence[float | None]) -> list[Weight | None]:
        pairs = zip(self.space.options, seconds, strict=True)
        return [option_weight(self.problem, option, value) for option, value in pairs]

    def _known_s(self, option: Option) -> float | None:
        cost = self._cost(option)
        return cost.seconds if cost.is_valid else None

    def _hoped_s(self, option: Option) -> float | None:
        if option.key in self.costs or option.key in self.asked:
            return None
        return self.estimator.estimate(option)

    def _best_s(self) -> tuple[Weight | None, Weight | None]:
        if self._hoped_rest[0] is None:
            space = build_state_space(self.problem, lambda option: self._cost(option).is_valid)
            raise no_cover(space, self.costs)
        return self._known_rest[0], self._hoped_rest[0]

    def _next_batch(self, size: int, best: Weight | None) -> list[Hashable]:
        """Return the unmeasured keys of the best optimistic plan, then those of the next best."""
        plan = walk(self.space, self._hoped, self._hoped_rest)
        batch = dict.fromkeys(option.key for option in plan if option.key not in self.costs)
        through = weights_through(self.space, self._hoped, self._hoped_rest)
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
        best, hoped = self._best_s()
        if best is None or hoped is None:
            raise AssertionError("the search ends with a measured plan")
        chosen = walk(self.space, self._known, self._known_rest)
        gap = max(0.0, gap_s(best, hoped))
        keys = {option.key for option in self.problem.ordered}
        return LazyResult(
            plan=make_plan(self.problem, chosen, seconds_of(best)),
            costs=self.costs,
            rounds=tuple(self.rounds),
            measured=len(self.asked),
            unmeasured=len(keys - self.costs.keys()),
            gap_s=gap,
        )
