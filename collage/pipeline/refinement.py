"""The second level: plans that were measured whole teach what kernels cost in place, and better ones follow.

The first plans come from costs of kernels alone. After every heat the fastest plan, the one that was
thought to be the fastest, and the fastest of one toolchain (whose kernels may be of other kinds) are
timed kernel by kernel inside their executables; that corrects the costs (`collage.search.in_context`). The
best plans by the corrected costs, with neighbours of the leading one, are the next heat. It ends when
heats bring nothing faster, when there is nothing new to try, or when time is up. What is predicted in the
end is told at the pace that the machine had in the last comparison, as the plan in it tells that is most
like the chosen one.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from collage.errors import MeasureError
from collage.pipeline.plans import WholePlans
from collage.search.error_calibration import Calibration
from collage.search.function_search import FunctionSearch
from collage.search.graph_launches import predicted_s
from collage.search.in_context import InPlace, Sighting, at_pace
from collage.search.neighbours import neighbours
from collage.search.plan_selection import NamedPlan, worth_assembling
from collage.search.problem import Plan
from collage.search.reduced_precision import PricedPlans, expected_error, weighed
from collage.search.shortest_path import valid_space
from collage.verify import KernelProfile
from collage.verify.accuracy_samples import Errors
from collage.verify.comparison_rounds import Standings
from collage.verify.gate import Decision
from collage.verify.interleaved_benchmark import at_one_pace
from collage.verify.plan_executable import PlanExecutable

HEAT = 4
"""Plans that are measured together."""
BEST = 4
"""Additive best plans among those that may be tried."""
PATIENCE = 2
"""Heats without a better plan after which refinement ends."""
HOPELESS = 1.02
"""Plans predicted this many times slower than the leader are not tried."""
TIGHTENED = 4
"""Plans that are tried at most in search of the fastest one within the error budget."""


class Refinement:
    """Offers plans that may be faster than the leading one until none is likely, or time is up.

    Before them, where plans were beyond an error budget, it offers the fastest ones that may be within.
    """

    def __init__(self, plans: WholePlans, seconds: float, seen: Sequence[Sighting] = ()) -> None:
        """Remember what has been tried.

        Args:
            plans: those assembled so far; more are added.
            seconds: after which no plan is offered, from the first one on; 0 offers nothing.
            seen: of kernels in place, by an earlier refinement.
        """
        self.in_place = InPlace(plans.search.enumerated.problem, plans.search.costs, [*seen])
        self._plans = plans
        self._seconds = seconds
        self._deadline: float | None = None
        self._tightened = 0
        self._tried = {plan.plan.options for plan in plans.named.values()}
        self._profiles: dict[str, KernelProfile] = {}
        self._heats: list[dict[str, float]] = []
        self._leader = ""
        self._in_vain = 0
        self._correct()

    def next_heat(self, standings: Standings) -> list[PlanExecutable]:
        """Assemble the next plans, given how those so far stand; none ends the refinement."""
        if not self._seconds:
            return []
        self._learn(standings)
        leader = next(iter(standings.latencies))
        calibration = self._calibration(standings.errors)
        limit = calibration.limit() if calibration else None
        below = calibration.next_below() if calibration else 0.0
        if limit and (plan := self._within(limit, leader) or self._within(below, leader)):
            self._tried.add(plan.options)
            self._tightened += 1
            return [self._plans.assemble(NamedPlan.of(f"within-{self._tightened}", plan))]
        return self._hopeful_heat(leader, math.inf if limit is None else limit)

    def pace(self, decision: Decision) -> float:
        """Return how many times as long as predicted plans took in the last comparison; 1 where none tells.

        A plan tells whose kernels were seen in place, since those costs add up to what the plan took in the
        last heat: what it takes now is the machine's doing. Those tell that spend most of their time (to a
        tenth) in kernels of the chosen plan, since a machine need not slow down all kinds alike: other guests
        take memory's bandwidth, or cores are moved away from each other. The chosen plan has no say, since
        its prediction is held against the same comparison. The original file has no kernel in common with
        the others.
        """
        if decision.chosen.name not in self._plans.named:
            return 1.0
        chosen = {option.key for option in self._plan(decision.chosen.name).options}
        told: dict[float, list[float]] = defaultdict(list)
        for name in decision.finalists:
            plan = self._plan(name)
            if name != decision.chosen.name and self.in_place.knows(plan):
                usual_s = self._predicted_s(plan)
                alike_s = sum(
                    self._costs[one.key].seconds for one in plan.options if one.key in chosen
                )
                told[round(alike_s / usual_s, 1)].append(decision.latencies[name].seconds / usual_s)
        return statistics.median(told[max(told)]) if told else 1.0

    def learnt(self, pace: float = 1.0) -> FunctionSearch:
        """Return the search with the costs in place, and all plans that were tried, predicted with these.

        Args:
            pace: how many times as long everything takes as it did then.
        """
        search, costs = self._plans.search, at_pace(self._costs, pace)
        problem = search.enumerated.problem
        named = [
            replace(one, plan=replace(one.plan, predicted_s=predicted_s(problem, costs, one.plan)))
            for one in self._plans.named.values()
        ]
        return replace(search, costs=costs, plans=tuple(named))

    def _learn(self, standings: Standings) -> None:
        """Profile the fastest plan, the one that should have been, and the fastest of one toolchain.

        Where that one is the fastest of all, the next one too, so that `pace` can be told.
        """
        order = list(standings.latencies)
        favourite = min(order, key=lambda name: self._predicted_s(self._plan(name)))
        single = next((name for name in order if self._plans.named[name].single), order[0])
        leading = order[:2] if single == order[0] else order[:1]
        for name in dict.fromkeys((*leading, favourite, single)):
            if name not in self._profiles:
                try:
                    self._profiles[name] = standings.profile(name)
                except MeasureError:
                    continue  # on a GPU kernels cannot be timed in place
        self._heats.append({name: found.seconds for name, found in standings.latencies.items()})
        usual_s = at_one_pace(self._heats)
        self.in_place.seen.clear()
        for name, profile in self._profiles.items():
            kernels_s = self._plans.by_position(name, profile.kernels_s)
            self.in_place.add(self._plan(name), kernels_s, profile.call_s, usual_s[name])
        self._correct()

    def _correct(self) -> None:
        """Price everything with what is known in place."""
        search = self._plans.search
        problem = search.enumerated.problem
        self._costs = self._effects = self.in_place.corrected()
        self._priced: PricedPlans | None = None
        if search.errors and self._seconds:
            self._effects = weighed(problem, self._costs, search.errors.gain)
            self._priced = PricedPlans.of(valid_space(problem, self._effects), self._effects)

    def _plan(self, name: str) -> Plan:
        return self._plans.named[name].plan

    def _predicted_s(self, plan: Plan) -> float:
        return predicted_s(self._plans.search.enumerated.problem, self._costs, plan)

    def _calibration(self, errors: Mapping[str, Errors]) -> Calibration | None:
        """Gather what plans were off by, None where nothing may be reduced."""
        if self._plans.search.errors is None:
            return None
        calibration = Calibration(self._plans.search.errors.tolerance)
        for name, found in self._plans.named.items():
            if found.plan.reduced and name in errors:
                expected = expected_error(found.plan, self._effects)
                calibration.add(expected, max(errors[name].values(), default=0.0))
        return calibration

    def _within(self, limit: float, leader: str) -> Plan | None:
        """Return a plan that may be the fastest within the budget, None when there is none to try."""
        if self._priced is None or self._tightened >= TIGHTENED:
            return None
        _, plan = self._priced.within(limit)
        known = plan.options in self._tried or not plan.reduced
        return None if known or not self._is_hopeful(plan, leader) else plan

    def _is_hopeful(self, plan: Plan, leader: str) -> bool:
        return self._predicted_s(plan) <= HOPELESS * self._predicted_s(self._plan(leader))

    def _hopeful_heat(self, leader: str, limit: float) -> list[PlanExecutable]:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._seconds
        self._in_vain = self._in_vain + 1 if leader == self._leader else 0
        self._leader = leader
        if self._in_vain >= PATIENCE or time.monotonic() >= self._deadline:
            return []
        heat = self._hopeful(leader, limit)[:HEAT]
        self._tried.update(plan.options for plan in heat)
        first = len(self._plans.named)
        named = [NamedPlan.of(f"refined-{first + place}", plan) for place, plan in enumerate(heat)]
        return [self._plans.assemble(one) for one in named]

    def _hopeful(self, leader: str, limit: float) -> list[Plan]:
        """Return the plans to try, the best by the costs in place first."""
        search = self._plans.search
        problem = search.enumerated.problem
        best = worth_assembling(problem, self._costs, BEST, search.errors)
        near = neighbours(problem, self._costs, self._plan(leader))
        found = {plan.options: plan for plan in (*(one.plan for one in best), *near)}
        kept = [
            plan
            for options, plan in found.items()
            if options not in self._tried
            and self._is_hopeful(plan, leader)
            and expected_error(plan, self._effects) <= limit
        ]
        return sorted(kept, key=self._predicted_s)
