"""The gate: only an executable with the right numbers that is proven as fast as every toolchain ships.

Plans are first compared with each other, then the best ones meet the original frameworks, all
interleaved. A plan with regions in less than float32 is held to the error budget on every sample
(`verify.trials`), all others to the tolerances of every candidate; one that is beyond is rejected, and
the others go on: plans in float32 are always among them. The original frameworks get the same
permission: OpenVINO runs in bfloat16 too, and counts where it keeps the budget.

A plan of regions ships where it is proven to be as fast as every framework (`verify.verdict`). Otherwise
the original file itself ships, run as the framework that was the fastest runs it: its numbers are right by
definition. Where that is not possible, a plan may be slower by `NOISE`. Single-toolchain plans are among
the plans, so where mixing does not pay, by `LEAST_GAIN` or by less but surely, the best of them is judged.
A busy machine can eliminate the fastest plan early: where the best one looks slower than an original
framework, all that were eliminated come back once, and with them plans that nobody had asked for before.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from collage.errors import BackendError, GateError, MeasureError
from collage.frontend import Function
from collage.frontend.region import function_outputs_of
from collage.verify.contender_process import Contender
from collage.verify.final import (
    Comparison,
    Judgement,
    finalists,
    judged_original,
    original_reason,
    proven,
    reason_of,
)
from collage.verify.frameworks import REDUCED, original_frameworks
from collage.verify.latency import Arena, KernelProfile, Latency, OnRound, fastest_first
from collage.verify.numerics import compare_outputs
from collage.verify.plan_executable import PlanExecutable, function_signature
from collage.verify.trials import Errors, beyond
from collage.verify.verdict import NOISE, RatioInterval, Verdict

TRIES = 2
"""Comparisons of the original-file plan, which must be slower in each to be refused: it is a framework by
construction, and processes differ by where their memory happens to lie."""
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


@dataclass(frozen=True)
class Budget:
    """What plans in less than float32 may be off by, and the trials (`verify.trials`) that show it."""

    tolerance: float
    trials: Path


@dataclass(frozen=True)
class OriginalPlans:
    """The original file as a plan: the baselines as which it can be run, and who assembles it."""

    baselines: frozenset[str] = frozenset()
    assemble: Callable[[str], PlanExecutable] | None = None
    """Given a baseline's name; raises BackendError where it cannot be assembled."""


@dataclass(frozen=True)
class Golden:
    """What the original-file plan computes of the gate's inputs: the numbers that are right for it."""

    outputs: Mapping[str, np.ndarray]
    deterministic: bool
    """Two calls gave the same numbers."""


