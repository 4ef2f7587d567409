"""Plan selection: the plans of one function to assemble and compare whole.

The selection contains the whole function on one backend, the best plans by the additive model (with the
preferred backend where costs tie, `collage.search.ties`), the best plans with a penalty for each boundary
(errors of the additive model grow with the number of boundaries), and for each backend its best plan alone
and its best plan with as few regions as possible. Where regions may compute in less than float32, the
selection adds the best plans without them and, under an error budget, plans with lower and lower expected
error (`collage.search.reduced_precision`).
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from collage.cost import Cost
from collage.rules.rule import HOST
from collage.search.graph_launches import has_two_spaces, is_captured, launched_costs, predicted_s
from collage.search.k_best import least_plans
from collage.search.problem import Costs, Option, Plan, Problem
from collage.search.reduced_precision import (
    SLACK,
    ErrorBudget,
    PenalisedPlans,
    expected_error,
    lower_error_plans,
    with_output_errors,
)
from collage.search.shortest_path import (
    is_measured,
    least_plan,
    surcharged_plan,
    valid_space,
)
from collage.search.state_space import StateSpace, build_state_space
from collage.search.ties import Ties

BOUNDARY_PENALTIES_S = (2e-6, 10e-6, 40e-6)
"""Penalties for each region of the plans with fewer boundaries, in seconds."""
FEW_REGIONS_SLACK = 1.25
"""Plans with few regions are tried even if predicted up to 1.25x slower than the best: each region is
measured at a different moment, and the speed of the machine may differ by as much."""
FOREIGN_NODE_PENALTY = 1000
"""Number of additional regions that a toolchain accepts to keep one node from another toolchain."""


@dataclass(frozen=True)
class NamedPlan:
    """A selected plan.

    Attributes:
        name: unique name within the function.
        plan: the plan.
        single: name of its only backend, "" for a mix.
    """

    name: str
    plan: Plan
    single: str = ""

    @classmethod
    def of(cls, name: str, plan: Plan) -> "NamedPlan":
        """Name a plan and set `single`; views on the host belong to no backend."""
        backends = [backend for backend in plan.backends if backend != HOST]
        return cls(name, plan, backends[0] if len(backends) == 1 else "")


def select_plans(
    problem: Problem,
    costs: Mapping[Hashable, Cost],
    count: int,
    errors: ErrorBudget | None = None,
) -> list[NamedPlan]:
    """Select the plans to assemble, each once, whole-function plans first.

    Args:
        problem: the function's search problem.
        costs: costs by option key.
        count: number of best plans by the additive model.
        errors: error budget; None without reduced options.
    """
    space = valid_space(problem, costs)
    selected = list(_plans_by_capture(space, costs, count))
    selected += _plans_with_few_regions(space, costs)
    if any(option.reduced for option in space.options):
        if errors is not None:
            selected = _within_budget(selected, space, costs, count=count, errors=errors)
        exact = build_state_space(
            problem, lambda option: not option.reduced and is_measured(option, costs)
        )
        selected += [
            replace(named, name=f"fp32-{named.name}") for named in _plans_of(exact, costs, 1)
        ]
    distinct: dict[tuple[Option, ...], NamedPlan] = {}
    for named in selected:
        distinct.setdefault(named.plan.options, named)
    return list(distinct.values())


def _plans_by_capture(space: StateSpace, costs: Costs, count: int) -> Iterator[NamedPlan]:
    """Yield the plans of one space, captured plans first where some plans lose their CUDA graphs."""
    problem = space.problem
    if not has_two_spaces(problem):
        yield from _plans_of(space, costs, count)
        return
    with_launches = launched_costs(costs, problem.launch_s)
    if not any(option.graph_capturable for option in problem.options if option.backend != HOST):
        yield from _plans_of(space, with_launches, count)
        return
    captured = build_state_space(
        problem, lambda option: option.graph_capturable and is_measured(option, costs)
    )
    if least_plan(captured, lambda option: costs[option.key].seconds) is not None:
        yield from _plans_of(captured, costs, count)
    for named in _plans_of(space, with_launches, count):
        if not is_captured(named.plan):
            yield replace(named, name=f"launched-{named.name}")


def _plans_of(space: StateSpace, costs: Mapping[Hashable, Cost], count: int) -> Iterator[NamedPlan]:
    """Yield the selected plans of one space; equal plans may occur several times."""
    size = len(space.problem.graph)
    complete = [option for option in space.options if option.size == size]
    for rank, option in enumerate(complete):
        plan = Plan((option,), costs[option.key].seconds)
        yield NamedPlan(f"whole-{option.backend}-{rank}", plan, option.backend)
    ties = Ties(space.problem, costs)
    for rank, plan in enumerate(least_plans(space, costs, count), start=1):
        named = NamedPlan.of(f"best-{rank}", plan)
        yield named if named.single else NamedPlan.of(named.name, ties.preferred(plan))
    for penalty_s in BOUNDARY_PENALTIES_S:
        fewer = surcharged_plan(space, costs, partial(_constant_surcharge, penalty_s))
        if fewer is not None:
            yield NamedPlan.of(f"fewer-borders-{penalty_s * 1e6:.0f}us", fewer)
    for backend in sorted({option.backend for option in space.options} - {HOST}):
        single = least_plan(space, partial(_seconds_on, costs, backend))
        if single is not None:
            yield NamedPlan(f"{backend}-only", single, backend)


def _within_budget(
    selected: Iterable[NamedPlan],
    space: StateSpace,
    costs: Mapping[Hashable, Cost],
    *,
    count: int,
    errors: ErrorBudget,
) -> list[NamedPlan]:
    """Return the selected plans that may be within the budget, and further plans for it.

    Where the fastest plan is expected to be beyond the budget, the further plans are the same selection by
    error-penalised costs.
    """
    output_errors = with_output_errors(space.problem, costs, errors.sensitivity)
    limit = SLACK * errors.tolerance
    promising = [named for named in selected if expected_error(named.plan, output_errors) <= limit]
    penalised = PenalisedPlans.of(space, output_errors)
    if penalised is None:
        return promising
    penalty, _ = penalised.within(errors.tolerance)
    if penalty:
        for named in _plans_of(space, penalised.penalised_costs(penalty), count):
            seconds = predicted_s(space.problem, costs, named.plan)
            plan = replace(named.plan, predicted_s=seconds)
            promising.append(replace(named, name=f"budget-{named.name}", plan=plan))
    lower = enumerate(lower_error_plans(penalised, errors.tolerance), start=1)
    return promising + [NamedPlan.of(f"gentler-{rank}", plan) for rank, plan in lower]


def _plans_with_few_regions(
    space: StateSpace, costs: Mapping[Hashable, Cost]
) -> Iterator[NamedPlan]:
    """Yield for each toolchain its plan alone, with the fastest options for unsupported nodes.

    The sum of measured costs hardly matters for it: a long region is measured once, a short region of a
    repeated block many times, so the cost of a long region can be too high by chance.
    """
    fastest = least_plan(space, lambda option: costs[option.key].seconds)
    if fastest is None:
        return
    toolchains = {
        (option.backend, option.precision) for option in space.options if option.backend != HOST
    }
    for backend, precision in sorted(toolchains):
        surcharge = partial(_region_surcharge, fastest.predicted_s, backend, precision)
        plan = surcharged_plan(space, costs, surcharge)
        if plan is None or (precision and not plan.reduced):
            continue
        if precision or plan.predicted_s <= FEW_REGIONS_SLACK * fastest.predicted_s:
            yield NamedPlan.of("-".join(filter(None, ("mostly", backend, precision))), plan)


def _region_surcharge(
    dispatch_overhead_s: float, backend: str, precision: str, option: Option
) -> float:
    """Return a surcharge that favours one toolchain first and fewer regions second."""
    if option.backend == HOST:
        return 0.0
    is_own = (option.backend, option.precision) == (backend, precision)
    return dispatch_overhead_s * (1 if is_own else 1 + FOREIGN_NODE_PENALTY * option.size)


def _constant_surcharge(surcharge_s: float, option: Option) -> float:
    return surcharge_s


def _seconds_on(costs: Mapping[Hashable, Cost], backend: str, option: Option) -> float | None:
    return costs[option.key].seconds if option.backend in (backend, HOST) else None
