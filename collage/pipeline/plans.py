"""Whole plans: assembled, and improved by their neighbours."""

import math
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import Kernel
from collage.frontend.region import region_values
from collage.pipeline.session import Session
from collage.rules.rule import HOST
from collage.search.function import FunctionSearch
from collage.search.neighbours import neighbours
from collage.search.problem import Option, Plan
from collage.search.reduced import Calibration, PricedPlans, expected_error, weighed
from collage.search.shortest_path import valid_space
from collage.search.worth import NamedPlan
from collage.verify.gate import PlanExecutable
from collage.verify.trials import Errors

HEAT = 4
"""Neighbours that are measured together."""
PATIENCE = 2
"""Heats without a better plan after which refinement ends."""
HOPELESS = 1.02
"""Plans predicted this many times slower than the leader are not tried."""
TIGHTENED = 4
"""Plans that are tried at most in search of the fastest one within the error budget."""


@dataclass
class WholePlans:
    """The plans of one function with their executables; a kernel is compiled once for all."""

    search: FunctionSearch
    session: Session
    named: dict[str, NamedPlan] = field(default_factory=dict)
    kernels: dict[str, FunctionPlan] = field(default_factory=dict)
    _compiled: dict[Hashable, Kernel] = field(default_factory=dict)

    def assemble(self, plan: NamedPlan) -> PlanExecutable:
        """Write the executable of one plan."""
        function = self.search.enumerated.function
        file = self.session.work_dir / f"{function.name}-{plan.name}.so"
        self.named[plan.name] = plan
        self.kernels[plan.name] = self._kernels(plan.plan)
        device, graphs = self.session.options.device, self.session.options.cuda_graphs
        assemble([self.kernels[plan.name]], self.session.threads, file, device, graphs)
        return PlanExecutable(
            plan.name, file, plan.plan.predicted_s, plan.single, plan.plan.reduced, device
        )

    def fresh(self) -> list[NamedPlan]:
        """Return the plans of the search that were not assembled yet."""
        known = {one.plan.options for one in self.named.values()}
        return [
            replace(one, name=one.name if one.name not in self.named else f"{one.name}-now")
            for one in self.search.plans
            if one.plan.options not in known
        ]

    def _kernels(self, plan: Plan) -> FunctionPlan:
        function = self.search.enumerated.function
        planned = []
        for option in plan.options:
            inputs, outputs = region_values(function, option.nodes)
            kernel = None if option.backend == HOST else self._kernel(option)
            planned.append(PlannedKernel(option.nodes, option.backend, kernel, inputs, outputs))
        return FunctionPlan(function, tuple(planned))

    def _kernel(self, option: Option) -> Kernel:
        enumerated = self.search.enumerated
        variant = enumerated.work[option.key].variant
        key = (option.nodes, option.backend, variant)
        if key not in self._compiled:
            backend = next(b for b in self.session.backends if b.name == option.backend)
            self._compiled[key] = backend.compile(
                enumerated.function, option.nodes, self.session.threads, variant
            )
        return self._compiled[key]


class Refinement:
    """Offers neighbours of the leading plan until nothing better is likely, or time is up.

    Before them, where plans were beyond an error budget, it offers the fastest ones that may be within.
    """

    def __init__(self, plans: WholePlans, seconds: float) -> None:
        """Remember what has been tried.

        Args:
            plans: those assembled so far; more are added.
            seconds: after which no neighbour is offered, from the first one on; 0 offers nothing.
        """
        self._plans = plans
        self._seconds = seconds
        self._deadline: float | None = None
        self._effects = dict(plans.search.costs)
        self._priced: PricedPlans | None = None
        if (errors := plans.search.errors) and seconds:
            problem = plans.search.enumerated.problem
            self._effects = weighed(problem, plans.search.costs, errors.gain)
            self._priced = PricedPlans.of(valid_space(problem, self._effects), self._effects)
        self._tightened = 0
        self._tried = {plan.plan.options for plan in plans.named.values()}
        self._leader = ""
        self._waiting: list[Plan] = []
        self._in_vain = 0

    def next_heat(self, leader: str, errors: Mapping[str, Errors]) -> list[PlanExecutable]:
        """Assemble the next plans, given who leads and the errors so far; none ends the refinement."""
        if not self._seconds:
            return []
        calibration = self._calibration(errors)
        limit = calibration.limit() if calibration else None
        below = calibration.next_below() if calibration else 0.0
        if limit and (plan := self._within(limit, leader) or self._within(below, leader)):
            self._tried.add(plan.options)
            self._tightened += 1
            return [self._plans.assemble(_named(f"within-{self._tightened}", plan))]
        return self._neighbours(leader, math.inf if limit is None else limit)

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
        hopeless_s = HOPELESS * self._plans.named[leader].plan.predicted_s
        known = plan.options in self._tried or not plan.reduced
        return None if known or plan.predicted_s > hopeless_s else plan

    def _neighbours(self, leader: str, limit: float) -> list[PlanExecutable]:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._seconds
        if leader == self._leader:
            self._in_vain += 1
        else:
            self._leader, self._in_vain = leader, 0
            self._waiting = self._hopeful(self._plans.named[leader].plan, limit)
        if self._in_vain >= PATIENCE or time.monotonic() >= self._deadline:
            return []
        heat, self._waiting = self._waiting[:HEAT], self._waiting[HEAT:]
        self._tried.update(plan.options for plan in heat)
        first = len(self._plans.named)
        named = [_named(f"refined-{first + place}", plan) for place, plan in enumerate(heat)]
        return [self._plans.assemble(one) for one in named]

    def _hopeful(self, plan: Plan, limit: float) -> list[Plan]:
        search = self._plans.search
        slowest_s = HOPELESS * plan.predicted_s
        return [
            one
            for one in neighbours(search.enumerated.problem, search.costs, plan)
            if one.predicted_s <= slowest_s
            and one.options not in self._tried
            and expected_error(one, self._effects) <= limit
        ]


def _named(name: str, plan: Plan) -> NamedPlan:
    used = [backend for backend in plan.backends if backend != HOST]
    return NamedPlan(name, plan, used[0] if len(used) == 1 else "")
