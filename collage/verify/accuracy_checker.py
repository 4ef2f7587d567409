"""Accuracy of benchmark targets against the original model.

A plan with regions in less than float32 must keep the error budget on every sample, other plans the
tolerances of candidates. Outputs that depend on random numbers are compared by their moments
(`drawn_outputs`). The original-file plan is right by definition. It runs twice to record its outputs, since a
model may draw random numbers.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from collage.errors import MeasureError
from collage.frontend import Function
from collage.frontend.region import function_outputs_of
from collage.graph.quantisation import is_quantised
from collage.verify.accuracy_samples import Errors, beyond
from collage.verify.benchmark_target import BenchmarkTarget
from collage.verify.drawn_outputs import Moments, compare_moments, measure_moments
from collage.verify.interleaved_benchmark import InterleavedBenchmark
from collage.verify.numerics import compare_outputs
from collage.verify.plan_executable import PlanExecutable, function_signature


@dataclass(frozen=True)
class AccuracyBudget:
    """Error budget of plans in less than float32.

    Attributes:
        tolerance: largest allowed error of an output, relative to its scale.
        samples: folder of the accuracy samples (`accuracy_samples`).
    """

    tolerance: float
    samples: Path


@dataclass(frozen=True)
class Golden:
    """Outputs of the original-file plan for the gate's inputs.

    Attributes:
        outputs: arrays by name.
        deterministic: whether two calls gave the same numbers.
    """

    outputs: Mapping[str, np.ndarray]
    deterministic: bool


@dataclass(frozen=True)
class AccuracyChecker:
    """Checks the outputs of running targets against the original's; collects their `errors` by name."""

    benchmark: InterleavedBenchmark
    function: Function
    expected: Mapping[str, np.ndarray]
    budget: AccuracyBudget | None
    errors: dict[str, Errors]
    samples: Path | None = None
    """Folder of the user's further samples, which judge every plan; None where there are none."""
    moments: Mapping[str, Moments] = field(default_factory=dict)
    """Moments of the original's outputs that depend on random numbers, by name."""

    def target(self, plan: PlanExecutable) -> BenchmarkTarget:
        """Return the plan as a benchmark target."""
        signature = function_signature(self.function, plan.kernel)
        return BenchmarkTarget(plan.name, "executable", plan.path, signature, device=plan.device)

    def golden(self, plan: PlanExecutable) -> Golden:
        """Run the original-file plan twice. Raises MeasureError when its process ends."""
        if self.budget:
            self.errors[plan.name] = self.benchmark.check(plan.name, self.budget.samples)
        first, second = self.answers(plan.name), self.answers(plan.name)
        return Golden(first, self.agree(first, second))

    def wrong(self, plan: PlanExecutable) -> str:
        """Return the difference between the plan's and the original's outputs, "" where they agree."""
        try:
            if self.budget:
                self.errors[plan.name] = self.benchmark.check(plan.name, self.budget.samples)
                if plan.reduced:
                    return beyond(self.errors[plan.name], self.budget.tolerance)
            differences = self.differences(self.answers(plan.name))
            reasons = [f"{name}: {reason}" for name, reason in differences.items()]
            wrong = ", ".join(reasons) or self.wrong_on_samples(plan.name)
            return wrong or self._wrong_moments(plan.name)
        except MeasureError as error:
            return str(error)

    def answers(self, name: str) -> dict[str, np.ndarray]:
        """Run a target once and return its outputs by name. Raises MeasureError when its process ends."""
        names = self.function.graph.outputs
        return dict(zip(names, self.benchmark.outputs(name, names), strict=True))

    def agree(self, first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
        """Tell whether two runs gave the same numbers, but for the rounding of sums in another order."""
        checks = compare_outputs(first, second, quantised=is_quantised(self.function.graph))
        return all(check.passed for check in checks)

    def draws_nothing(
        self, first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]
    ) -> bool:
        """Tell whether two runs gave the same numbers in an output that varies in the original."""
        return any(
            moments.varies and np.array_equal(first[name], second[name])
            for name, moments in self.moments.items()
        )

    def differences(
        self, actual: Mapping[str, np.ndarray], *, in_steps: bool = True
    ) -> dict[str, str]:
        """Return the outputs that are not those of the original, by name, with the difference in words.

        Args:
            actual: outputs of a target by name.
            in_steps: whether outputs of a quantised model may differ by its steps; default True.
        """
        softmax = function_outputs_of(self.function, frozenset({"Softmax"}))
        quantised = in_steps and is_quantised(self.function.graph)
        expected = {
            name: value
            for name, value in self.expected.items()
            if name not in self.function.drawn_outputs
        }
        checks = compare_outputs(expected, actual, softmax, quantised=quantised)
        return {check.name: check.reason for check in checks if not check.passed}

    def wrong_on_samples(self, name: str) -> str:
        """Return a target's difference from the original on the user's samples, "" where they agree.

        Raises:
            MeasureError: its process ends.
        """
        return self.benchmark.differences(name, self.samples) if self.samples else ""

    def _wrong_moments(self, name: str) -> str:
        if not self.moments:
            return ""
        return compare_moments(self.moments, self.drawn_moments(name))

    def drawn_moments(self, name: str) -> dict[str, Moments]:
        """Run a target several times and return the moments of the outputs that depend on draws.

        Raises:
            MeasureError: its process ends.
        """
        names = [
            output
            for output in self.function.graph.outputs
            if output in self.function.drawn_outputs
        ]

        def run() -> list[np.ndarray]:
            answers = self.answers(name)
            return [answers[output] for output in names]

        return measure_moments(run, names) if names else {}

    def find_exempt(self, names: Set[str]) -> dict[str, str]:
        """Return the reasons of baselines that exceed the error budget and so do not count, by name."""
        reasons: dict[str, str] = {}
        if self.budget is None:
            return reasons
        for name in sorted(names):
            try:
                self.errors[name] = self.benchmark.check(name, self.budget.samples)
            except MeasureError as error:
                reasons[name] = str(error)
                continue
            if reason := beyond(self.errors[name], self.budget.tolerance):
                reasons[name] = reason
        return reasons
