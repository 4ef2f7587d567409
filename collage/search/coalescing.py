"""Joining after the search: adjacent regions of one toolchain become one candidate (RFC 0.7 "MaxCoalesce").

Rules list regions by their shape: intervals between cut points, arms of branches, short intervals. The best
plan may have adjacent regions of one toolchain whose union no rule lists, such as two of three arms with
the node before them. These unions become candidates, are measured, and the best plan is searched again.
Earlier implementations joined without a measurement; here a union competes with its parts.

Only kernels of external code generators are joined (`Candidate.is_joinable`): these optimise across
operators themselves. TVM's own kernels are what its fusion rules allow, and a pattern is all that a library
computes.

Time is that of `coalesce`, with at most one measurement for every two regions of a plan and round.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from collage.cost import Cost
from collage.measure.measurement_request import MeasurementRequest
from collage.rules.coalesce import coalesce
from collage.rules.rule import Candidate
from collage.search.enumeration import EnumeratedFunction
from collage.search.problem import Option, Plan
from collage.search.shortest_path import find_plan

JOIN_ROUNDS = 2
"""Number of times that the best plan's regions are joined and measured."""

MeasureRequests = Callable[[Sequence[MeasurementRequest]], Sequence[Cost]]
"""Measures requests; returns their costs in order."""


def join_adjacent_regions(
    enumerated: EnumeratedFunction, costs: Mapping[Hashable, Cost], measure: MeasureRequests
) -> tuple[EnumeratedFunction, dict[Hashable, Cost]]:
    """Return the function with the unions of its best plans' adjacent regions, and all costs.

    Args:
        enumerated: candidates of the function.
        costs: costs by option key; valid ones cover the function.
        measure: measures the unions.
    """
    known_costs = dict(costs)
    for _ in range(JOIN_ROUNDS):
        plan = find_plan(enumerated.problem, known_costs)
        extended = with_unions(enumerated, plan)
        if extended is enumerated:
            break
        new_keys = [
            key for key in extended.work if key not in known_costs and key not in enumerated.work
        ]
        requests = [extended.work[key] for key in new_keys]
        known_costs |= dict(zip(new_keys, measure(requests), strict=True))
        enumerated = extended
    return enumerated, known_costs


def with_unions(enumerated: EnumeratedFunction, plan: Plan) -> EnumeratedFunction:
    """Add the unions of adjacent joinable regions of `plan` that are no candidates yet."""
    if enumerated.key_of is None:
        return enumerated
    problem = enumerated.problem
    candidates = dict(zip(problem.options, enumerated.candidates, strict=True))
    parts = [candidates[option] for option in plan.options if candidates[option].is_joinable]
    listed = {(option.nodes, option.backend, option.key) for option in problem.options}
    options: list[Option] = []
    unions: list[Candidate] = []
    work = dict(enumerated.work)
    for union in coalesce(parts):
        option = _union_option(union, plan, enumerated.key_of(union))
        if (option.nodes, option.backend, option.key) in listed:
            continue
        options.append(option)
        unions.append(union)
        request = next(iter(enumerated.work.values()))
        work.setdefault(
            option.key,
            MeasurementRequest(
                request.function,
                union.inside,
                union.backend,
                union.variant,
                label=union.implementation,
            ),
        )
    if not options:
        return enumerated
    return replace(
        enumerated,
        candidates=(*enumerated.candidates, *unions),
        problem=replace(problem, options=[*problem.options, *options]),
        work=work,
    )


def _union_option(union: Candidate, plan: Plan, key: Hashable) -> Option:
    """Return the option of a union: that of one of its parts with other nodes."""
    part = next(option for option in plan.options if option.nodes & union.inside)
    return replace(part, nodes=union.inside, key=key)
