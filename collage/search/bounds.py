"""Lower bounds of unmeasured costs: what no kernel beats at this machine's highest rates (the roofline).

A kernel reads its inputs and weights, writes its outputs, and computes its products. Probes measure how
fast the machine does either at most (`measure.peaks`); every measured kernel that was faster raises these
rates. So a bound is as provable as the rates: no kernel that ran here was below its own.

Bounds enter the search as bounds: an estimate below one is raised to it. Beyond that they say how far the
best measured plan can be from the optimum of the additive model (`bounded_optimum`): where even the bounds
of everything unmeasured give no faster plan, the plan is proven.

No bound is claimed where a rate would not hold: for FLOP of algorithms with savings, of reduced precision,
of quantised regions and on a GPU (tensor cores), and for the traffic of reduced precision.
"""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol

from collage.cost import Cost
from collage.frontend.model import Function
from collage.frontend.region import region_bytes_and_flops
from collage.graph.index_set import IndexSet
from collage.graph.quantisation import is_quantised
from collage.measure.peaks import Peaks, highest
from collage.rules.rule import HOST
from collage.search.problem import UNKNOWN, Costs, Option, Problem
from collage.search.shortest_path import least_plan
from collage.search.state_space import build_state_space


class LowerBounds(Protocol):
    """Bounds the seconds of unmeasured options from below, and learns from measured ones."""

    def bound_s(self, option: Option) -> float:
        """Return a lower bound of the option's cost in seconds, without the boundary cost."""
        ...

    def observe(self, option: Option, cost: Cost) -> None:
        """Learn from a measured cost."""
        ...


class NoBounds:
    """The bounds of a machine with unknown rates: 0."""

    def bound_s(self, option: Option) -> float:
        return 0.0

    def observe(self, option: Option, cost: Cost) -> None:
        pass


class RooflineBounds:
    """Bounds by the traffic and the products of a region, at the highest rates of the machine."""

    def __init__(
        self,
        function: Function,
        peaks: Peaks,
        *,
        algorithmic_savings: Collection[str] = (),
        bounds_flops: bool = True,
    ) -> None:
        """Start with the measured peaks.

        Args:
            function: function of the options.
            peaks: highest rates so far.
            algorithmic_savings: names of backends with algorithmic savings.
            bounds_flops: whether the FLOP rate holds for exact kernels; False on a GPU.
        """
        self.peaks = peaks
        self._function = function
        self._algorithmic_savings = frozenset(algorithmic_savings)
        self._bounds_flops = bounds_flops
        self._work: dict[IndexSet, tuple[int, int]] = {}

    def bound_s(self, option: Option) -> float:
        if option.backend == HOST or option.reduced:
            return 0.0
        return self.peaks.bound_s(*self._bytes_and_flops(option))

    def observe(self, option: Option, cost: Cost) -> None:
        """Raise the peaks to the rates of a measured kernel."""
        if not cost.is_valid or cost.seconds <= 0 or option.backend == HOST or option.reduced:
            return
        moved, flops = self._bytes_and_flops(option)
        self.peaks = highest(self.peaks, Peaks(flops / cost.seconds, moved / cost.seconds, 0.0))

    def _bytes_and_flops(self, option: Option) -> tuple[int, int]:
        if option.nodes not in self._work:
            moved, flops = region_bytes_and_flops(self._function, option.nodes)
            quantised = is_quantised(self._function.graph, option.nodes)
            self._work[option.nodes] = moved, 0 if quantised or not self._bounds_flops else flops
        moved, flops = self._work[option.nodes]
        return moved, 0 if option.backend in self._algorithmic_savings else flops


@dataclass(frozen=True)
class BoundedOptimum:
    """How far the best measured plan can be from the optimum of the additive model.

    Attributes:
        plan_s: predicted latency of the best measured plan by isolated costs, in seconds.
        bound_s: lower bound of every plan's latency, with bounds for unmeasured options, in seconds.
        complete: whether all plans were considered; False where they are too many.
    """

    plan_s: float
    bound_s: float
    complete: bool = True

    @property
    def is_proven(self) -> bool:
        """Tell whether no plan of the candidates has a lower sum of costs."""
        return self.complete and self.bound_s >= self.plan_s


def bounded_optimum(problem: Problem, costs: Costs, bounds: LowerBounds) -> BoundedOptimum | None:
    """Return the best measured plan's distance to the optimum; None without a measured plan."""
    observe_costs(problem, costs, bounds)
    space = build_state_space(problem, lambda option: not costs.get(option.key, UNKNOWN).is_invalid)

    def measured_s(option: Option) -> float | None:
        cost = costs.get(option.key, UNKNOWN)
        return cost.seconds if cost.is_valid else None

    def least_s(option: Option) -> float:
        seconds = measured_s(option)
        return bounds.bound_s(option) if seconds is None else seconds

    plan, optimistic = least_plan(space, measured_s), least_plan(space, least_s)
    if plan is None or optimistic is None:
        return None
    return BoundedOptimum(plan.predicted_s, optimistic.predicted_s, space.complete)


def observe_costs(problem: Problem, costs: Costs, bounds: LowerBounds) -> None:
    """Let bounds learn from every measured cost."""
    for option in _one_of_each_key(problem.ordered):
        if option.key in costs:
            bounds.observe(option, costs[option.key])


def _one_of_each_key(options: Iterable[Option]) -> Iterable[Option]:
    by_key: dict[Hashable, Option] = {}
    for option in options:
        by_key.setdefault(option.key, option)
    return by_key.values()
