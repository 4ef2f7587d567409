"""Comparison rounds: plans meet a few at a time, and the best ones go on to the final round.

Each loaded executable holds the model's weights, so the free memory bounds the plans of one round. A plan
with wrong numbers is rejected before it is timed. A plan that is certainly slower than the leading one stops
early. Eliminated plans are kept by name: the gate may compare them again.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from collage.errors import GateError
from collage.verify.accuracy_checker import AccuracyChecker
from collage.verify.accuracy_samples import Errors
from collage.verify.benchmark_target import KernelProfile
from collage.verify.interleaved_benchmark import (
    InterleavedBenchmark,
    Latency,
    OnRound,
    fastest_first,
)
from collage.verify.plan_executable import PlanExecutable

SCREEN_S = 0.6
"""Time of each plan in one comparison round, in seconds."""
FINALISTS = 2
"""Plans of a comparison round that stay loaded for the next one."""
AT_ONCE = (FINALISTS + 2, 6)
"""Fewest and most executables that are loaded at the same time: each holds the model's weights."""
LOADED_BYTES = 5 << 29
"""Memory of all loaded executables, in bytes."""
COPIES = 4
"""Copies of the weights in a loaded executable: the file, the blob, and packed forms of a library."""


@dataclass(frozen=True)
class RoundResults:
    """Results of one comparison round.

    Attributes:
        latencies: latencies of the loaded plans by name, fastest first.
        errors: largest errors of all plans so far by name; empty without an error budget.
        profile: profiler of one loaded plan, by name; raises MeasureError.
    """

    latencies: Mapping[str, Latency]
    errors: Mapping[str, Errors]
    profile: Callable[[str], KernelProfile]


ProposePlans = Callable[[RoundResults], Sequence[PlanExecutable]]
"""Plans of the next round, given the results of the last; none ends the rounds."""


@dataclass
class ComparisonRounds:
    """All comparison rounds so far: their plans, the latencies, and the reasons of rejected plans."""

    benchmark: InterleavedBenchmark
    checker: AccuracyChecker
    on_round: OnRound | None = None
    plans: list[PlanExecutable] = field(default_factory=list)
    latencies: dict[str, Latency] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)

    def reject_failed(self, latencies: Mapping[str, Latency]) -> dict[str, Latency]:
        """Reject plans whose process ended; return the latencies of the others.

        Earlier latencies of a rejected plan are dropped.
        """
        failed = {name: latency.reason for name, latency in latencies.items() if latency.reason}
        self.rejected |= failed
        for name in failed:
            self.latencies.pop(name, None)
        return {name: latency for name, latency in latencies.items() if name not in failed}

    def no_plan_error(self) -> GateError:
        """Return the error for the case that every plan is rejected."""
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.rejected.items())
        return GateError(f"no executable computes the original model's numbers ({reasons})")

    def loaded(self) -> list[PlanExecutable]:
        """Return the plans that are loaded now."""
        return [plan for plan in self.plans if plan.name in self.benchmark.names]

    def run(self, plans: Sequence[PlanExecutable], propose_plans: ProposePlans) -> None:
        """Compare the plans, a few at a time with the leading ones; the best `FINALISTS` stay loaded.

        The best plan of one toolchain stays too: it ships where the gate refuses the mix.
        """
        waiting = list(plans)
        while waiting:
            free_places = _most_at_once(waiting) - len(self.benchmark.names)
            entering, waiting = waiting[:free_places], waiting[free_places:]
            self._enter(entering)
            if not self.benchmark.names:
                continue
            latencies = self.reject_failed(
                self.benchmark.eliminate_slow(self.benchmark.names, SCREEN_S, self.on_round)
            )
            self.latencies |= latencies
            order = fastest_first(latencies)
            if order and not waiting:
                ranked = {name: latencies[name] for name in order}
                results = RoundResults(ranked, self.checker.errors, self.benchmark.profile)
                waiting = [*propose_plans(results)]
            _unload(self.benchmark, order, {plan.name for plan in self.plans if plan.single})

    def eliminated(
        self, fallback_plans: Callable[[], Sequence[PlanExecutable]]
    ) -> list[PlanExecutable]:
        """Return the plans for a second chance: eliminated ones with right numbers, and fallback plans."""
        excluded = {*self.benchmark.names, *self.rejected}
        return [*(plan for plan in self.plans if plan.name not in excluded), *fallback_plans()]

    def _enter(self, plans: Sequence[PlanExecutable]) -> None:
        """Load the plans and check their numbers."""
        self.plans += [plan for plan in plans if plan not in self.plans]
        self.rejected |= self.benchmark.enter([self.checker.target(plan) for plan in plans])
        for plan in plans:
            if plan.name in self.benchmark.names and (reason := self.checker.wrong(plan)):
                self.rejected[plan.name] = reason
                self.benchmark.leave(plan.name)


def _most_at_once(plans: Sequence[PlanExecutable]) -> int:
    minimum, maximum = AT_ONCE
    size_bytes = max(plan.path.stat().st_size for plan in plans)
    return max(minimum, min(maximum, LOADED_BYTES // (COPIES * size_bytes + 1)))


def _unload(benchmark: InterleavedBenchmark, order: Sequence[str], singles: Set[str]) -> None:
    best_single = next((name for name in order if name in singles), "")
    for name in order[FINALISTS:]:
        if name != best_single:
            benchmark.leave(name)
