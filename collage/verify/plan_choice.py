"""The choice among plans of regions: one final round with the original frameworks, and its result.

Where the fastest framework can ship as the original-file plan, a plan of regions must be proven not slower
and is given up once its median ratio reaches 1. Where nothing else can ship, it may be slower by `NOISE`.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from collage.errors import GateError
from collage.verify.baselines import REDUCED
from collage.verify.benchmark_target import BenchmarkTarget
from collage.verify.comparison_rounds import ComparisonRounds
from collage.verify.decision import Decision
from collage.verify.final_round import (
    Comparison,
    Judgement,
    judge_until_proven,
    plans_to_judge,
    reason_of,
)
from collage.verify.framework_answers import compare_answers
from collage.verify.interleaved_benchmark import Latency, fastest_first
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import NOISE, Verdict


@dataclass(frozen=True)
class _Judged:
    """A plan with its judgement and the reason for it in words."""

    plan: PlanExecutable
    judgement: Judgement
    reason: str


@dataclass(frozen=True)
class FinalRound:
    """Result of the final round.

    Attributes:
        comparison: comparison of plans and frameworks.
        exempt: reasons of frameworks that do not count, by name: beyond the error budget, or wrong numbers.
        plans: plans of the round that have not failed.
        judging: names of the frameworks that ran and count, fastest first.
        judged: the chosen plan; None where no plan is left.
        answers_note: differences among the frameworks' numbers in words, "" where they agree.
    """

    comparison: Comparison
    exempt: Mapping[str, str]
    plans: tuple[PlanExecutable, ...]
    judging: Sequence[str]
    judged: _Judged | None
    answers_note: str

    @property
    def latencies(self) -> Mapping[str, Latency]:
        return self.comparison.latencies

    @property
    def passed(self) -> bool:
        """Whether a plan is proven as fast as every framework."""
        return self.judged is not None and self.judged.judgement.verdict is Verdict.NOT_SLOWER

    @property
    def looks_slower(self) -> bool:
        """Whether the plan's median is slower than a framework's by more than `NOISE`, or none is left."""
        if self.judged is None:
            return True
        worst = self.judged.judgement.worst
        return worst is not None and worst[1].ratio > 1 + NOISE


def run_final_round(
    rounds: ComparisonRounds,
    frameworks: Sequence[BenchmarkTarget],
    shippable: Set[str],
    seconds_each: float,
) -> FinalRound:
    """Compare the loaded plans with the original frameworks, which stay loaded.

    Args:
        rounds: comparison rounds that selected the plans.
        frameworks: original frameworks.
        shippable: names of the frameworks that can ship as the original-file plan.
        seconds_each: time of each target, in seconds.

    Raises:
        GateError: no plan is left and the original file cannot ship.
    """
    benchmark = rounds.benchmark
    plans = rounds.loaded()
    if not plans and not shippable:
        raise rounds.no_plan_error()
    refused = benchmark.enter(frameworks)
    running = [framework.name for framework in frameworks if framework.name not in refused]
    is_reproducible = bool(plans) and not rounds.checker.function.drawn_outputs
    answers = compare_answers(rounds.checker, set(running), is_reproducible=is_reproducible)
    exempt = {**rounds.checker.find_exempt(set(running) & REDUCED), **answers.exempt}
    comparison = Comparison(benchmark, seconds_each, rounds.on_round)
    if names := [*(plan.name for plan in plans), *running]:
        comparison.run(names)
    comparison.latencies |= {
        name: Latency(math.nan, reason=reason) for name, reason in refused.items()
    }
    counting = [name for name in comparison.ran(running) if name not in exempt]
    judging = fastest_first({name: comparison.latencies[name] for name in counting})
    original_can_ship = bool(judging) and judging[0] in shippable
    judged, alive = _choose(rounds, plans, comparison, judging, original_can_ship=original_can_ship)
    if judged is None and not shippable & set(judging):
        raise rounds.no_plan_error()
    return FinalRound(
        comparison, exempt, tuple(alive), judging, judged=judged, answers_note=answers.note
    )


def decide_on_plan(
    final: FinalRound, rounds: ComparisonRounds, frameworks: Sequence[BenchmarkTarget]
) -> Decision:
    """Return the decision for the chosen plan; where it has to ship, `NOISE` is its allowance.

    Raises:
        GateError: no plan is left, or the plan's process ended.
    """
    if final.judged is None:
        raise rounds.no_plan_error()
    plan, judgement, reason = final.judged.plan, final.judged.judgement, final.judged.reason
    if not final.passed and judgement.allowance < NOISE:
        benchmark = rounds.benchmark
        benchmark.enter(
            [
                framework
                for framework in frameworks
                if framework.name in final.judging and framework.name not in benchmark.names
            ]
        )
        repeated = judge_until_proven(final.comparison, plan.name, final.judging, allowance=NOISE)
        if repeated is None:
            raise GateError(f"{plan.name} died: {final.latencies[plan.name].reason}")
        judgement, reason = repeated, reason_of(plan, repeated)
    return Decision(
        chosen=plan,
        latency=final.latencies[plan.name],
        baselines=final.latencies,
        latencies={},
        verdict=judgement.verdict,
        reason=reason,
        ratios=judgement.ratios,
    )


def _choose(
    rounds: ComparisonRounds,
    plans: Sequence[PlanExecutable],
    comparison: Comparison,
    judging: Sequence[str],
    *,
    original_can_ship: bool,
) -> tuple[_Judged | None, Sequence[PlanExecutable]]:
    """Judge the preferred plan, then the best of one toolchain; also return the plans that did not fail.

    A failure of a process changes the order, so the choice begins again without that plan.
    """
    while plans := _not_failed(rounds, plans, comparison):
        order = plans_to_judge(plans, comparison.latencies)
        first = _judged(comparison, order[0], judging, original_can_ship=original_can_ship)
        if first is None:
            continue
        if first.judgement.verdict is Verdict.NOT_SLOWER or len(order) == 1:
            return first, plans
        single = _judged(
            comparison,
            order[1],
            judging,
            original_can_ship=original_can_ship,
            mix_problem=first.judgement.text(),
        )
        if single is None:
            continue
        # Without a proof for either the faster one stays the candidate.
        return single if single.judgement.verdict is Verdict.NOT_SLOWER else first, plans
    return None, plans


def _judged(
    comparison: Comparison,
    plan: PlanExecutable,
    judging: Sequence[str],
    *,
    original_can_ship: bool,
    mix_problem: str = "",
) -> _Judged | None:
    """Judge a plan; None where its process ended."""
    judgement = judge_until_proven(
        comparison,
        plan.name,
        judging,
        allowance=0.0 if original_can_ship else NOISE,
        give_up_ratio=1.0 if original_can_ship else math.inf,
    )
    if judgement is None:
        return None
    return _Judged(plan, judgement, reason_of(plan, judgement, mix_problem))


def _not_failed(
    rounds: ComparisonRounds, plans: Sequence[PlanExecutable], comparison: Comparison
) -> list[PlanExecutable]:
    """Return the plans whose process runs; the others are rejected."""
    latencies = {plan.name: comparison.latencies[plan.name] for plan in plans}
    running = rounds.reject_failed(latencies)
    return [plan for plan in plans if plan.name in running]
