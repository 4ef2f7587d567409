"""Results of mixed-precision compilation, for the report and the manifest."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from collage.bundle.manifest import PrecisionEntry, ReducedRegion
from collage.frontend.region import probability_outputs
from collage.graph.index_set import indices
from collage.report.formatting import finite_or_none
from collage.report.summary import PrecisionResult
from collage.runtime.function_names import MAIN
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option
from collage.verify.accuracy_samples import MORE_SEEDS
from collage.verify.baselines import REDUCED
from collage.verify.decision import Decision


@dataclass(frozen=True)
class PrecisionPermission:
    """Permission for reduced precision.

    Attributes:
        tolerance: largest permitted error of an output, relative to its scale.
        reasons: missing precisions of backends with the reason, by name of the backend.
    """

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
    speed_factor: float = 1.0
    """Speed factor: time in the final comparison over time while costs were measured; costs include it."""
    entry: str = MAIN


def precision_result(
    allowed: PrecisionPermission, results: Sequence[FunctionResult]
) -> PrecisionResult:
    """Summarise errors, rejected plans and notes over all functions."""
    decisions = [result.decision for result in results]
    baselines = {
        name: finite_or_none(max(decision.errors[name].values(), default=0.0))
        for decision in decisions
        for name in sorted(REDUCED & decision.errors.keys())
    }
    return PrecisionResult(
        tolerance=allowed.tolerance,
        trials=1 + MORE_SEEDS,
        errors=_errors(results),
        reduced_regions=sum(1 for _, _ in _reduced(results)),
        rejected={
            name: reason
            for decision in decisions
            for name, reason in decision.rejected.items()
            if _is_reduced(results, name)
        },
        baselines=baselines,
        excused={
            name: reason for decision in decisions for name, reason in decision.exempt.items()
        },
        notes=tuple(_notes(allowed, results)),
    )


def manifest_precision(
    allowed: PrecisionPermission, results: Sequence[FunctionResult]
) -> PrecisionEntry:
    """Return the precision section of a bundle's manifest."""
    functions = [result.search.enumerated.function for result in results]
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
    return PrecisionEntry(
        reduced=bool(regions),
        tolerance=allowed.tolerance,
        probabilities=tuple(sorted({n for f in functions for n in probability_outputs(f)})),
        errors=_errors(results),
        regions=regions,
    )


def _errors(results: Sequence[FunctionResult]) -> dict[str, float | None]:
    """Return the largest error of each output over the functions: shape sets of the entries' models."""
    largest: dict[str, float] = {}
    for result in results:
        for name, error in result.decision.errors[result.decision.chosen.name].items():
            largest[name] = max(error, largest.get(name, 0.0))
    return {name: finite_or_none(error) for name, error in largest.items()}


def _reduced(results: Sequence[FunctionResult]) -> Iterator[tuple[FunctionResult, Option]]:
    for result in results:
        for option in result.chosen.plan.options:
            if option.reduced:
                yield result, option


def _is_reduced(results: Sequence[FunctionResult], name: str) -> bool:
    return any(
        plan.plan.reduced for result in results for plan in result.search.plans if plan.name == name
    )


def _notes(allowed: PrecisionPermission, results: Sequence[FunctionResult]) -> Iterator[str]:
    for name, reason in sorted(allowed.reasons.items()):
        yield f"{name} offers no {reason}"
    for result in results:
        if result.decision.chosen.reduced:
            continue
        tried = [plan.name for plan in result.search.plans if plan.plan.reduced]
        inaccurate = [name for name in tried if name in result.decision.rejected]
        if not tried:
            yield "float32 ships: no plan with reduced-precision regions was found"
        elif len(inaccurate) == len(tried):
            smallest = min(_largest(result.decision, name) for name in inaccurate)
            yield (
                f"float32 ships: all {len(tried)} plans with reduced-precision regions exceed the tolerance "
                f"of {allowed.tolerance:g}; the smallest error is {smallest:.3g}"
            )
        else:
            yield f"float32 ships: it is faster than {len(tried) - len(inaccurate)} reduced-precision plans"


def _largest(decision: Decision, name: str) -> float:
    return max(decision.errors.get(name, {}).values(), default=math.inf)
