"""The numbers of benchmark targets, held against the original's.

A plan with regions in less than float32 is held to the error budget on every sample, all others to the
tolerances of every candidate. The original-file plan is right by definition: it is only asked what it
computes, twice, since a model may draw random numbers.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.errors import MeasureError
from collage.frontend import Function
from collage.frontend.region import function_outputs_of
from collage.verify.accuracy_samples import Errors, beyond
from collage.verify.benchmark_target import Contender
from collage.verify.interleaved_benchmark import Arena
from collage.verify.numerics import compare_outputs
from collage.verify.plan_executable import PlanExecutable, function_signature


@dataclass(frozen=True)
class Budget:
    """What plans in less than float32 may be off by, and the trials (`verify.trials`) that show it."""

    tolerance: float
    trials: Path


@dataclass(frozen=True)
class Golden:
    """What the original-file plan computes of the gate's inputs: the numbers that are right for it."""

    outputs: Mapping[str, np.ndarray]
    deterministic: bool
    """Two calls gave the same numbers."""


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
