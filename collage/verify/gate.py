"""The gate: only an executable with the right numbers that is not slower than a single toolchain ships.

Plans are first compared with each other, then the best one meets the original frameworks, all
interleaved. A plan with regions in less than float32 is held to the error budget on every trial
(`verify.trials`), all others to the tolerances of every candidate; one that is beyond is rejected, and
the others go on: plans in float32 are always among them. The original frameworks get the same
permission: OpenVINO runs in bfloat16 too, and counts where it keeps the budget.

Single-toolchain plans are among the plans, so where mixing does not pay, by `LEAST_GAIN` or by less but
surely, the best of them is what ships. A busy machine can send the fastest plan home early: where the
best one is slower than an original framework, all that were sent home come back once, and with them
plans that nobody had asked for before. Speed is judged on ratios taken round by round; a ratio within
`NOISE` of 1, or whose interval reaches 1, is not "slower".
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from collage.errors import GateError, MeasureError
from collage.frontend import Function
from collage.frontend.region import function_outputs_of
from collage.verify.contender_process import Contender
from collage.verify.frameworks import REDUCED, original_frameworks
from collage.verify.latency import (
    Arena,
    KernelProfile,
    Latency,
    OnRound,
    fastest_first,
    interval_of_ratio,
    ratio,
)
from collage.verify.numerics import compare_outputs
from collage.verify.trials import Errors, beyond

NOISE = 0.02
LEAST_GAIN = 0.01
SCREEN_S = 0.6
FINALISTS = 2
AT_ONCE = (FINALISTS + 2, 6)
"""Fewest and most executables that are loaded at the same time: each holds the model's weights."""
LOADED_BYTES = 5 << 29
COPIES = 4
"""Times that a loaded executable holds its weights: the file, the blob, and what a library packs."""


@dataclass(frozen=True)
class PlanExecutable:
    """An assembled plan: `single` names the one backend it uses, "" for a mix."""

    name: str
    path: Path
    predicted_s: float
    single: str = ""
    reduced: bool = False
    device: str = "cpu"
    """What it was assembled for."""


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


@dataclass(frozen=True)
class Budget:
    """What plans in less than float32 may be off by, and the trials (`verify.trials`) that show it."""

    tolerance: float
    trials: Path


@dataclass(frozen=True)
class Decision:
    """What ships and why; `latencies` hold every contender that was compared whole.

    Those of the `finalists` come from one comparison, the others from heats at other times. Under a
    budget, `errors` are those of all contenders that were tried, and `excused` says of a baseline why
    it is faster than it may be.
    """

    chosen: PlanExecutable
    latency: Latency
    baselines: Mapping[str, Latency]
    latencies: Mapping[str, Latency]
    rejected: Mapping[str, str]
    passed: bool
    reason: str
    errors: Mapping[str, Errors] = field(default_factory=dict)
    excused: Mapping[str, str] = field(default_factory=dict)
    finalists: tuple[str, ...] = ()


@dataclass
class _Heats:
    """What came of the heats so far: who entered, how fast they were, and who was rejected."""

    met: "list[PlanExecutable]" = field(default_factory=list)
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
        return GateError(f"no executable computes the original model's numbers: {reasons}")

    def inside(self, arena: Arena) -> "list[PlanExecutable]":
        """Return the plans that are in the arena now."""
        return [plan for plan in self.met if plan.name in arena.names]


@dataclass(frozen=True)
class _Final:
    """The comparison of the best plans with the original frameworks, and its verdict."""

    latencies: Mapping[str, Latency]
    excused: Mapping[str, str]
    plans: "tuple[PlanExecutable, ...]"
    chosen: PlanExecutable
    passed: bool
    reason: str


