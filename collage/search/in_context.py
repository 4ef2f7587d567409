"""In-context costs: kernels as they run inside executables.

An isolated measurement starts with flushed caches, idle memory and a clock that the harness set. In an
executable the preceding kernels set these conditions: a kernel that streams much memory is slower there on
some processors, a small one faster. So whenever an executable runs anyway, each of its kernels is timed
inside it. The time that a call spends outside of its kernels is shared out equally among them, and the costs
of a plan's kernels then add up to the latency of one call.

A kernel with samples costs their mean. Kernels without an in-context sample are scaled by the average ratio
of their implementation, shrunk towards the overall ratio when samples are few.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage.cost.cost import Cost
from collage.rules.rule import HOST
from collage.search.problem import Costs, Option, Plan, Problem

PRIOR = 0.1
"""Share of all isolated seconds at which an implementation's own ratio and the overall one weigh the same."""
UNSEEN = 0.01
"""Largest share of a plan's isolated seconds in kernels without samples for the plan to count as sampled."""


@dataclass(frozen=True)
class InContextSample:
    """In-context sample: one kernel timed inside an executable.

    Attributes:
        key: the kernel's option key.
        isolated_s: isolated cost, in seconds.
        in_context_s: time inside the executable with its share of the call's overhead, in seconds.
    """

    key: Hashable
    isolated_s: float
    in_context_s: float


@dataclass
class InContextCosts:
    """In-context samples of one function's kernels.

    Attributes:
        problem: the function's search problem.
        costs: isolated costs by option key.
        samples: samples so far.
    """

    problem: Problem
    costs: Costs
    samples: list[InContextSample] = field(default_factory=list)

    def add(
        self, plan: Plan, kernels_s: Mapping[int, float], call_s: float, latency_s: float
    ) -> None:
        """Add one sample for each profiled kernel of a plan.

        Args:
            plan: the executed plan.
            kernels_s: kernel times by position in the plan, in seconds; views have none.
            call_s: latency of one complete call while profiling, in seconds.
            latency_s: latency of one complete call in the comparison rounds, in seconds.
        """
        for position, seconds in in_context_seconds(kernels_s, call_s, latency_s).items():
            key = plan.options[position].key
            self.samples.append(InContextSample(key, self.costs[key].seconds, seconds))

    def corrected(self) -> dict[Hashable, Cost]:
        """Return the in-context costs of all keys; without samples, the isolated costs."""
        by_key: dict[Hashable, list[InContextSample]] = defaultdict(list)
        by_implementation: dict[tuple[str, str], list[InContextSample]] = defaultdict(list)
        for sample in self.samples:
            by_key[sample.key].append(sample)
            by_implementation[self._implementation(sample.key)].append(sample)
        isolated_s, in_context_s = _sums(self.samples)
        if not isolated_s:
            return dict(self.costs)
        overall = in_context_s / isolated_s
        weight_s = PRIOR * isolated_s
        ratios = {
            implementation: _shrunk_ratio(samples, overall, weight_s)
            for implementation, samples in by_implementation.items()
        }
        corrected = {}
        for key, cost in self.costs.items():
            if key in by_key:
                mean_s = sum(sample.in_context_s for sample in by_key[key]) / len(by_key[key])
                ratio = mean_s / cost.seconds
            else:
                ratio = ratios.get(self._implementation(key), overall)
            is_kernel = cost.is_valid and key != HOST
            corrected[key] = scaled(cost, ratio) if is_kernel else cost
        return corrected

    def is_sampled(self, plan: Plan) -> bool:
        """Tell whether the plan has samples and kernels without one take at most `UNSEEN` of its time."""
        keys = {sample.key for sample in self.samples}
        isolated_s = {True: 0.0, False: 0.0}
        for option in plan.options:
            isolated_s[option.key in keys] += self.costs[option.key].seconds
        has_samples = any(option.key in keys for option in plan.options)
        return has_samples and isolated_s[False] <= UNSEEN * sum(isolated_s.values())

    def _implementation(self, key: Hashable) -> tuple[str, str]:
        options: Sequence[Option] = self.problem.options_of(key)
        return (options[0].backend, options[0].variant) if options else ("", "")


def in_context_seconds(
    kernels_s: Mapping[int, float], call_s: float, latency_s: float
) -> dict[int, float]:
    """Return each kernel's share of a call: its time, and an equal part of the time outside of all kernels.

    Args:
        kernels_s: kernel times by position in the plan, in seconds; views have none.
        call_s: latency of one complete call while profiling, in seconds.
        latency_s: latency of one complete call in the comparison rounds, in seconds.
    """
    total_s = sum(kernels_s.values())
    if not total_s:
        return {}
    speed_factor = latency_s / max(call_s, total_s)
    overhead_s = max(0.0, call_s - total_s) / len(kernels_s)
    return {
        position: speed_factor * (seconds + overhead_s) for position, seconds in kernels_s.items()
    }


def scaled(cost: Cost, factor: float) -> Cost:
    """Return the cost with its seconds, interval and samples multiplied by `factor`."""
    samples = tuple(factor * sample for sample in cost.samples)
    return replace(
        cost,
        seconds=factor * cost.seconds,
        low=factor * cost.low,
        high=factor * cost.high,
        samples=samples,
    )


def scaled_by_speed(costs: Costs, speed_factor: float) -> dict[Hashable, Cost]:
    """Return the costs on a machine with kernels `speed_factor` times as slow; views stay as they are."""
    return {
        key: scaled(cost, speed_factor) if cost.is_valid and key != HOST else cost
        for key, cost in costs.items()
    }


def _sums(samples: Iterable[InContextSample]) -> tuple[float, float]:
    """Return the sums of isolated and of in-context seconds."""
    pairs = [(sample.isolated_s, sample.in_context_s) for sample in samples]
    return sum(isolated_s for isolated_s, _ in pairs), sum(seconds for _, seconds in pairs)


def _shrunk_ratio(samples: Iterable[InContextSample], overall: float, weight_s: float) -> float:
    isolated_s, in_context_s = _sums(samples)
    return (in_context_s + overall * weight_s) / (isolated_s + weight_s)
