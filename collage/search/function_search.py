"""Search one function: candidates become options, a lazy search measures few of them, plans come out.

Under an error budget the search goes on for a while with errors paid for
(`collage.search.reduced_precision`). Which plans come out says `collage.search.plan_selection`.
"""

import math
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.backends.base import Backend, conflicts_of
from collage.backends.registry import known_backends
from collage.cost import Cost
from collage.errors import SearchError
from collage.frontend import Function
from collage.frontend.region import region_digest, region_values
from collage.graph.index_set import IndexSet, first, index_set
from collage.measure.measurement_request import Measurer, OnCost, Work
from collage.options import DEVICES
from collage.rules.candidates import find_candidates
from collage.rules.rule import HOST, Candidate
from collage.search.estimate import AdditiveEstimator
from collage.search.lazy import Budget, LazyResult, search_lazily
from collage.search.plan_selection import NamedPlan, worth_assembling
from collage.search.problem import Option, Problem
from collage.search.reduced_precision import ErrorBudget, search_gentler

VIEW_S = 2e-7
"""What the virtual machine takes for a view (measured: 0.2 us a call)."""

TILE_SIZES = (1, 4, 16, 64)
"""Most nodes of a tile, small to large."""
BATCH = 16
"""Works measured together, at least."""
SEEDS = 24
"""The same while seeds are measured."""
SEED_SHARE = 0.5
"""Share of the budget that tilings may take; the rest goes where the estimates point."""
FAMILIAR = 0.2
"""Share of a function's candidates that other models must have measured to be of its family: then what
their searches proved holds for most of its regions too."""
PATIENCE = 0.03
"""Share of the candidates that, with a family, are measured in vain before the search ends."""
FASTEST_SHARE = 0.75
"""Share of the budget after which, under an error budget, gentler plans are looked for."""


@dataclass(frozen=True)
class Enumerated:
    """A function's candidates as a search problem; `work` is one representative of every key."""

    function: Function
    candidates: tuple[Candidate, ...]
    problem: Problem
    work: Mapping[Hashable, Work]
    last: frozenset[Hashable] = frozenset()
    """Keys of reduced options that make outputs of the function and nothing else."""


@dataclass(frozen=True)
class FunctionSearch:
    """What the search found; `costs` holds every cost that is known.

    `errors` is what was allowed, None where nothing may be reduced.
    """

    enumerated: Enumerated
    costs: Mapping[Hashable, Cost]
    plans: tuple[NamedPlan, ...]
    lazy: LazyResult
    errors: ErrorBudget | None = None


def enumerate_function(
    function: Function, backends: Sequence[Backend], *, may_reduce: bool = False
) -> Enumerated:
    """List the candidates of `function` on `backends` (in order of priority).

    Args:
        function: an imported function.
        backends: available backends.
        may_reduce: candidates may compute in less than float32.

    Raises:
        SearchError: no backend takes a node; says why for each.
    """
    candidates = find_candidates(function, backends, may_reduce=may_reduce)
    _require_cover(function, backends, candidates)
    identity = {backend.name: backend.identity for backend in backends} | {HOST: ""}
    reduced = {backend.name: backend.reduced for backend in backends} | {HOST: {}}
    captured = {backend.name: backend.captures for backend in backends} | {HOST: True}
    priority = {name: position for position, name in enumerate((HOST, *identity))}
    digests: dict[IndexSet, str] = {}
    options: list[Option] = []
    work: dict[Hashable, Work] = {}
    for candidate in candidates:
        inside, backend, variant = candidate.inside, candidate.backend, candidate.variant
        if candidate.is_host:
            key: Hashable = HOST
        else:
            if inside not in digests:
                digests[inside] = region_digest(function, inside)
            key = (digests[inside], identity[backend], variant)
            work.setdefault(key, Work(function.name, inside, backend, variant))
        less = reduced[backend].get(variant, "")
        rank = priority[backend]
        options.append(
            Option(
                inside, key, backend, rank, variant=variant, precision=less,
                captures=captured[backend],
            )
        )  # fmt: skip
    problem = Problem(function.graph, options, conflicts=conflicts_of(backends))
    return Enumerated(function, tuple(candidates), problem, work, _last(function, options))


def _last(function: Function, options: Iterable[Option]) -> frozenset[Hashable]:
    """Return the keys whose errors nothing comes after that could make them smaller."""
    graph = function.graph
    results = set(graph.outputs)
    final = index_set(node.index for node in graph.nodes if results.intersection(node.outputs))
    found: set[Hashable] = set()
    others: set[Hashable] = set()
    for option in options:
        if option.reduced:
            makes = option.nodes & final and results.issuperset(
                region_values(function, option.nodes)[1]
            )
            (found if makes else others).add(option.key)
    return frozenset(found - others)


def _require_cover(
    function: Function, backends: Sequence[Backend], candidates: Iterable[Candidate]
) -> None:
    taken = 0
    for candidate in candidates:
        taken |= candidate.inside
    for node in function.graph.nodes:
        if not taken >> node.index & 1:
            what = f"no plan covers node {node.index} '{node.name}' ({node.op})"
            reasons = [f"  {one.name}: {one.unsupported(function, node.index)}" for one in backends]
            advice = _others_that_take(function, node.index, backends)
            raise SearchError("\n".join((f"{what}: no backend takes it; {advice}", *reasons)))


