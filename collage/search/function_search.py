"""Search of one function: a lazy search measures few of its options, and plan selection names the plans.

Adjacent regions of the best plan are joined and measured (`collage.search.coalescing`). Under an error
budget the search continues with error-penalised costs (`collage.search.reduced_precision`).
"""

import math
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.cost import Cost
from collage.measure.measurement_request import Measurer, OnCost
from collage.rules.rule import HOST
from collage.search.bounds import LowerBounds
from collage.search.coalescing import join_adjacent_regions
from collage.search.enumeration import EnumeratedFunction
from collage.search.estimate import AdditiveEstimator
from collage.search.lazy import LazyResult, SearchBudget, search_lazily
from collage.search.plan_selection import NamedPlan, select_plans
from collage.search.problem import Problem
from collage.search.reduced_precision import ErrorBudget, search_lower_error
from collage.search.seeds import SEED_BATCH, seed_chunks
from collage.search.shortest_path import find_plan

VIEW_S = 2e-7
"""Time of a view in the virtual machine, in seconds (measured: 0.2 us a call)."""

MEASURE_BATCH = 16
"""Smallest number of keys measured together."""
SEED_SHARE = 0.5
"""Largest share of the budget for seeds; the rest follows the estimates."""
FAMILY_SHARE = 0.2
"""Share of a function's keys with costs from other models for these to be its family: results of their
searches then hold for most of its regions too."""
PATIENCE_SHARE = 0.03
"""Share of the keys measured without improvement after which the search of a function with a family ends."""
FASTEST_SHARE = 0.75
"""Share of the budget after which, under an error budget, the search turns to plans with lower error."""


@dataclass(frozen=True)
class FunctionSearch:
    """Result of one function's search.

    Attributes:
        enumerated: the function's candidates as a search problem.
        costs: all known costs by option key.
        plans: the selected plans.
        lazy: result of the lazy search.
        errors: the error budget; None without reduced options.
    """

    enumerated: EnumeratedFunction
    costs: Mapping[Hashable, Cost]
    plans: tuple[NamedPlan, ...]
    lazy: LazyResult
    errors: ErrorBudget | None = None


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """Limits of one search.

    Attributes:
        plans: number of best plans by the additive model.
        budget_s: budget for measurements, in seconds of `clock`; 0 measures only what one plan needs.
        clock: monotonic clock, in seconds.
        batch: smallest number of requests in one batch; default `MEASURE_BATCH`.
        errors: error budget of reduced options, for a share of the time budget; None without them.
        bounds: lower bounds of unmeasured options; None without known rates of the machine.
    """

    plans: int
    budget_s: float
    clock: Callable[[], float]
    batch: int = MEASURE_BATCH
    errors: ErrorBudget | None = None
    bounds: LowerBounds | None = None


def search_function(
    enumerated: EnumeratedFunction,
    measurer: Measurer,
    known_costs: Mapping[Hashable, Cost],
    limits: SearchLimits,
    *,
    on_cost: OnCost | None = None,
    launch_s: Callable[[], float] = lambda: 0.0,
) -> FunctionSearch:
    """Measure the options that matter and select the plans to assemble.

    Args:
        enumerated: result of `enumerate_function`.
        measurer: measures batches of requests.
        known_costs: costs from earlier searches, by option key.
        limits: limits of the search.
        on_cost: callback for every result; default None.
        launch_s: called after all measurements for `Problem.launch_s`; default 0.

    Raises:
        SearchError: valid options cover no plan; the message names the node and the reasons.
    """
    problem, clock, errors = enumerated.problem, limits.clock, limits.errors

    def measure(keys: Sequence[Hashable]) -> Mapping[Hashable, Cost]:
        requests = [enumerated.work[key] for key in keys]
        return dict(zip(keys, measurer.measure(requests, on_cost), strict=True))

    start = clock()
    costs: dict[Hashable, Cost] = {HOST: Cost(VIEW_S, VIEW_S, VIEW_S), **known_costs}
    for chunk in seed_chunks(problem, max(SEED_BATCH, limits.batch), known_costs):
        if len(costs) > 1 and clock() - start >= SEED_SHARE * limits.budget_s:
            break
        missing = [key for key in chunk if key not in costs]
        if missing:
            costs |= measure(missing)

    patience = None
    if has_family(problem, known_costs):
        patience = math.ceil(PATIENCE_SHARE * len(enumerated.work))

    def budget_until(share: float) -> SearchBudget:
        remaining_s = max(0.0, start + share * limits.budget_s - clock())
        return SearchBudget(seconds=remaining_s, without_improvement=patience, clock=clock)

    lazy = search_lazily(
        problem,
        measure,
        costs=costs,
        estimator=AdditiveEstimator(problem),
        bounds=limits.bounds,
        batch_size=limits.batch,
        budget=budget_until(1.0 if errors is None else FASTEST_SHARE),
    )
    if errors is not None and limits.budget_s:
        lower_error_costs = search_lower_error(
            problem,
            measure,
            lazy.costs,
            errors=errors,
            batch_size=limits.batch,
            budget=budget_until(1.0),
        )
        lazy = replace(lazy, costs=lower_error_costs)
    enumerated, all_costs = join_adjacent_regions(
        enumerated, lazy.costs, lambda requests: measurer.measure(requests, on_cost)
    )
    problem = replace(enumerated.problem, launch_s=launch_s())
    enumerated = replace(enumerated, problem=problem)
    lazy = replace(lazy, plan=find_plan(problem, all_costs), costs=all_costs)
    selected = select_plans(problem, lazy.costs, limits.plans, errors)
    return FunctionSearch(enumerated, lazy.costs, tuple(selected), lazy, errors=errors)


def has_family(problem: Problem, known_keys: Container[Hashable]) -> bool:
    """Tell whether many costs are known, but from searches of other functions.

    An earlier search of the same function has measured its largest tile, since the largest tiles come first.

    Args:
        problem: the function's search problem.
        known_keys: keys with known costs.
    """
    sizes = {option.key: option.size for option in problem.options if option.backend != HOST}
    tiles = next(seed_chunks(problem), [])
    largest = max((sizes[key] for key in tiles), default=0)
    if any(key in known_keys for key in tiles if sizes[key] == largest):
        return False
    return 0 < FAMILY_SHARE * len(sizes) <= sum(key in known_keys for key in sizes)
