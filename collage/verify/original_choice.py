"""The original file as the fallback: compared with the frameworks in processes of its own.

The plan is a framework by construction, so `TRIES` comparisons must each prove it slower before it is
refused: processes differ by the placement of their memory, and on a busy machine neighbouring rounds are
disturbed together, which makes a short comparison surer than it should be. Each comparison takes twice as
long as the one before.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collage.errors import BackendError, MeasureError
from collage.verify.benchmark_target import BenchmarkTarget
from collage.verify.comparison_rounds import ComparisonRounds
from collage.verify.decision import Decision, OriginalPlans
from collage.verify.final_round import Comparison, judge_original, original_reason
from collage.verify.plan_choice import FinalRound
from collage.verify.plan_executable import PlanExecutable

log = logging.getLogger(__name__)

TRIES = 4
"""Comparisons of the original-file plan; it is refused where each of them proves it slower."""


@dataclass(frozen=True)
class OriginalChoice:
    """Settings of the fallback.

    Attributes:
        rounds: comparison rounds with the benchmark and the accuracy checker.
        frameworks: original frameworks.
        originals: original-file plans.
        seconds_each: time of each target, in seconds.
    """

    rounds: ComparisonRounds
    frameworks: Sequence[BenchmarkTarget]
    originals: OriginalPlans
    seconds_each: float

    def decide(self, final: FinalRound) -> Decision | None:
        """Return the decision for the original file, run as the fastest framework that allows it.

        Returns:
            None where no framework can run it, or where it is refused and a plan of regions is left.
        """
        for baseline in [name for name in final.judging if name in self.originals.baselines]:
            decision = self._as_baseline(baseline, final)
            if decision is not None and (decision.passed or final.judged is None):
                return decision
        return None

    def _as_baseline(self, baseline: str, final: FinalRound) -> Decision | None:
        """Compare the plan of one framework with all frameworks; None where it does not run."""
        assert self.originals.assemble is not None, "baselines come with a builder of their plans"
        try:
            plan = self.originals.assemble(baseline)
        except BackendError as error:
            log.debug("the original file does not run in %s: %s", baseline, error)
            return None
        benchmark = self.rounds.benchmark
        chosen = {final.judged.plan.name} if final.judged else set()
        for name in set(benchmark.names) - chosen:
            benchmark.leave(name)
        decision = None
        for number in range(TRIES):
            decision = self._compared(plan, final.judging, times=2**number)
            if decision is None or decision.passed:
                break
        if decision is None:
            return None
        return replace(decision, baselines={**final.latencies, **decision.baselines})

    def _compared(
        self, plan: PlanExecutable, judging: Sequence[str], *, times: int
    ) -> Decision | None:
        """Compare the plan with the frameworks, all in fresh processes; None where it fails.

        Args:
            times: running time of each target, in multiples of `seconds_each`.
        """
        benchmark, checker = self.rounds.benchmark, self.rounds.checker
        frameworks = [framework for framework in self.frameworks if framework.name in judging]
        refused = benchmark.enter([checker.target(plan), *frameworks])
        baselines = [framework.name for framework in frameworks if framework.name not in refused]
        try:
            if plan.name in refused:
                return None
            golden = checker.golden(plan)
            comparison = Comparison(benchmark, self.seconds_each, self.rounds.on_round)
            comparison.run([plan.name, *baselines], times)
            if comparison.latencies[plan.name].reason:
                return None
            judgement = judge_original(comparison, plan.name, comparison.ran(baselines))
        except MeasureError as error:
            log.debug("the original file in %s is not compared: %s", plan.name, error)
            return None
        finally:
            for name in {plan.name, *baselines} & set(benchmark.names):
                benchmark.leave(name)
        if judgement is None:
            return None
        latency = comparison.latencies[plan.name]
        return Decision(
            chosen=plan,
            latency=latency,
            baselines={name: comparison.latencies[name] for name in baselines},
            latencies={plan.name: latency},
            verdict=judgement.verdict,
            reason=original_reason(plan, judgement),
            ratios=judgement.ratios,
            golden=golden,
        )