@dataclass(frozen=True)
class Decision:
    """What ships and why; `latencies` hold every target that was compared whole.

    Those of the `finalists` come from one comparison, the others from rounds at other times. `ratios` are
    those of what ships to each original framework that ran. Under a budget, `errors` are those of all
    targets that were checked, and `excused` says of a baseline why it is faster than it may be.
    `golden` is there where the original file ships.
    """

    chosen: PlanExecutable
    latency: Latency
    baselines: Mapping[str, Latency]
    latencies: Mapping[str, Latency]
    rejected: Mapping[str, str]
    verdict: Verdict
    reason: str
    ratios: Mapping[str, RatioInterval] = field(default_factory=dict)
    errors: Mapping[str, Errors] = field(default_factory=dict)
    excused: Mapping[str, str] = field(default_factory=dict)
    finalists: tuple[str, ...] = ()
    golden: Golden | None = None

    @property
    def passed(self) -> bool:
        """Tell whether it is proven as fast as every original framework."""
        return self.verdict is Verdict.NOT_SLOWER


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
    """A comparison of plans with the original frameworks; `chosen` is None where no plan is left."""

    comparison: Comparison
    excused: Mapping[str, str]
    plans: "tuple[PlanExecutable, ...]"
    judging: Sequence[str]
    """Frameworks that ran and count, the fastest first."""
    chosen: PlanExecutable | None
    judgement: Judgement | None
    reason: str = ""

    @property
    def latencies(self) -> Mapping[str, Latency]:
        return self.comparison.latencies

    @property
    def passed(self) -> bool:
        return self.judgement is not None and self.judgement.verdict is Verdict.NOT_SLOWER

    @property
    def looks_slower(self) -> bool:
        """Tell whether the plan looks slower than a framework, by more than noise, or there is none."""
        worst = self.judgement.worst if self.judgement else None
        return self.chosen is None or (worst is not None and worst[1].ratio > 1 + NOISE)


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
        originals: OriginalPlans = OriginalPlans(),
    ) -> Decision:
        """Choose the executable that ships.

        Args:
            function: the function whose plans these are.
            plans: the assembled plans, single-toolchain ones included.
            inputs: input arrays in the function's order.
            expected: the original model's outputs.
            next_heat: more plans, given how those so far stand; none ends the heats.
            reserves: plans that are tried only where all others look slower than a framework.
            originals: the original file as a plan, where nothing else is proven as fast.

        Raises:
            GateError: no plan computes the model's numbers; says for each what differs.
        """
        baselines = self._frameworks
        errors: dict[str, Errors] = {}
        with Arena(inputs, self.threads, self.work_dir) as arena:
            examiner = Examiner(arena, function, expected, self.budget, errors)
            if self.budget:
                arena.ask(Contender("original", "original", self.model), self.budget.trials)
            heats = _Heats()
            self._run_heats(arena, examiner, heats, plans, next_heat)
            final = self._final(arena, examiner, heats, baselines, originals)
            retry = not final.passed and final.looks_slower
            if retry and (back := _sent_home(arena, heats, reserves)):
                for name in {one.name for one in baselines} & set(arena.names):
                    arena.leave(name)
                self._run_heats(arena, examiner, heats, back, lambda standings: ())
                final = self._final(arena, examiner, heats, baselines, originals)
            found = None if final.passed else self._original(arena, examiner, final, originals)
            kept = found or self._decision(arena, final, heats)
        heats.latencies |= {plan.name: final.latencies[plan.name] for plan in final.plans}
        return replace(
            kept,
            baselines={one.name: kept.baselines[one.name] for one in baselines},
            latencies={**heats.latencies, **kept.latencies},
            rejected=heats.rejected,
            errors=errors,
            excused=final.excused,
            finalists=tuple(plan.name for plan in final.plans),
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
            heats.rejected |= arena.enter([examiner.target(plan) for plan in heat])
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
        self,
        arena: Arena,
        examiner: "Examiner",
        heats: _Heats,
        baselines: Sequence[Contender],
        originals: OriginalPlans,
    ) -> _Final:
        """Compare the plans in the arena with the original frameworks, which stay in it."""
        best = heats.inside(arena)
        if not best and not originals.baselines:
            raise heats.none_left()
        refused = arena.enter(baselines)
        running = [one.name for one in baselines if one.name not in refused]
        excused = examiner.excuse(set(running) & REDUCED)
        comparison = Comparison(arena, self.seconds_each, self.on_round)
        if names := [*(plan.name for plan in best), *running]:
            comparison.run(names)
        comparison.latencies |= {n: Latency(math.nan, reason=why) for n, why in refused.items()}
        judging = [name for name in comparison.ran(running) if name not in excused]
        judging = fastest_first({name: comparison.latencies[name] for name in judging})
        fallback = bool(judging) and judging[0] in originals.baselines
        allowance, hopeless = (0.0, 1.0) if fallback else (NOISE, math.inf)
        chosen, found, reason = None, None, ""
        while best := self._alive(heats, best, comparison):
            order = finalists(best, comparison.latencies)
            chosen = order[0]
            found = proven(comparison, chosen.name, judging, allowance, hopeless)
            if found is None:
                continue  # it has died
            reason = reason_of(chosen, found)
            if found.verdict is not Verdict.NOT_SLOWER and order[1:]:
                other = proven(comparison, order[1].name, judging, allowance, hopeless)
                if other is None:
                    continue
                chosen, reason = order[1], reason_of(order[1], other, found.text())
                found = other
            break
        if not best:
            if not originals.baselines.intersection(judging):
                raise heats.none_left()
            chosen = found = None
        return _Final(comparison, excused, tuple(best), judging, chosen, found, reason)

    def _alive(
        self, heats: _Heats, plans: Sequence[PlanExecutable], comparison: Comparison
    ) -> list[PlanExecutable]:
        """Return the plans that have not died in the comparison; the others are rejected."""
        found = {plan.name: comparison.latencies[plan.name] for plan in plans}
        alive = heats.survivors(found)
        return [plan for plan in plans if plan.name in alive]

    def _decision(self, arena: Arena, final: _Final, heats: _Heats) -> Decision:
        """Return what ships where that is a plan of regions; one that has to ship has an allowance."""
        if final.chosen is None or final.judgement is None:
            raise heats.none_left()
        chosen, found, reason = final.chosen, final.judgement, final.reason
        if not final.passed and found.allowance < NOISE:
            missing = [one for one in self._frameworks if one.name in final.judging]
            arena.enter([one for one in missing if one.name not in arena.names])
            again = proven(final.comparison, chosen.name, final.judging, NOISE)
            if again is None:
                raise GateError(f"{chosen.name} died: {final.latencies[chosen.name].reason}")
            found, reason = again, reason_of(chosen, again)
        return Decision(
            chosen,
            final.latencies[chosen.name],
            final.latencies,
            {},
            {},
            found.verdict,
            reason,
            found.ratios,
        )

    def _original(
        self, arena: Arena, examiner: "Examiner", final: _Final, originals: OriginalPlans
    ) -> Decision | None:
        """Let the original file ship, as the fastest framework that can run it; None where none can."""
        for own in [name for name in final.judging if name in originals.baselines]:
            found = self._as_baseline(arena, examiner, final, originals, own)
            if found is not None and (found.passed or final.judgement is None):
                return found
        return None

    def _as_baseline(
        self,
        arena: Arena,
        examiner: "Examiner",
        final: _Final,
        originals: OriginalPlans,
        own: str,
    ) -> Decision | None:
        """Compare the original-file plan of one framework with all; None where it does not run."""
        assert originals.assemble is not None, "whoever names baselines can assemble their plans"
        try:
            plan = originals.assemble(own)
        except BackendError:
            return None
        kept = {final.chosen.name} if final.chosen else set()
        for name in set(arena.names) - kept:
            arena.leave(name)
        compared = None
        for _ in range(TRIES):
            compared = self._compared_original(arena, examiner, plan, final.judging)
            if compared is None or compared.passed:
                break
        if compared is None:
            return None
        return replace(compared, baselines={**final.latencies, **compared.baselines})

    def _compared_original(
        self, arena: Arena, examiner: "Examiner", plan: PlanExecutable, judging: Sequence[str]
    ) -> Decision | None:
        """Compare the original-file plan with the frameworks, all in fresh processes.

        Returns:
            None where the plan does not run, or dies.
        """
        frameworks = [one for one in self._frameworks if one.name in judging]
        refused = arena.enter([examiner.target(plan), *frameworks])
        baselines = [one.name for one in frameworks if one.name not in refused]
        try:
            if plan.name in refused:
                return None
            golden = examiner.golden(plan)
            comparison = Comparison(arena, self.seconds_each, self.on_round)
            comparison.run([plan.name, *baselines])
            if comparison.latencies[plan.name].reason:
                return None
            found = judged_original(comparison, plan.name, comparison.ran(baselines))
        except MeasureError:
            return None
        finally:
            for name in {plan.name, *baselines} & set(arena.names):
                arena.leave(name)
        if found is None:
            return None
        latency = comparison.latencies[plan.name]
        return Decision(
            plan,
            latency,
            {name: comparison.latencies[name] for name in baselines},
            {plan.name: latency},
            {},
            found.verdict,
            original_reason(plan, found),
            found.ratios,
            golden=golden,
        )

    @cached_property
    def _frameworks(self) -> list[Contender]:
        return original_frameworks(
            self.model,
            may_reduce=self.budget is not None,
            device=self.device,
            engines=self.engines,
        )


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

    def target(self, plan: PlanExecutable) -> Contender:
        """Return the plan as a benchmark target."""
        signature = function_signature(self.function, plan.kernel)
        return Contender(plan.name, "executable", plan.path, signature, plan.device)

    def golden(self, plan: PlanExecutable) -> Golden:
        """Run the original-file plan twice. Raises MeasureError when it dies."""
        if self.budget:
            self.errors[plan.name] = self.arena.check(plan.name, self.budget.trials)
        names = self.function.graph.outputs
        first, second = (
            dict(zip(names, self.arena.outputs(plan.name), strict=True)) for _ in range(2)
        )
        checks = compare_outputs(first, second, quantised=is_quantised(self.function))
        return Golden(first, all(check.passed for check in checks))

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
