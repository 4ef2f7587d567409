"""The gate: an executable ships only with the right numbers and proven as fast as every toolchain.

Three steps, each in a module of its own:

* accuracy (`accuracy_checker`): a plan with regions in less than float32 must keep the error budget on every
  sample (`accuracy_samples`), other plans the tolerances of candidates. Plans in float32 are always among
  the plans. OpenVINO also runs in bfloat16, and counts where it keeps the same budget;
* comparison rounds (`comparison_rounds`): plans are compared with each other, the best ones stay;
* choice (`plan_choice`, `original_choice`): in the final round the best plans run interleaved with the
  original frameworks. A plan of regions ships where it is proven as fast as every framework (`verdict`).
  Otherwise the original file itself ships, run as the fastest framework runs it; its numbers are right by
  definition. Where that is not possible, a plan may be slower by `NOISE`. Single-toolchain plans are among
  the plans, so a mix without a gain of `MIN_GAIN` gives way to the best of them.

A busy machine can eliminate the fastest plan early. Where the best plan looks slower than a framework, all
eliminated plans get a second chance, and with them the fallback plans.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from collage.errors import GateError, MeasureError
from collage.frontend import Function
from collage.runtime.target import Target
from collage.verify.accuracy_checker import AccuracyBudget, AccuracyChecker
from collage.verify.baselines import original_frameworks
from collage.verify.benchmark_target import BenchmarkTarget
from collage.verify.comparison_rounds import ComparisonRounds, ProposePlans
from collage.verify.decision import NO_ORIGINALS, Decision, OriginalPlans
from collage.verify.drawn_outputs import Moments
from collage.verify.interleaved_benchmark import InterleavedBenchmark, OnRound
from collage.verify.original_choice import OriginalChoice
from collage.verify.plan_choice import FinalRound, decide_on_plan, run_final_round
from collage.verify.plan_executable import PlanExecutable


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Settings of one decision.

    Attributes:
        model: original ONNX file.
        threads: threads of every target.
        seconds_each: time of each target in the final round, in seconds.
        work_dir: folder for inputs and outputs of the targets.
        on_round: progress callback with (finished rounds, all rounds); None for no progress.
        budget: error budget of reduced precision; None where that is not allowed.
        samples: folder of the user's further samples (`accuracy_samples`); None where there are none.
        device: device of the plans, default the processor.
        engines: folder of cached engines of complete models, for frameworks on a GPU; None for no cache.
    """

    model: Path
    threads: int
    seconds_each: float
    work_dir: Path
    on_round: OnRound | None = None
    budget: AccuracyBudget | None = None
    samples: Path | None = None
    device: Target = Target.CPU
    engines: Path | None = None

    def decide(
        self,
        function: Function,
        plans: Sequence[PlanExecutable],
        inputs: dict[str, np.ndarray],
        expected: Mapping[str, np.ndarray],
        *,
        propose_plans: ProposePlans = lambda results: (),
        fallback_plans: Callable[[], Sequence[PlanExecutable]] = tuple,
        originals: OriginalPlans = NO_ORIGINALS,
    ) -> Decision:
        """Choose the executable that ships.

        Args:
            function: function of the plans.
            plans: assembled plans, single-toolchain ones included.
            inputs: input arrays by name, in the function's order.
            expected: outputs of the original model by name.
            propose_plans: source of further plans, given the results of a round; default none.
            fallback_plans: source of plans for the case that all others look slower than a framework.
            originals: original-file plans for the case that no plan is proven as fast; default none.

        Raises:
            GateError: no plan computes the model's numbers; the message has the difference of each.
        """
        with InterleavedBenchmark(inputs, self.threads, self.work_dir) as benchmark:
            checker = AccuracyChecker(
                benchmark, function, expected, self.budget, errors={}, samples=self.samples
            )
            if self.budget:
                target = BenchmarkTarget("original", "original", self.model)
                benchmark.write_expected(target, self.budget.samples)
            if function.drawn_outputs and plans:
                checker = replace(checker, moments=self._original_moments(checker))
            rounds = ComparisonRounds(benchmark, checker, self.on_round)
            rounds.run(plans, propose_plans)
            final = self._final_round(rounds, originals)
            retry = not final.passed and final.looks_slower
            if retry and (second_chance := rounds.eliminated(fallback_plans)):
                for name in {target.name for target in self._frameworks} & set(benchmark.names):
                    benchmark.leave(name)
                rounds.run(second_chance, lambda results: ())
                final = self._final_round(rounds, originals)
            choice = OriginalChoice(rounds, self._frameworks, originals, self.seconds_each)
            original = None if final.passed else choice.decide(final)
            decision = original or decide_on_plan(final, rounds, self._frameworks)
        return self._completed(decision, final, rounds)

    def _original_moments(self, checker: AccuracyChecker) -> dict[str, Moments]:
        """Return the moments of the original's random outputs. Raises GateError if it does not run."""
        original = BenchmarkTarget("original", "original", self.model)
        if refused := checker.benchmark.enter([original]):
            raise GateError(f"the original model does not run: {refused[original.name]}")
        try:
            return checker.drawn_moments(original.name)
        except MeasureError as error:
            raise GateError(f"the original model does not run: {error}") from error
        finally:
            checker.benchmark.leave(original.name)

    def _final_round(self, rounds: ComparisonRounds, originals: OriginalPlans) -> FinalRound:
        return run_final_round(rounds, self._frameworks, originals.baselines, self.seconds_each)

    def _completed(
        self, decision: Decision, final: FinalRound, rounds: ComparisonRounds
    ) -> Decision:
        """Add the measurements of all plans to the decision."""
        finalists = tuple(plan.name for plan in final.plans)
        rounds.latencies |= {name: final.latencies[name] for name in finalists}
        return replace(
            decision,
            baselines={
                framework.name: decision.baselines[framework.name] for framework in self._frameworks
            },
            latencies={**rounds.latencies, **decision.latencies},
            rejected=rounds.rejected,
            errors=rounds.checker.errors,
            exempt=final.exempt,
            reason="; ".join(filter(None, (decision.reason, final.answers_note))),
            finalists=finalists,
            draws=bool(rounds.checker.function.drawn_outputs),
        )

    @cached_property
    def _frameworks(self) -> list[BenchmarkTarget]:
        return original_frameworks(
            self.model,
            may_reduce=self.budget is not None,
            device=self.device,
            engines=self.engines,
        )