def _others_that_take(function: Function, node: int, chosen: Sequence[Backend]) -> str:
    """Advise one of the device's other backends, those that can be used here where there are any."""
    device = chosen[0].device if chosen else DEVICES[0]
    names = {one.name for one in chosen}
    takers = [
        one
        for one in known_backends(None, device)
        if one.name not in names and one.unsupported(function, node) is None
    ]
    if not takers:
        return f"no other backend for {device} does: replace this operator in the model"
    here = [one.name for one in takers if one.availability().available]
    listed = " or ".join(sorted(here or [one.name for one in takers]))
    return f"add {listed} to --backends" + ("" if here else ", once installed (`collage backends`)")


def search_function(
    enumerated: Enumerated,
    measurer: Measurer,
    known: Mapping[Hashable, Cost],
    *,
    plans: int,
    budget_s: float,
    clock: Callable[[], float],
    on_cost: OnCost | None = None,
    batch: int = BATCH,
    errors: ErrorBudget | None = None,
    launch_s: Callable[[], float] = lambda: 0.0,
) -> FunctionSearch:
    """Measure what matters and return the plans worth assembling.

    Args:
        enumerated: from `enumerate_function`.
        measurer: gets batches of work.
        known: costs from earlier searches, by key.
        plans: additive best plans to return.
        budget_s: seconds for measuring, by `clock`; with 0 only what it takes to have one plan.
        clock: monotonic seconds.
        on_cost: called for every result.
        batch: works that the measurer wants at once, at least.
        errors: what is allowed where options may be reduced; a part of the budget then goes to plans
            that should be within it.
        launch_s: asked when all is measured, see `Problem`.

    Raises:
        SearchError: the valid candidates cover no plan; names the node and the reasons.
    """
    problem = enumerated.problem

    def measure(keys: Sequence[Hashable]) -> Mapping[Hashable, Cost]:
        works = [enumerated.work[key] for key in keys]
        return dict(zip(keys, measurer.measure(works, on_cost), strict=True))

    start = clock()
    costs: dict[Hashable, Cost] = {HOST: Cost(VIEW_S, VIEW_S, VIEW_S), **known}
    for chunk in seed_chunks(problem, max(SEEDS, batch), known):
        if len(costs) > 1 and clock() - start >= SEED_SHARE * budget_s:
            break
        missing = [key for key in chunk if key not in costs]
        if missing:
            costs |= measure(missing)

    patience = math.ceil(PATIENCE * len(enumerated.work)) if has_family(problem, known) else None

    def until(share: float) -> Budget:
        left = max(0.0, start + share * budget_s - clock())
        return Budget(seconds=left, in_vain=patience, clock=clock)

    lazy = search_lazily(
        problem,
        measure,
        costs=costs,
        estimator=AdditiveEstimator(problem),
        batch_size=batch,
        budget=until(1.0 if errors is None else FASTEST_SHARE),
    )
    if errors is not None and budget_s:
        found = search_gentler(problem, measure, lazy.costs, errors, batch, until(1.0))
        lazy = replace(lazy, costs=found)
    problem = replace(problem, launch_s=launch_s())
    enumerated = replace(enumerated, problem=problem)
    worth = worth_assembling(problem, lazy.costs, plans, errors)
    return FunctionSearch(enumerated, lazy.costs, tuple(worth), lazy, errors)


def has_family(problem: Problem, known: Container[Hashable]) -> bool:
    """Tell whether many costs are known, and not from an earlier search of this very function.

    That one would know its largest tile, since it measures the largest tiles before all else.
    """
    sizes = {option.key: option.size for option in problem.options if option.backend != HOST}
    tiles = next(seed_chunks(problem), [])
    largest = max((sizes[key] for key in tiles), default=0)
    if any(key in known for key in tiles if sizes[key] == largest):
        return False
    return 0 < FAMILIAR * len(sizes) <= sum(key in known for key in sizes)


def seed_chunks(
    problem: Problem, at_once: int = SEEDS, known: Container[Hashable] = ()
) -> Iterator[list[Hashable]]:
    """Yield the keys to measure first: tilings of the function by every backend's options.

    The largest tiles come first, all of them in one chunk, so that a plan is known at once; then
    ever smaller ones, from which the estimator learns what each node costs: `known` ones where there
    are any, since they teach as much and cost nothing. A measurer that takes more than `SEEDS` at once
    waits longer for the first result than for a few more: chunks are filled then.
    """
    seen: set[Hashable] = set()
    backends = sorted({option.backend for option in problem.options} - {HOST})
    own = {name: [o for o in problem.ordered if o.backend == name] for name in backends}
    whole = max(*TILE_SIZES, len(problem.graph))
    filled = at_once > SEEDS
    waiting: list[Hashable] = []
    for limit in (whole, *reversed(TILE_SIZES)):
        found: dict[Hashable, None] = {}
        for name in backends:
            tiles = tiling(own[name], limit, () if limit == whole else known)
            found |= dict.fromkeys(option.key for option in tiles)
        waiting += [key for key in found if key not in seen]
        seen.update(waiting)
        size = at_once if filled or limit != whole else len(waiting)
        while len(waiting) >= size if filled else waiting:
            yield waiting[:size]
            waiting = waiting[size:]
    if waiting:
        yield waiting


def tiling(options: Iterable[Option], limit: int, known: Container[Hashable] = ()) -> list[Option]:
    """Choose disjoint options greedily by first node, the largest of at most `limit` nodes each.

    Where options of a node are known, the largest of those.
    """
    by_first: dict[int, list[Option]] = {}
    for option in options:
        if option.size <= limit:
            by_first.setdefault(first(option.nodes), []).append(option)
    covered, chosen = 0, []
    for start in sorted(by_first):
        free = [option for option in by_first[start] if not option.nodes & covered]
        if free:
            free = [option for option in free if option.key in known] or free
            size = max(option.size for option in free)
            largest = [option for option in free if option.size == size]
            chosen += largest
            covered |= largest[0].nodes
    return chosen
