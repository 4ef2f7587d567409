"""What came of the permission to compute in less than float32: facts for the report and the manifest."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from collage.bundle.manifest import Precision, ReducedRegion
from collage.frontend.region import probability_outputs
from collage.graph.index_set import indices
from collage.report.data import PrecisionResult
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option
from collage.verify.accuracy_samples import MORE_SEEDS
from collage.verify.baselines import REDUCED
from collage.verify.decision import Decision


@dataclass(frozen=True)
class Allowed:
    """The permission: a tolerance, and what backends could not offer, with the reason, by name."""

    tolerance: float
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class FunctionResult:
    """One function after the gate."""

    search: FunctionSearch
    chosen: NamedPlan
    decision: Decision
    measured_s: Mapping[int, float]
    """Seconds of the kernels inside the executable, by their position in the chosen plan."""
    pace: float = 1.0
    """How many times as long as in the heats a plan took in the last comparison; it is in the costs."""


def precision_result(allowed: Allowed, results: Sequence[FunctionResult]) -> PrecisionResult:
    """Gather errors, rejected plans, and why less precision was not used; several functions as one."""
    decisions = [one.decision for one in results]
    baselines = {
        name: _finite(max(found.errors[name].values(), default=0.0))
        for found in decisions
        for name in sorted(REDUCED & found.errors.keys())
    }
    return PrecisionResult(
        tolerance=allowed.tolerance,
        trials=1 + MORE_SEEDS,
        errors=_errors(results),
        reduced_regions=sum(1 for _, _ in _reduced(results)),
        rejected={
            name: reason
            for found in decisions
            for name, reason in found.rejected.items()
            if _is_reduced(results, name)
        },
        baselines=baselines,
        excused={name: why for found in decisions for name, why in found.excused.items()},
        notes=tuple(_notes(allowed, results)),
    )


def manifest_precision(allowed: Allowed, results: Sequence[FunctionResult]) -> Precision:
    """Return what the manifest of a bundle says."""
    functions = [one.search.enumerated.function for one in results]
    regions = tuple(
        ReducedRegion(
            function=result.search.enumerated.function.name,
            nodes=tuple(indices(option.nodes)),
            backend=option.backend,
            precision=option.precision,
            error=result.search.costs[option.key].error,
        )
        for result, option in _reduced(results)
    )
    return Precision(
        reduced=bool(regions),
        tolerance=allowed.tolerance,
        probabilities=tuple(sorted({n for f in functions for n in probability_outputs(f)})),
        errors=_errors(results),
        regions=regions,
    )


def _errors(results: Sequence[FunctionResult]) -> dict[str, float | None]:
    """The largest over the functions, which are shape sets of one model with the same outputs."""
    largest: dict[str, float] = {}
    for result in results:
        for name, error in result.decision.errors[result.decision.chosen.name].items():
            largest[name] = max(error, largest.get(name, 0.0))
    return {name: _finite(error) for name, error in largest.items()}


def _reduced(results: Sequence[FunctionResult]) -> Iterator[tuple[FunctionResult, Option]]:
    for result in results:
        for option in result.chosen.plan.options:
            if option.reduced:
                yield result, option


def _is_reduced(results: Sequence[FunctionResult], name: str) -> bool:
    return any(
        plan.plan.reduced for one in results for plan in one.search.plans if plan.name == name
    )


def _notes(allowed: Allowed, results: Sequence[FunctionResult]) -> Iterator[str]:
    for name, reason in sorted(allowed.reasons.items()):
        yield f"{name} offers no {reason}"
    for result in results:
        if result.decision.chosen.reduced:
            continue
        tried = [plan.name for plan in result.search.plans if plan.plan.reduced]
        beyond = [name for name in tried if name in result.decision.rejected]
        if not tried:
            yield "float32 ships: no plan with regions in less was found"
        elif len(beyond) == len(tried):
            least = min(_largest(result.decision, name) for name in beyond)
            yield (
                f"float32 ships: all {len(tried)} plans with regions in less are beyond the tolerance of "
                f"{allowed.tolerance:g}; the least error is {least:.3g}"
            )
        else:
            yield f"float32 ships: it is faster than {len(tried) - len(beyond)} plans with less"


def _largest(decision: Decision, name: str) -> float:
    return max(decision.errors.get(name, {}).values(), default=math.inf)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
