"""`--plan`: the regions of an earlier compile instead of a search.

The plan of a bundle (its plan.json) names the nodes of each region, the backend and the variant. Applied to
the same model elsewhere, or to one with other weights, exactly these regions are measured, assembled and
judged; where one does not fit here, the compile ends and says which and why. A region whose schedule was
tuned takes the schedules that the store has for it, and the backend's own where there are none. Bodies of
control flow are partitioned as without a plan.
"""

import json
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from collage.backends.base import Backend
from collage.backends.registry import known_backends
from collage.errors import InputError, OptionError
from collage.graph.index_set import IndexSet, index_set, indices
from collage.options import Options
from collage.report.summary import PlannedRegion
from collage.rules.candidates import refusal
from collage.search.coalescing import with_unions
from collage.search.enumeration import EnumeratedFunction
from collage.search.problem import Option, Plan

TUNED = "tuned"
"""Variant of the options with a tuned schedule."""
MAX_PLAN_BYTES = 64 << 20
SHOWN_NODES = 4


def read_plan(file: Path) -> tuple[PlannedRegion, ...]:
    """Read a plan.json.

    Raises:
        InputError: no such file, or no plan.
    """
    try:
        if file.stat().st_size > MAX_PLAN_BYTES:
            raise InputError(
                f"--plan {file}: more than {MAX_PLAN_BYTES >> 20} MiB, so no plan of a bundle"
            )
        document = json.loads(file.read_bytes())
        return tuple(TypeAdapter(list[PlannedRegion]).validate_python(document))
    except OSError as error:
        raise InputError(
            f"--plan {file}: {error.strerror}; give the plan.json of a bundle"
        ) from error
    except (ValueError, RecursionError, ValidationError) as error:
        raise InputError(
            f"--plan {file} is no plan of a bundle ({str(error).splitlines()[0]}); give its plan.json"
        ) from error


def apply_plan(
    enumerated: EnumeratedFunction, backends: Sequence[Backend], options: Options
) -> tuple[EnumeratedFunction, tuple[PlannedRegion, ...]]:
    """Return the function with the candidates of the plan alone, and the plan's regions.

    Args:
        enumerated: all candidates of the function.
        backends: backends of the compile.
        options: options with the plan's file.

    Raises:
        InputError: the plan is none of this function, or a region does not fit here.
    """
    assert options.plan is not None, "the caller has a plan"
    function = enumerated.function
    regions = tuple(
        region for region in read_plan(options.plan) if region.function == function.name
    )
    if not regions:
        raise InputError(
            f"--plan {options.plan} has no function {function.name}; compile with the shapes of the "
            "plan's bundle"
        )
    if any(region.original for region in regions):
        return enumerated, regions
    chosen: set[Option] = set()
    covered = 0
    for number, region in enumerate(regions):
        inside = _nodes(enumerated, region)
        if inside is None or inside & covered:
            raise _misfit(options.plan, number, region, "the model has no such nodes")
        enumerated, fitting = _fitting(enumerated, region, inside)
        if not fitting:
            obstacle = _obstacle(
                enumerated, region, inside, backends=backends, device=options.device
            )
            raise _misfit(options.plan, number, region, obstacle)
        chosen.update(fitting)
        covered |= inside
    if covered != function.graph.everything:
        missing = next(indices(function.graph.everything & ~covered))
        raise InputError(
            f"--plan {options.plan} has no region with node {missing} "
            f"'{function.graph.nodes[missing].name}' of {function.name}; the model has more nodes than "
            "the plan's"
        )
    return _restricted(enumerated, chosen), regions


def _nodes(enumerated: EnumeratedFunction, region: PlannedRegion) -> IndexSet | None:
    """Return the nodes of a region by their names, else by their numbers; None unless the operators agree."""
    nodes = enumerated.function.graph.nodes
    places: dict[str, list[int]] = {}
    for node in nodes:
        places.setdefault(node.name, []).append(node.index)
    named = [places.get(name, []) for name in region.names]
    numbers = [place[0] for place in named if len(place) == 1]
    if len(numbers) != len(region.nodes):
        numbers = list(region.nodes)
    if not numbers or max(numbers) >= len(nodes):
        return None
    operators = sorted(nodes[number].op for number in numbers)
    return index_set(numbers) if operators == sorted(region.ops) else None