@dataclass(frozen=True)
class Gate:
    """Settings of one decision."""

    model: Path
    threads: int
    seconds_each: float
    work_dir: Path
    on_round: OnRound | None = None
    budget: Budget | None = None
    device: str = "cpu"
    engines: Path | None = None
    """Where engines of whole models are kept, for the frameworks on a GPU."""

    def decide(
        self,
        function: Function,
        plans: Sequence[PlanExecutable],
        inputs: dict[str, np.ndarray],
        expected: Mapping[str, np.ndarray],
        next_heat: NextHeat = lambda standings: (),
        reserves: Callable[[], Sequence[PlanExecutable]] = tuple,
    ) -> Decision:
        """Choose the executable that ships.

        Args:
            function: the function whose plans these are.
            plans: the assembled plans, single-toolchain ones included.
            inputs: input arrays in the function's order.
            expected: the original model's outputs.
            next_heat: more plans, given how those so far stand; none ends the heats.
            reserves: plans that are tried only where all others are slower than a framework.

        Raises:
            GateError: no plan computes the model's numbers; says for each what differs.
        """
        baselines = original_frameworks(
            self.model,
            may_reduce=self.budget is not None,
            device=self.device,
            engines=self.engines,
        )
        errors: dict[str, Errors] = {}
        with Arena(inputs, self.threads, self.work_dir) as arena:
            examiner = Examiner(arena, function, expected, self.budget, errors)
            if self.budget:
                arena.ask(Contender("original", "original", self.model), self.budget.trials)
            heats = _Heats()
            self._run_heats(arena, examiner, heats, plans, next_heat)
            final = self._final(arena, examiner, heats, baselines)
            if not final.passed and (back := _sent_home(arena, heats, reserves)):
                for name in {one.name for one in baselines} & set(arena.names):
                    arena.leave(name)
                self._run_heats(arena, examiner, heats, back, lambda standings: ())
                final = self._final(arena, examiner, heats, baselines)
        return Decision(
            final.chosen,
            final.latencies[final.chosen.name],
            {contender.name: final.latencies[contender.name] for contender in baselines},
            heats.latencies | {plan.name: final.latencies[plan.name] for plan in final.plans},
            heats.rejected,
            final.passed,
            final.reason,
            errors,
            final.excused,
            tuple(plan.name for plan in final.plans),
        )

    def _run_heats(
        self,
        arena: Arena,
        examiner: "Examiner",
        heats: _Heats,
        plans: Sequence[PlanExecutable],
        next_heat: NextHeat,
    ) -> None:
        """Race the plans, a few at a time with the leaders so far; the best `FINALISTS` stay.

        So does the best single-toolchain plan, which ships when the gate refuses the mix.
        """
        waiting = list(plans)
        while waiting:
            room = _most_at_once(waiting) - len(arena.names)
            heat, waiting = waiting[:room], waiting[room:]
            heats.met += [plan for plan in heat if plan not in heats.met]
            heats.rejected |= arena.enter(
                [Contender(p.name, "executable", p.path, device=p.device) for p in heat]
            )
            for plan in heat:
                if plan.name in arena.names and (why := examiner.wrong(plan)):
                    heats.rejected[plan.name] = why
                    arena.leave(plan.name)
            if arena.names:
                found = heats.survivors(arena.race(arena.names, SCREEN_S, self.on_round))
                heats.latencies |= found
                order = fastest_first(found)
                if order and not waiting:
                    ranked = {name: found[name] for name in order}
                    waiting = [*next_heat(Standings(ranked, examiner.errors, arena.profile))]
                _dismiss(arena, order, {plan.name for plan in heats.met if plan.single})

    def _final(
        self, arena: Arena, examiner: "Examiner", heats: _Heats, baselines: Sequence[Contender]
    ) -> _Final:
        """Compare the plans in the arena with the original frameworks, which stay in it."""
        best = heats.inside(arena)
        if not best:
            raise heats.none_left()
        refused = arena.enter(baselines)
        running = [one.name for one in baselines if one.name not in refused]
        excused = examiner.excuse(set(running) & REDUCED)
        names = [*(plan.name for plan in best), *running]
        found = arena.compare(names, self.seconds_each, self.on_round)
        alive = heats.survivors({plan.name: found[plan.name] for plan in best})
        best = [plan for plan in best if plan.name in alive]
        if not best:
            raise heats.none_left()
        found |= {name: Latency(math.nan, reason=why) for name, why in refused.items()}
        judging = [one.name for one in baselines if one.name not in excused]
        return _Final(found, excused, tuple(best), *choose(best, found, judging))


def _sent_home(
    arena: Arena, heats: _Heats, reserves: Callable[[], Sequence[PlanExecutable]]
) -> list[PlanExecutable]:
    """Return the plans that may come back: those with the right numbers, and the reserves."""
    gone = {*arena.names, *heats.rejected}
    return [*(plan for plan in heats.met if plan.name not in gone), *reserves()]


