"""Refinement: better plans from costs that are measured inside complete executables.

The first plans come from isolated costs: each kernel alone, with cold caches. In an executable the same
kernel may cost more or less (`collage.search.in_context`). Refinement alternates between complete plans and
kernel costs. After each comparison round of the gate it

1. profiles up to four plans kernel by kernel: the fastest, the predicted fastest and the best of one
   toolchain, whose kernels may be of other implementations; where that one is the fastest, the second too;
2. replaces the isolated cost of each sampled kernel by its in-context cost, and scales the costs of the
   other kernels by the average ratio of their implementation;
3. proposes the best plans under these costs, the neighbours of the leading plan, and recombinations of the
   best measured plans (`collage.search.recombination`), without those already tried and those that are
   predicted slower than the leading one by more than `MAX_PREDICTED_RATIO`.

Plans in reduced precision have one more step. Where plans exceeded the error budget, the measured errors
calibrate the predicted ones, and the predicted fastest plan below the calibrated limit is tried first.

Refinement ends after `MAX_ROUNDS_WITHOUT_IMPROVEMENT`, when no new plan is promising, or when the time is up.
The machine may be slower or faster in the final round than while costs were measured. The final predictions
are multiplied by a machine speed factor, estimated from another plan of the final round.
"""

import logging
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from collage.errors import MeasureError
from collage.pipeline.plans import WholePlans
from collage.search.error_calibration import ErrorCalibration
from collage.search.function_search import FunctionSearch
from collage.search.graph_launches import predicted_s
from collage.search.in_context import (
    InContextCosts,
    InContextSample,
    in_context_seconds,
    scaled_by_speed,
)
from collage.search.neighbours import neighbours
from collage.search.plan_selection import NamedPlan, select_plans
from collage.search.problem import Option, Plan
from collage.search.recombination import MeasuredPlan, recombinations
from collage.search.reduced_precision import PenalisedPlans, expected_error, with_output_errors
from collage.search.shortest_path import valid_space
from collage.verify import KernelProfile
from collage.verify.accuracy_samples import Errors
from collage.verify.comparison_rounds import RoundResults
from collage.verify.decision import Decision
from collage.verify.interleaved_benchmark import normalised_latencies
from collage.verify.plan_executable import PlanExecutable

log = logging.getLogger(__name__)

PLANS_PER_ROUND = 4
"""Plans that are proposed together."""
BEST_PLANS = 4
"""Additive-best plans among the proposals."""
MAX_ROUNDS_WITHOUT_IMPROVEMENT = 2
"""Rounds with the same leading plan after which refinement ends."""
MAX_PREDICTED_RATIO = 1.02
"""A plan is promising up to this ratio of its predicted latency to that of the leading plan."""
RECOMBINED_PLANS = 6
"""Fastest profiled plans, whose parts are recombined."""
MAX_WITHIN_BUDGET = 4
"""Plans that are tried at most in search of the fastest one within the error budget."""


