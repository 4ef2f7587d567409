"""Whole plans: assembled, and improved by their neighbours."""

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import Kernel
from collage.frontend.region import region_values
from collage.pipeline.session import Session
from collage.rules.rule import HOST
from collage.search.function import FunctionSearch, NamedPlan
from collage.search.neighbours import neighbours
from collage.search.problem import Option, Plan
from collage.verify.gate import PlanExecutable

HEAT = 4
"""Neighbours that are measured together."""
PATIENCE = 2
"""Heats without a better plan after which refinement ends."""
HOPELESS = 1.02
"""Neighbours predicted this many times slower than the leader are not tried."""


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
    """Offers neighbours of the leading plan until nothing better is likely, or time is up."""

    def __init__(self, plans: WholePlans, seconds: float) -> None:
        """Start the clock.

        Args:
            plans: those assembled so far; more are added.
            seconds: after which no neighbour is offered.
        """
        self._plans = plans
        self._deadline = time.monotonic() + seconds
        self._tried = {plan.plan.options for plan in plans.named.values()}
        self._leader = ""
        self._waiting: list[Plan] = []
        self._in_vain = 0

    def next_heat(self, leader: str) -> list[PlanExecutable]:
        """Assemble the next neighbours of the plan that leads now; none ends the refinement."""
        if leader == self._leader:
            self._in_vain += 1
        else:
            self._leader, self._in_vain = leader, 0
            self._waiting = self._hopeful(self._plans.named[leader].plan)
        if self._in_vain >= PATIENCE or time.monotonic() >= self._deadline:
            return []
        heat, self._waiting = self._waiting[:HEAT], self._waiting[HEAT:]
        self._tried.update(plan.options for plan in heat)
        first = len(self._plans.named)
        named = [_named(f"refined-{first + place}", plan) for place, plan in enumerate(heat)]
        return [self._plans.assemble(one) for one in named]

    def _hopeful(self, plan: Plan) -> list[Plan]:
        search = self._plans.search
        limit = HOPELESS * plan.predicted_s
        found = neighbours(search.enumerated.problem, search.costs, plan)
        return [one for one in found if one.predicted_s <= limit and one.options not in self._tried]


def _named(name: str, plan: Plan) -> NamedPlan:
    used = [backend for backend in plan.backends if backend != HOST]
    return NamedPlan(name, plan, used[0] if len(used) == 1 else "")
