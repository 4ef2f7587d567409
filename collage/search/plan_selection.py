"""Which plans are worth assembling, to be raced whole.

They are the whole function on one backend, the additive best ones, the best ones when every call is dearer
than measured (fewer borders: what a sum of isolated kernels gets wrong grows with them), and for each
backend the best plan that uses it alone, and as much as it can do in as few regions as it can. Where
regions may compute in less than float32, the same again without them, and under an error budget plans
with less and less error (`collage.search.reduced_precision`).
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from collage.cost import Cost
from collage.rules.rule import HOST
from collage.search.graph_launches import captures, is_divided, launched, predicted_s
from collage.search.k_best import least_plans
from collage.search.problem import Costs, Option, Plan, Problem
from collage.search.reduced_precision import (
    SLACK,
    ErrorBudget,
    PricedPlans,
    expected_error,
    gentler_plans,
    weighed,
)
from collage.search.shortest_path import (
    is_measured,
    least_plan,
    surcharged_plan,
    valid_space,
)
from collage.search.state_space import StateSpace, build_state_space

BORDER_PENALTIES_S = (2e-6, 10e-6, 40e-6)
UNLUCKY = 1.25
"""How many times the best plan's time one in few regions may be predicted to take and yet be tried: each
region was measured at a moment of its own, and the machine's pace may have been that different."""
FOREIGN = 1000
"""Regions that a toolchain would rather be cut into than leave a node to another."""


@dataclass(frozen=True)
class NamedPlan:
    """A plan worth assembling; `single` names the one backend that it uses, "" for a mix."""

    name: str
    plan: Plan
    single: str = ""

    @classmethod
    def of(cls, name: str, plan: Plan) -> "NamedPlan":
        """Name a plan, and see whether it uses one backend; views on the host are of none."""
        used = [backend for backend in plan.backends if backend != HOST]
        return cls(name, plan, used[0] if len(used) == 1 else "")


def worth_assembling(
    problem: Problem,
    costs: Mapping[Hashable, Cost],
    count: int,
    errors: ErrorBudget | None = None,
) -> list[NamedPlan]:
    """Name the plans to assemble, each once, whole-function ones first.

    Args:
        problem: the whole one.
        costs: by key.
        count: additive best plans.
        errors: what is allowed where options may be reduced.
    """
    space = valid_space(problem, costs)
    found = list(_by_launches(space, costs, count))
    found += _mostly(space, costs)
    if any(option.reduced for option in space.options):
        if errors is not None:
            found = _within(space, costs, count, errors, found)
        exact = build_state_space(
            problem, lambda option: not option.reduced and is_measured(option, costs)
        )
        found += [replace(one, name=f"fp32-{one.name}") for one in _plans_of(exact, costs, 1)]
    named: dict[tuple[Option, ...], NamedPlan] = {}
    for one in found:
        named.setdefault(one.plan.options, one)
    return list(named.values())


def _by_launches(space: StateSpace, costs: Costs, count: int) -> Iterator[NamedPlan]:
    """Yield the plans of one space; where some lose CUDA graphs, those that keep them first."""
    problem = space.problem
    if not is_divided(problem):
        yield from _plans_of(space, costs, count)
        return
    dearer = launched(costs, problem.launch_s)
    if not any(option.captures for option in problem.options if option.backend != HOST):
        yield from _plans_of(space, dearer, count)
        return
    alone = build_state_space(problem, lambda one: one.captures and is_measured(one, costs))
    if least_plan(alone, lambda option: costs[option.key].seconds) is not None:
        yield from _plans_of(alone, costs, count)
    for one in _plans_of(space, dearer, count):
        if not captures(one.plan):
            yield replace(one, name=f"launched-{one.name}")


def _plans_of(space: StateSpace, costs: Mapping[Hashable, Cost], count: int) -> Iterator[NamedPlan]:
    """Yield the plans of one space that are worth assembling; some may be the same."""
    size = len(space.problem.graph)
    whole = [option for option in space.options if option.size == size]
    for rank, option in enumerate(whole):
        plan = Plan((option,), costs[option.key].seconds)
        yield NamedPlan(f"whole-{option.backend}-{rank}", plan, option.backend)
    for rank, plan in enumerate(least_plans(space, costs, count), start=1):
        yield NamedPlan.of(f"best-{rank}", plan)
    for penalty_s in BORDER_PENALTIES_S:
        fewer = surcharged_plan(space, costs, partial(_same, penalty_s))
        if fewer is not None:
            yield NamedPlan.of(f"fewer-borders-{penalty_s * 1e6:.0f}us", fewer)
    for backend in sorted({option.backend for option in space.options} - {HOST}):
        alone = least_plan(space, partial(_only, costs, backend))
        if alone is not None:
            yield NamedPlan(f"{backend}-only", alone, backend)


def _within(
    space: StateSpace,
    costs: Mapping[Hashable, Cost],
    count: int,
    errors: ErrorBudget,
    found: Iterable[NamedPlan],
) -> list[NamedPlan]:
    """Return those of `found` that may be within the budget, and plans that should be.

    Where the fastest plan should not, those are the same as without a budget, with errors paid for.
    """
    effects = weighed(space.problem, costs, errors.gain)
    hopeless = SLACK * errors.tolerance
    kept = [one for one in found if expected_error(one.plan, effects) <= hopeless]
    priced = PricedPlans.of(space, effects)
    if priced is None:
        return kept
    price, _ = priced.within(errors.tolerance)
    if price:
        for one in _plans_of(space, priced.priced(price), count):
            real_s = predicted_s(space.problem, costs, one.plan)
            plan = replace(one.plan, predicted_s=real_s)
            kept.append(replace(one, name=f"budget-{one.name}", plan=plan))
    gentler = enumerate(gentler_plans(priced, errors.tolerance), start=1)
    return kept + [NamedPlan.of(f"gentler-{rank}", plan) for rank, plan in gentler]


def _mostly(space: StateSpace, costs: Mapping[Hashable, Cost]) -> Iterator[NamedPlan]:
    """Yield what each toolchain would do alone, the fastest for what it cannot.

    That is a plan of its own, nearly whatever the sum of its measured costs says: long regions, which
    are measured once and not over and over like the short ones in repeated blocks, may be unlucky.
    """
    fastest = least_plan(space, lambda option: costs[option.key].seconds)
    if fastest is None:
        return
    toolchains = {(o.backend, o.precision) for o in space.options if o.backend != HOST}
    for backend, precision in sorted(toolchains):
        surcharge = partial(_many_regions, fastest.predicted_s, backend, precision)
        plan = surcharged_plan(space, costs, surcharge)
        if plan is None or (precision and not plan.reduced):
            continue
        if precision or plan.predicted_s <= UNLUCKY * fastest.predicted_s:
            yield NamedPlan.of("-".join(filter(None, ("mostly", backend, precision))), plan)


def _many_regions(border_s: float, backend: str, precision: str, option: Option) -> float:
    """What a region costs more, so that a toolchain takes all that it can in as few as it can."""
    if option.backend == HOST:
        return 0.0
    inside = (option.backend, option.precision) == (backend, precision)
    return border_s * (1 if inside else 1 + FOREIGN * option.size)


def _same(surcharge_s: float, option: Option) -> float:
    return surcharge_s


def _only(costs: Mapping[Hashable, Cost], backend: str, option: Option) -> float | None:
    return costs[option.key].seconds if option.backend in (backend, HOST) else None