def _most_at_once(plans: Sequence[PlanExecutable]) -> int:
    fewest, most = AT_ONCE
    size_bytes = max(plan.path.stat().st_size for plan in plans)
    return max(fewest, min(most, LOADED_BYTES // (COPIES * size_bytes + 1)))


def _dismiss(arena: Arena, order: Sequence[str], singles: Set[str]) -> None:
    spare = next((name for name in order if name in singles), "")
    for name in order[FINALISTS:]:
        if name != spare:
            arena.leave(name)


@dataclass(frozen=True)
class Examiner:
    """Holds the numbers of contenders in the arena against the original's; keeps their `errors`."""

    arena: Arena
    function: Function
    expected: Mapping[str, np.ndarray]
    budget: Budget | None
    errors: dict[str, Errors]

    def wrong(self, plan: PlanExecutable) -> str:
        """Say how the plan's outputs differ from the original's, "" when they do not."""
        try:
            if self.budget:
                self.errors[plan.name] = self.arena.check(plan.name, self.budget.trials)
                if plan.reduced:
                    return beyond(self.errors[plan.name], self.budget.tolerance)
            results = self.arena.outputs(plan.name)
        except MeasureError as error:
            return str(error)
        actual = dict(zip(self.function.graph.outputs, results, strict=True))
        softmax = function_outputs_of(self.function, frozenset({"Softmax"}))
        quantised = is_quantised(self.function)
        checks = compare_outputs(self.expected, actual, softmax, quantised=quantised)
        return ", ".join(f"{check.name}: {check.reason}" for check in checks if not check.passed)

    def excuse(self, names: Set[str]) -> dict[str, str]:
        """Say of baselines in less than float32 why they do not count; those that do are left out."""
        found: dict[str, str] = {}
        if self.budget is None:
            return found
        for name in sorted(names):
            try:
                self.errors[name] = self.arena.check(name, self.budget.trials)
            except MeasureError as error:
                found[name] = str(error)
                continue
            if why := beyond(self.errors[name], self.budget.tolerance):
                found[name] = why
        return found


def is_quantised(function: Function) -> bool:
    """Tell whether the function converts between floats and small integers."""
    return any("Quantize" in node.op or "Integer" in node.op for node in function.graph.nodes)


def choose(
    plans: Sequence[PlanExecutable], final: Mapping[str, Latency], baselines: Sequence[str]
) -> tuple[PlanExecutable, bool, str]:
    """Return what ships, whether it passes, and why.

    A mix that is slower than a baseline gives way to the best plan of one toolchain, which is then
    judged itself. So does one that is hardly faster than that plan: what the rounds of one comparison
    cannot tell apart, luck has put in order.
    """
    named = {plan.name: plan for plan in plans}
    by_speed = [named[name] for name in fastest_first({name: final[name] for name in named})]
    chosen = by_speed[0]
    single = next((plan for plan in by_speed if plan.single), None)
    if single and not _gains(final[chosen.name], final[single.name]):
        chosen = single
    passed, reason = judge(chosen, final, baselines)
    if passed or chosen.single or single is None:
        return chosen, passed, reason
    passed, verdict = judge(single, final, baselines)
    return single, passed, f"the mix is {reason}; {single.single} alone ships instead: {verdict}"


def _gains(faster: Latency, slower: Latency) -> bool:
    """Tell whether one is faster by `LEAST_GAIN`, or surely by less."""
    _, high = interval_of_ratio(faster.rounds, slower.rounds)
    return ratio(faster, slower) <= 1 - LEAST_GAIN or high < 1


def judge(
    chosen: PlanExecutable, final: Mapping[str, Latency], baselines: Sequence[str]
) -> tuple[bool, str]:
    """Tell whether the chosen plan is slower than a baseline beyond noise, and put it into words."""
    for name in baselines:
        if final[name].reason:
            continue
        times = ratio(final[chosen.name], final[name])
        low, _ = interval_of_ratio(final[chosen.name].rounds, final[name].rounds)
        if times > 1 + NOISE and low > 1:
            return False, f"{(times - 1) * 100:.1f} % slower than {name} on the original file"
    alone = f"no mix is faster than {chosen.single} alone"
    what = alone if chosen.single else "the mix is the fastest"
    how = "within the tolerance of" if chosen.reduced else "equal to"
    return True, f"outputs {how} the original model's; {what}"
