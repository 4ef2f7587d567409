"""Plans are compared with each other, a few at a time with the leaders so far; the best ones stay.

Each executable that is loaded holds the model's weights, so memory says how many meet at once. One that is
surely slower than the leader stops early, and one whose numbers are wrong is rejected before it is timed.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from collage.errors import GateError
from collage.verify.accuracy_checker import Examiner
from collage.verify.accuracy_samples import Errors
from collage.verify.interleaved_benchmark import (
    Arena,
    KernelProfile,
    Latency,
    OnRound,
    fastest_first,
)
from collage.verify.plan_executable import PlanExecutable

SCREEN_S = 0.6
FINALISTS = 2
AT_ONCE = (FINALISTS + 2, 6)
"""Fewest and most executables that are loaded at the same time: each holds the model's weights."""
LOADED_BYTES = 5 << 29
COPIES = 4
"""Times that a loaded executable holds its weights: the file, the blob, and what a library packs."""


@dataclass(frozen=True)
class Standings:
    """How plans stand after a heat.

    Attributes:
        latencies: of those that are loaded, fastest first.
        errors: of all that were tried so far, under a budget.
        profile: times one that is loaded and its kernels; raises MeasureError.
    """

    latencies: Mapping[str, Latency]
    errors: Mapping[str, Errors]
    profile: Callable[[str], KernelProfile]


NextHeat = Callable[[Standings], Sequence[PlanExecutable]]
"""More plans; none ends the heats."""


@dataclass
class Heats:
    """What came of the heats so far: who entered, how fast they were, and who was rejected."""

    arena: Arena
    examiner: Examiner
    on_round: OnRound | None = None
    met: list[PlanExecutable] = field(default_factory=list)
    latencies: dict[str, Latency] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)

    def survivors(self, found: Mapping[str, Latency]) -> dict[str, Latency]:
        """Return the latencies of those that have not died.

        The others are rejected with the reason, and how fast they were before does not count.
        """
        died = {name: one.reason for name, one in found.items() if one.reason}
        self.rejected |= died
        for name in died:
            self.latencies.pop(name, None)
        return {name: one for name, one in found.items() if name not in died}

    def none_left(self) -> GateError:
        """Say why no plan is left."""
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.rejected.items())
        return GateError(f"no executable computes the original model's numbers ({reasons})")

    def inside(self) -> list[PlanExecutable]:
        """Return the plans that are in the arena now."""
        return [plan for plan in self.met if plan.name in self.arena.names]

    def run(self, plans: Sequence[PlanExecutable], next_heat: NextHeat) -> None:
        """Race the plans, a few at a time with the leaders so far; the best `FINALISTS` stay.

        So does the best single-toolchain plan, which ships when the gate refuses the mix.
        """
        waiting = list(plans)
        while waiting:
            room = _most_at_once(waiting) - len(self.arena.names)
            heat, waiting = waiting[:room], waiting[room:]
            self.met += [plan for plan in heat if plan not in self.met]
            self.rejected |= self.arena.enter([self.examiner.target(plan) for plan in heat])
            for plan in heat:
                if plan.name in self.arena.names and (why := self.examiner.wrong(plan)):
                    self.rejected[plan.name] = why
                    self.arena.leave(plan.name)
            if self.arena.names:
                found = self.survivors(self.arena.race(self.arena.names, SCREEN_S, self.on_round))
                self.latencies |= found
                order = fastest_first(found)
                if order and not waiting:
                    ranked = {name: found[name] for name in order}
                    waiting = [
                        *next_heat(Standings(ranked, self.examiner.errors, self.arena.profile))
                    ]
                _dismiss(self.arena, order, {plan.name for plan in self.met if plan.single})

    def eliminated(self, reserves: Callable[[], Sequence[PlanExecutable]]) -> list[PlanExecutable]:
        """Return the plans that may come back: those with the right numbers, and the reserves."""
        gone = {*self.arena.names, *self.rejected}
        return [*(plan for plan in self.met if plan.name not in gone), *reserves()]


def _most_at_once(plans: Sequence[PlanExecutable]) -> int:
    fewest, most = AT_ONCE
    size_bytes = max(plan.path.stat().st_size for plan in plans)
    return max(fewest, min(most, LOADED_BYTES // (COPIES * size_bytes + 1)))


def _dismiss(arena: Arena, order: Sequence[str], singles: Set[str]) -> None:
    spare = next((name for name in order if name in singles), "")
    for name in order[FINALISTS:]:
        if name != spare:
            arena.leave(name)