class Refinement:
    """Proposes plans that may be faster than the leading one, until none is promising or time is up."""

    def __init__(
        self, plans: WholePlans, seconds: float, samples: Sequence[InContextSample] = ()
    ) -> None:
        """Start with the assembled plans.

        Args:
            plans: assembled plans; proposals are added to them.
            seconds: time limit in seconds, counted from the first proposal; 0 proposes nothing.
            samples: in-context samples of an earlier run, default none.
        """
        self.in_context = InContextCosts(
            plans.search.enumerated.problem, plans.search.costs, [*samples]
        )
        self._plans = plans
        self._seconds = seconds
        self._deadline: float | None = None
        self._within_budget = 0
        self._tried = {plan.plan.options for plan in plans.named.values()}
        self._profiles: dict[str, KernelProfile] = {}
        self._parents: list[MeasuredPlan] = []
        self._rounds: list[dict[str, float]] = []
        self._leader = ""
        self._rounds_without_improvement = 0
        self._update_costs()

    def propose_plans(self, results: RoundResults) -> list[PlanExecutable]:
        """Assemble the plans of the next round, given the results of the last; none ends refinement."""
        if not self._seconds:
            return []
        self._profile_round(results)
        leader = next(iter(results.latencies))
        calibration = self._calibration(results.errors)
        limit = calibration.limit() if calibration else None
        below = calibration.next_below() if calibration else 0.0
        if limit and (plan := self._plan_within(limit, leader) or self._plan_within(below, leader)):
            self._tried.add(plan.options)
            self._within_budget += 1
            return [self._plans.assemble(NamedPlan.of(f"within-{self._within_budget}", plan))]
        return self._next_round(leader, math.inf if limit is None else limit)

    def speed_factor(self, decision: Decision) -> float:
        """Return the machine speed factor: measured by predicted latency in the final round.

        The estimate uses plans whose kernels were sampled: their costs add up to the latency of the last
        round, so a difference is due to the machine. Among them those count that spend most of their time
        (rounded to a tenth) in kernels of the chosen plan, since interference from other guests does not
        slow down all kernels alike (memory bandwidth, cores that move apart). The chosen plan itself does
        not count: its prediction is compared with the same measurement. The original file has no kernel in
        common with other plans. Without an estimate the factor is 1.
        """
        if decision.chosen.name not in self._plans.named:
            return 1.0
        chosen = {option.key for option in self._plan(decision.chosen.name).options}
        factors: dict[float, list[float]] = defaultdict(list)
        for name in decision.finalists:
            plan = self._plan(name)
            if name != decision.chosen.name and self.in_context.is_sampled(plan):
                plan_s = self._predicted_s(plan)
                shared_s = sum(
                    self._costs[option.key].seconds
                    for option in plan.options
                    if option.key in chosen
                )
                factors[round(shared_s / plan_s, 1)].append(
                    decision.latencies[name].seconds / plan_s
                )
        return statistics.median(factors[max(factors)]) if factors else 1.0

    def updated_search(self, speed_factor: float = 1.0) -> FunctionSearch:
        """Return the search with in-context costs and all tried plans, predicted with these.

        Args:
            speed_factor: machine speed factor that multiplies all costs, default 1.
        """
        search, costs = self._plans.search, scaled_by_speed(self._costs, speed_factor)
        problem = search.enumerated.problem
        named = [
            replace(
                entry, plan=replace(entry.plan, predicted_s=predicted_s(problem, costs, entry.plan))
            )
            for entry in self._plans.named.values()
        ]
        return replace(search, costs=costs, plans=tuple(named))

    def _profile_round(self, results: RoundResults) -> None:
        """Profile the fastest plan, the predicted fastest and the best of one toolchain; update costs.

        Where the best of one toolchain is the fastest, the second plan is profiled too: `speed_factor`
        needs a sampled plan besides the chosen one.
        """
        order = list(results.latencies)
        predicted_fastest = min(order, key=lambda name: self._predicted_s(self._plan(name)))
        single = next((name for name in order if self._plans.named[name].single), order[0])
        leading = order[:2] if single == order[0] else order[:1]
        for name in dict.fromkeys((*leading, predicted_fastest, single)):
            if name not in self._profiles:
                try:
                    self._profiles[name] = results.profile(name)
                except MeasureError as error:
                    # Kernels on a GPU cannot be timed inside an executable.
                    log.debug("the kernels of %s are not timed: %s", name, error)
        self._rounds.append({name: latency.seconds for name, latency in results.latencies.items()})
        latencies_s = normalised_latencies(self._rounds)
        self.in_context.samples.clear()
        for name, profile in self._profiles.items():
            kernels_s = self._plans.by_position(name, profile.kernels_s)
            self.in_context.add(self._plan(name), kernels_s, profile.call_s, latencies_s[name])
        timed = sorted(self._profiles or order, key=lambda name: (latencies_s[name], name))
        self._parents = [
            self._measured_plan(name, latencies_s[name]) for name in timed[:RECOMBINED_PLANS]
        ]
        self._update_costs()

    def _measured_plan(self, name: str, latency_s: float) -> MeasuredPlan:
        """Return a plan with the times of its kernels; without times where kernels cannot be timed."""
        if name not in self._profiles:
            return MeasuredPlan(self._plan(name), {})
        profile = self._profiles[name]
        kernels_s = self._plans.by_position(name, profile.kernels_s)
        return MeasuredPlan(
            self._plan(name), in_context_seconds(kernels_s, profile.call_s, latency_s)
        )

    def _update_costs(self) -> None:
        """Compute in-context costs and, under an error budget, the plans by their errors."""
        search = self._plans.search
        problem = search.enumerated.problem
        self._costs = self._error_costs = self.in_context.corrected()
        self._plans_by_error: PenalisedPlans | None = None
        if search.errors and self._seconds:
            self._error_costs = with_output_errors(problem, self._costs, search.errors.sensitivity)
            space = valid_space(problem, self._error_costs)
            self._plans_by_error = PenalisedPlans.of(space, self._error_costs)

    def _plan(self, name: str) -> Plan:
        return self._plans.named[name].plan

    def _predicted_s(self, plan: Plan) -> float:
        return predicted_s(self._plans.search.enumerated.problem, self._costs, plan)

    def _calibration(self, errors: Mapping[str, Errors]) -> ErrorCalibration | None:
        """Compare measured with predicted errors; None where reduced precision is not allowed."""
        if self._plans.search.errors is None:
            return None
        calibration = ErrorCalibration(self._plans.search.errors.tolerance)
        for name, named in self._plans.named.items():
            if named.plan.reduced and name in errors:
                expected = expected_error(named.plan, self._error_costs)
                calibration.add(expected, max(errors[name].values(), default=0.0))
        return calibration

    def _plan_within(self, limit: float, leader: str) -> Plan | None:
        """Return the predicted fastest plan with an error up to `limit`; None where it is not worth a try."""
        if self._plans_by_error is None or self._within_budget >= MAX_WITHIN_BUDGET:
            return None
        _, plan = self._plans_by_error.within(limit)
        is_new = plan.reduced and plan.options not in self._tried
        return plan if is_new and self._is_promising(plan, leader) else None

    def _is_promising(self, plan: Plan, leader: str) -> bool:
        limit_s = MAX_PREDICTED_RATIO * self._predicted_s(self._plan(leader))
        return self._predicted_s(plan) <= limit_s

    def _recombined(self, leader: str) -> list[Plan]:
        """Return the promising recombinations, predicted by the parts of their measured parents."""
        problem = self._plans.search.enumerated.problem
        limit_s = MAX_PREDICTED_RATIO * self._predicted_s(self._plan(leader))
        children = recombinations(problem, self._costs, self._parents)
        return [child for child in children if child.predicted_s <= limit_s]

    def _next_round(self, leader: str, error_limit: float) -> list[PlanExecutable]:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._seconds
        is_same = leader == self._leader
        self._rounds_without_improvement = self._rounds_without_improvement + 1 if is_same else 0
        self._leader = leader
        if (
            self._rounds_without_improvement >= MAX_ROUNDS_WITHOUT_IMPROVEMENT
            or time.monotonic() >= self._deadline
        ):
            return []
        plans = self._promising_plans(leader, error_limit)[:PLANS_PER_ROUND]
        self._tried.update(plan.options for plan in plans)
        first = len(self._plans.named)
        return [
            self._plans.assemble(named)
            for named in [
                NamedPlan.of(f"refined-{number}", plan) for number, plan in enumerate(plans, first)
            ]
        ]

    def _promising_plans(self, leader: str, error_limit: float) -> list[Plan]:
        """Return untried plans that may be faster than the leading one, the predicted fastest first."""
        search = self._plans.search
        problem = search.enumerated.problem
        best = select_plans(problem, self._costs, BEST_PLANS, search.errors)
        near = neighbours(problem, self._costs, self._plan(leader))
        candidates: dict[tuple[Option, ...], Plan] = {}
        for plan in (*(named.plan for named in best), *near):
            if self._is_promising(plan, leader):
                candidates[plan.options] = replace(plan, predicted_s=self._predicted_s(plan))
        # Parts that were measured together predict better than the sum of their kernels' costs.
        candidates |= {plan.options: plan for plan in self._recombined(leader)}
        promising = [
            plan
            for options, plan in candidates.items()
            if options not in self._tried and expected_error(plan, self._error_costs) <= error_limit
        ]
        return sorted(promising, key=lambda plan: plan.predicted_s)