def _fitting(
    enumerated: EnumeratedFunction, region: PlannedRegion, inside: IndexSet
) -> tuple[EnumeratedFunction, list[Option]]:
    """Return the options of a region; a union of adjacent candidates is added where no rule lists it."""
    fitting = _matching(enumerated, region, inside)
    if not fitting:
        parts = _parts(enumerated, region, inside)
        if parts:
            enumerated = with_unions(enumerated, Plan(tuple(parts), 0.0))
            fitting = _matching(enumerated, region, inside)
    return enumerated, fitting


def _matching(
    enumerated: EnumeratedFunction, region: PlannedRegion, inside: IndexSet
) -> list[Option]:
    is_tuned = region.variant == TUNED
    return [
        option
        for option in enumerated.problem.options
        if option.nodes == inside
        and option.backend == region.backend
        and (is_tuned or option.variant == region.variant)
        and _label(enumerated, option) == region.implementation
    ]


def _label(enumerated: EnumeratedFunction, option: Option) -> str:
    request = enumerated.work.get(option.key)
    return request.label if request else ""


def _parts(enumerated: EnumeratedFunction, region: PlannedRegion, inside: IndexSet) -> list[Option]:
    """Return disjoint options of the region's backend and variant within it, the largest first."""
    parts: list[Option] = []
    covered = 0
    for option in sorted(enumerated.problem.options, key=lambda option: -option.size):
        is_alike = option.backend == region.backend and option.variant == region.variant
        if is_alike and option.nodes & inside == option.nodes and not option.nodes & covered:
            parts.append(option)
            covered |= option.nodes
    return parts if covered == inside and len(parts) > 1 else []


def _restricted(enumerated: EnumeratedFunction, chosen: Set[Option]) -> EnumeratedFunction:
    problem = enumerated.problem
    pairs = [
        (option, candidate)
        for option, candidate in zip(problem.options, enumerated.candidates, strict=True)
        if option in chosen
    ]
    keys = {option.key for option, _ in pairs}
    return replace(
        enumerated,
        candidates=tuple(candidate for _, candidate in pairs),
        problem=replace(problem, options=[option for option, _ in pairs]),
        work={key: request for key, request in enumerated.work.items() if key in keys},
        last=enumerated.last & keys,
        key_of=None,
    )


def _obstacle(
    enumerated: EnumeratedFunction,
    region: PlannedRegion,
    inside: IndexSet,
    *,
    backends: Sequence[Backend],
    device: str,
) -> str:
    """Say why no candidate is the region's."""
    backend = next((backend for backend in backends if backend.name == region.backend), None)
    if backend is None:
        return f"{region.backend} {_absence(region.backend, device)}"
    for node in indices(inside):
        if reason := refusal(backend, enumerated.function, node):
            return (
                f"{region.backend} refuses {enumerated.function.graph.nodes[node].name}: {reason}"
            )
    if region.precision in ("bf16", "tf32"):
        return f"{region.precision} is not allowed or not possible here; add --precision auto"
    variant = f" of the variant {region.variant!r}" if region.variant else ""
    return f"{region.backend} has no such region{variant} in this version or on this machine"


def _absence(name: str, device: str) -> str:
    try:
        (backend,) = known_backends((name,), device)
    except OptionError as error:
        return f"cannot be asked ({error})"
    availability = backend.availability()
    return (
        "is not among --backends"
        if availability.available
        else f"is not available: {availability.reason}"
    )


def _misfit(plan: Path, number: int, region: PlannedRegion, obstacle: str) -> InputError:
    names = ", ".join(region.names[:SHOWN_NODES]) + (
        f" and {len(region.names) - SHOWN_NODES} more" if len(region.names) > SHOWN_NODES else ""
    )
    return InputError(
        f"--plan {plan} does not fit: region {number} of {region.function} ({region.label} on "
        f"{region.backend}, nodes {names}): {obstacle}; compile without --plan to search for a plan here"
    )
