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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from collage.errors import BackendError, GateError, MeasureError
from collage.frontend import Function
from collage.verify.accuracy_checker import Budget, Examiner, Golden
from collage.verify.accuracy_samples import Errors
from collage.verify.baselines import REDUCED, original_frameworks
from collage.verify.benchmark_target import Contender
from collage.verify.comparison_rounds import Heats, NextHeat
from collage.verify.final_round import (
    Comparison,
    Judgement,
    finalists,
    judged_original,
    original_reason,
    proven,
    reason_of,
)
from collage.verify.interleaved_benchmark import Arena, Latency, OnRound, fastest_first
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import NOISE, RatioInterval, Verdict

TRIES = 2
"""Comparisons of the original-file plan, which must be slower in each to be refused: it is a framework by
construction, and processes differ by where their memory happens to lie."""


@dataclass(frozen=True)
class OriginalPlans:
    """The original file as a plan: the baselines as which it can be run, and who assembles it."""

    baselines: frozenset[str] = frozenset()
    assemble: Callable[[str], PlanExecutable] | None = None
    """Given a baseline's name; raises BackendError where it cannot be assembled."""


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
            heats = Heats(arena, examiner, self.on_round)
            heats.run(plans, next_heat)
            final = self._final(arena, examiner, heats, baselines, originals)
            retry = not final.passed and final.looks_slower
            if retry and (back := heats.eliminated(reserves)):
                for name in {one.name for one in baselines} & set(arena.names):
                    arena.leave(name)
                heats.run(back, lambda standings: ())
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

    def _final(
        self,
        arena: Arena,
        examiner: Examiner,
        heats: Heats,
        baselines: Sequence[Contender],
        originals: OriginalPlans,
    ) -> _Final:
        """Compare the plans in the arena with the original frameworks, which stay in it."""
        best = heats.inside()
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
                if other.verdict is Verdict.NOT_SLOWER:  # else the faster one stays the candidate
                    chosen, reason = order[1], reason_of(order[1], other, found.text())
                    found = other
            break
        if not best:
            if not originals.baselines.intersection(judging):
                raise heats.none_left()
            chosen = found = None
        return _Final(comparison, excused, tuple(best), judging, chosen, found, reason)

    def _alive(
        self, heats: Heats, plans: Sequence[PlanExecutable], comparison: Comparison
    ) -> list[PlanExecutable]:
        """Return the plans that have not died in the comparison; the others are rejected."""
        found = {plan.name: comparison.latencies[plan.name] for plan in plans}
        alive = heats.survivors(found)
        return [plan for plan in plans if plan.name in alive]

    def _decision(self, arena: Arena, final: _Final, heats: Heats) -> Decision:
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
        self, arena: Arena, examiner: Examiner, final: _Final, originals: OriginalPlans
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
        examiner: Examiner,
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
        self, arena: Arena, examiner: Examiner, plan: PlanExecutable, judging: Sequence[str]
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
