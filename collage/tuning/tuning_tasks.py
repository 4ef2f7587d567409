"""Tuning tasks: the kernels with a possible effect on the best plan.

A tunable region is a region for TVM with one product (a convolution or a matrix product, with the fused
operators around it). Its bound is the time the machine needs to move its bytes and compute its FLOP. For
every such region the best plan with the region at its bound is compared with the best plan of measured
costs. If the former is not faster, no schedule can improve the plan, and the region is never tuned. The
other regions are ranked by their gain over all their occurrences; of the regions around one product only
the first is kept. A kernel must be faster than `break_even_s` to improve the plan, so a search far from
it after some trials can give up.

One forward and one backward pass over the state space compute the gains of all regions.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.backends.base import Backend
from collage.backends.cpu.tvm import PRODUCTS, TunableTvm
from collage.frontend.model import Function
from collage.frontend.region import region_bytes_and_flops, region_digest
from collage.graph.index_set import IndexSet, indices
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.peaks import Peaks, highest
from collage.rules.candidates import find_candidates
from collage.rules.rule import HOST
from collage.search.explain import weights_through
from collage.search.problem import UNKNOWN, Costs, Option, Problem
from collage.search.shortest_path import gap_s, option_weights, remaining_weights
from collage.search.state_space import build_state_space

MIN_GAIN_SHARE = 0.005
"""Smallest gain of a task, as a share of the plan's latency."""
MIN_GAIN_S = 1e-6
REACHABLE_SHARE = 0.9
"""Largest ratio of bound to break-even within reach of a search; kernels above it are not tuned."""

BoundOf = Callable[[IndexSet], float]


@dataclass(frozen=True)
class TuningTask:
    """A kernel to tune.

    Attributes:
        work: one occurrence of the kernel, on the tuned backend.
        places: node sets of all occurrences; they have equal structure, so one schedule fits all.
        digest: digest of the structure.
        bound_s: lower bound of the latency, in seconds.
        break_even_s: latency of the kernel with no gain for the plan, in seconds.
        gain_s: gain of the plan with the kernel at its bound in all places, in seconds.
    """

    work: MeasurementRequest
    places: tuple[IndexSet, ...]
    digest: str
    bound_s: float
    break_even_s: float
    gain_s: float


def find_tuning_tasks(
    function: Function,
    problem: Problem,
    costs: Costs,
    peaks: Peaks,
    *,
    backend: Backend | None = None,
) -> list[TuningTask]:
    """Return the tuning tasks, largest gain first, at most one for each product.

    Args:
        function: function of the kernels.
        problem: search problem with the candidates.
        costs: costs of the candidates.
        peaks: peaks of the machine, for the bounds.
        backend: tuned backend; None is TVM on the CPU.
    """
    backend = backend or TunableTvm()
    places = tunable_regions(function, backend)

    def bound_s(nodes: IndexSet) -> float:
        return peaks.bound_s(*region_bytes_and_flops(function, nodes))

    tasks = _priced(function, problem, costs, places, bound_s=bound_s, backend=backend.name)
    covered: IndexSet = 0
    chosen = []
    for task in sorted(tasks, key=lambda p: (-p.gain_s, -p.work.nodes.bit_count(), p.digest)):
        products = _products(function, task.places)
        if not products & covered:
            chosen.append(task)
            covered |= products
    return chosen


def raised_peaks(
    function: Function,
    problem: Problem,
    costs: Costs,
    peaks: Peaks,
    *,
    algorithmic_savings: Collection[str],
) -> Peaks:
    """Raise the peaks to the rates of measured candidates: a loaded machine hides its peaks.

    Args:
        function: compiled function.
        problem: search problem with the candidates.
        costs: costs of the candidates.
        peaks: measured peaks of the machine.
        algorithmic_savings: names of backends with algorithmic savings; their rates are no peaks.
    """
    for option in {option.key: option for option in problem.ordered}.values():
        cost = costs.get(option.key, UNKNOWN)
        if (
            cost.is_valid
            and cost.seconds > 0
            and option.backend not in {HOST, *algorithmic_savings}
        ):
            moved, flops = region_bytes_and_flops(function, option.nodes)
            peaks = highest(peaks, Peaks(flops / cost.seconds, moved / cost.seconds, 0.0))
    return peaks


def tunable_regions(function: Function, backend: Backend | None = None) -> list[IndexSet]:
    """Return the regions of one fused TVM kernel with exactly one product, large ones included."""
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
    *,
    bound_s: BoundOf,
    backend: str,
) -> list[TuningTask]:
    """Return the tasks of the regions, from the best plan with each region at its bound."""
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
) -> TuningTask:
    """Return the task of equal regions: gains of disjoint occurrences, best first, are added."""
    covered, gain_s, places = 0, 0.0, []
    for nodes in sorted(group, key=lambda nodes: (-gains[nodes], nodes)):
        if gains[nodes] > 0 and not nodes & covered:
            covered |= nodes
            gain_s += gains[nodes]
            places.append(nodes)
    best = max(group, key=lambda nodes: (gains[nodes], -nodes))
    return TuningTask(
        MeasurementRequest(function.name, best, backend),
        tuple(places or [best]),
        region_digest(function, best),
        bound_s(best),
        break_even_s=bound_s(best) + gains[best],
        gain_s=gain_s,
    )


def tuned_options(
    problem: Problem, tuning_task: TuningTask, key: tuple[str, str, str]
) -> list[Option]:
    """Return the search options of a tuned kernel, one for each occurrence."""
    backend = tuning_task.work.backend
    siblings = [
        option for option in problem.options if option.backend == backend
    ] or problem.options
    priority = min((option.priority for option in siblings), default=0)
    graph_capturable = all(option.graph_capturable for option in siblings)
    return [
        Option(nodes, key, backend, priority, variant="tuned", graph_capturable=graph_capturable)
        for nodes in tuning_task.places
    ]
