"""Which kernels are worth tuning: those whose faster twin would change the best plan.

For every region that TVM could run with one product in it (a convolution or a matrix product, with
what is fused around it), the best plan that uses the region at its bound, the least time in which the
machine can move its bytes and compute its FLOP, is compared with the best plan of measured costs. What
is not faster even then has nothing to win, whatever schedule is found, and is never tuned. The others
are ranked by what they could win in all their places; of regions around one product only the first is
kept. `break_even_s` is what a kernel must beat to be of any use, so a search that is far from it after
some trials may be given up.

One forward and one backward pass over the state space price all regions at once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.backends.base import Backend
from collage.backends.cpu.tvm import PRODUCTS, TunableTvm
from collage.frontend.model import Function
from collage.frontend.region import region_bytes_and_flops, region_digest
from collage.graph.index_set import IndexSet, indices
from collage.measure.measurement_request import Work
from collage.measure.peaks import Peaks, highest
from collage.rules.candidates import find_candidates
from collage.rules.rule import HOST
from collage.search.explain import weights_through
from collage.search.problem import UNKNOWN, Costs, Option, Problem
from collage.search.shortest_path import gap_s, option_weights, remaining_weights
from collage.search.state_space import build_state_space

MIN_GAIN_SHARE = 0.005
"""Of the plan's time: a kernel that could win no more is not worth a trial."""
MIN_GAIN_S = 1e-6
REACHABLE_SHARE = 0.9
"""Share of a bound that no search comes near: large products that must reach more are left alone."""

BoundOf = Callable[[IndexSet], float]


@dataclass(frozen=True)
class Prospect:
    """A kernel that may be worth tuning.

    Attributes:
        work: one of its places, on the backend that is tuned.
        places: all of them; equal structure, so one schedule fits all.
        digest: of its structure.
        bound_s: no kernel is faster.
        break_even_s: a kernel must be faster than this to change the plan.
        gain_s: what the plan would win if the kernel ran at its bound in all places.
    """

    work: Work
    places: tuple[IndexSet, ...]
    digest: str
    bound_s: float
    break_even_s: float
    gain_s: float


def find_prospects(
    function: Function,
    problem: Problem,
    costs: Costs,
    peaks: Peaks,
    backend: Backend | None = None,
) -> list[Prospect]:
    """Rank what could be tuned, the most promising first, one for each product at most.

    Args:
        function: whose kernels may be tuned.
        problem: with the candidates that there are.
        costs: of them.
        peaks: bound what tuned kernels can reach.
        backend: takes what can be tuned; TVM on the CPU by default.
    """
    backend = backend or TunableTvm()
    places = tunable_regions(function, backend)

    def bound_s(nodes: IndexSet) -> float:
        return peaks.bound_s(*region_bytes_and_flops(function, nodes))

    tasks = _priced(function, problem, costs, places, bound_s, backend=backend.name)
    covered: IndexSet = 0
    chosen = []
    for task in sorted(tasks, key=lambda p: (-p.gain_s, -p.work.nodes.bit_count(), p.digest)):
        products = _products(function, task.places)
        if not products & covered:
            chosen.append(task)
            covered |= products
    return chosen


def raised_peaks(
    function: Function, problem: Problem, costs: Costs, peaks: Peaks, fewer_flops: Collection[str]
) -> Peaks:
    """Raise the peaks to what measured candidates reach: a loaded machine hides its peaks.

    Args:
        function: that is compiled.
        problem: with its candidates.
        costs: of them.
        peaks: to raise.
        fewer_flops: backends that need fewer FLOP than are counted; their speed says nothing.
    """
    for option in {option.key: option for option in problem.ordered}.values():
        cost = costs.get(option.key, UNKNOWN)
        if cost.is_valid and cost.seconds > 0 and option.backend not in {HOST, *fewer_flops}:
            moved, flops = region_bytes_and_flops(function, option.nodes)
            peaks = highest(peaks, Peaks(flops / cost.seconds, moved / cost.seconds, 0.0))
    return peaks


def tunable_regions(function: Function, backend: Backend | None = None) -> list[IndexSet]:
    """List the regions that TVM fuses into a kernel with exactly one product, large ones included."""
    candidates = find_candidates(function, [backend or TunableTvm()])
    regions = {candidate.inside for candidate in candidates if not candidate.is_host}
    return sorted(nodes for nodes in regions if _products(function, (nodes,)).bit_count() == 1)


def _products(function: Function, places: Iterable[IndexSet]) -> IndexSet:
    nodes = {index for place in places for index in indices(place)}
    return sum(1 << index for index in nodes if function.graph.nodes[index].op in PRODUCTS)


def _priced(
    function: Function,
    problem: Problem,
    costs: Costs,
    places: Sequence[IndexSet],
    bound_s: BoundOf,
    *,
    backend: str,
) -> list[Prospect]:
    """Price the regions at their bounds in the best plans that use them."""
    untuned = {nodes: Option(nodes, ("asked", nodes), backend) for nodes in places}
    untuned_keys = {option.key for option in untuned.values()}
    extended = replace(problem, options=[*problem.options, *untuned.values()])
    space = build_state_space(
        extended,
        lambda option: option.key in untuned_keys or costs.get(option.key, UNKNOWN).is_valid,
    )

    def measured_s(option: Option) -> float | None:
        return None if option.key in untuned_keys else costs[option.key].seconds

    measured_weights = option_weights(space, measured_s)
    bounds = {option.key: bound_s(nodes) for nodes, option in untuned.items()}
    bound_weights = option_weights(space, lambda option: bounds.get(option.key))
    remaining = remaining_weights(space, measured_weights)
    best = remaining[0]
    if best is None:
        return []
    through = weights_through(space, measured_weights, remaining, bound_weights)
    gains = {
        option.nodes: gap_s(best, weight)
        for option, weight in zip(space.options, through, strict=True)
        if option.key in untuned_keys and weight is not None
    }
    least_s = max(MIN_GAIN_S, MIN_GAIN_SHARE * gap_s(best, 0))
    tasks = [
        _prospect(function, group, gains, bound_s, backend=backend)
        for group in _by_structure(function, gains)
    ]
    return [
        task
        for task in tasks
        if task.gain_s >= least_s and task.bound_s <= REACHABLE_SHARE * task.break_even_s
    ]


def _by_structure(function: Function, regions: Iterable[IndexSet]) -> list[list[IndexSet]]:
    groups: dict[str, list[IndexSet]] = {}
    for nodes in sorted(regions):
        groups.setdefault(region_digest(function, nodes), []).append(nodes)
    return list(groups.values())


def _prospect(
    function: Function,
    group: Sequence[IndexSet],
    gains: Mapping[IndexSet, float],
    bound_s: BoundOf,
    *,
    backend: str,
) -> Prospect:
    """Sum over disjoint places, the best first; gains in different places hardly touch each other."""
    covered, gain_s, places = 0, 0.0, []
    for nodes in sorted(group, key=lambda nodes: (-gains[nodes], nodes)):
        if gains[nodes] > 0 and not nodes & covered:
            covered |= nodes
            gain_s += gains[nodes]
            places.append(nodes)
    best = max(group, key=lambda nodes: (gains[nodes], -nodes))
    return Prospect(
        Work(function.name, best, backend),
        tuple(places or [best]),
        region_digest(function, best),
        bound_s(best),
        bound_s(best) + gains[best],
        gain_s,
    )


def tuned_options(problem: Problem, prospect: Prospect, key: tuple[str, str, str]) -> list[Option]:
    """Return the options of a tuned kernel, one for each of its places."""
    backend = prospect.work.backend
    siblings = [
        option for option in problem.options if option.backend == backend
    ] or problem.options
    priority = min((option.priority for option in siblings), default=0)
    captures = all(option.captures for option in siblings)
    return [
        Option(nodes, key, backend, priority, variant="tuned", captures=captures)
        for nodes in prospect.places
    ]
