"""Enumeration: a function's candidates as a search problem, with one measurement request for each key."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from collage.backends.base import Backend, conflicts_of
from collage.backends.registry import known_backends
from collage.errors import SearchError
from collage.frontend import Function
from collage.frontend.region import region_digest, region_values
from collage.graph.index_set import IndexSet, index_set
from collage.measure.measurement_request import MeasurementRequest
from collage.options import DEVICES
from collage.rules.candidates import find_candidates, refusal
from collage.rules.rule import HOST, Candidate
from collage.search.problem import Option, Problem


@dataclass(frozen=True)
class EnumeratedFunction:
    """A function's candidates as a search problem.

    Attributes:
        function: the imported function.
        candidates: its candidates, in the order of `find_candidates`.
        problem: one option for each candidate.
        work: one measurement request for each key but the host's.
        last: keys of reduced options with outputs of the function as their only outputs.
        key_of: returns the key of a further candidate; None where none is added.
    """

    function: Function
    candidates: tuple[Candidate, ...]
    problem: Problem
    work: Mapping[Hashable, MeasurementRequest]
    last: frozenset[Hashable] = frozenset()
    key_of: Callable[[Candidate], Hashable] | None = None


def enumerate_function(
    function: Function, backends: Sequence[Backend], *, may_reduce: bool = False
) -> EnumeratedFunction:
    """List the candidates of `function` on `backends` (in order of priority).

    Args:
        function: an imported function.
        backends: available backends.
        may_reduce: candidates may compute in less than float32; default False.

    Raises:
        SearchError: no backend supports a node; the message has each backend's reason.
    """
    candidates = find_candidates(function, backends, may_reduce=may_reduce)
    _require_cover(function, backends, candidates)
    identity = {backend.name: backend.identity for backend in backends} | {HOST: ""}
    reduced = {backend.name: backend.reduced for backend in backends} | {HOST: {}}
    captured = {backend.name: backend.graph_capturable for backend in backends} | {HOST: True}
    priority = {name: position for position, name in enumerate((HOST, *identity))}
    digests: dict[IndexSet, str] = {}

    def key_of(candidate: Candidate) -> Hashable:
        inside = candidate.inside
        if inside not in digests:
            digests[inside] = region_digest(function, inside)
        return option_key(
            digests[inside],
            identity[candidate.backend],
            candidate.variant,
            candidate.implementation,
        )

    options: list[Option] = []
    work: dict[Hashable, MeasurementRequest] = {}
    for candidate in candidates:
        inside, backend, variant = candidate.inside, candidate.backend, candidate.variant
        if candidate.is_host:
            key: Hashable = HOST
        else:
            key = key_of(candidate)
            label = candidate.implementation
            work.setdefault(
                key, MeasurementRequest(function.name, inside, backend, variant, label=label)
            )
        options.append(
            Option(
                inside,
                key,
                backend,
                priority[backend],
                variant=variant,
                precision=reduced[backend].get(variant, ""),
                graph_capturable=captured[backend],
            )
        )
    problem = Problem(function.graph, options, conflicts=conflicts_of(backends))
    output_keys = _output_keys(function, options)
    return EnumeratedFunction(
        function, tuple(candidates), problem, work, last=output_keys, key_of=key_of
    )


def option_key(digest: str, identity: str, variant: str, label: str = "") -> Hashable:
    """Return the key of a candidate within its search.

    Args:
        digest: digest of the region.
        identity: backend with its versions.
        variant: variant of the backend.
        label: label of the region's implementation, "" for the backend's own choice.
    """
    return (digest, identity, variant, label) if label else (digest, identity, variant)


def _output_keys(function: Function, options: Iterable[Option]) -> frozenset[Hashable]:
    """Return the keys of reduced options with outputs of the function as their only outputs."""
    graph = function.graph
    results = set(graph.outputs)
    final = index_set(node.index for node in graph.nodes if results.intersection(node.outputs))
    output_keys: set[Hashable] = set()
    inner_keys: set[Hashable] = set()
    for option in options:
        if option.reduced:
            is_final = option.nodes & final and results.issuperset(
                region_values(function, option.nodes)[1]
            )
            (output_keys if is_final else inner_keys).add(option.key)
    return frozenset(output_keys - inner_keys)


def _require_cover(
    function: Function, backends: Sequence[Backend], candidates: Iterable[Candidate]
) -> None:
    covered = 0
    for candidate in candidates:
        covered |= candidate.inside
    for node in function.graph.nodes:
        if not covered >> node.index & 1:
            failure = f"no plan covers node {node.index} '{node.name}' ({node.op})"
            advice = _backend_advice(function, node.index, backends)
            reasons = [
                f"  {backend.name}: {refusal(backend, function, node.index)}"
                for backend in backends
            ]
            raise SearchError("\n".join((f"{failure}: no backend takes it; {advice}", *reasons)))


def _backend_advice(function: Function, node: int, chosen: Sequence[Backend]) -> str:
    """Advise to add another backend of the device, an available one where there is one."""
    device = chosen[0].device if chosen else DEVICES[0]
    chosen_names = {backend.name for backend in chosen}
    supporting = [
        backend
        for backend in known_backends(None, device)
        if backend.name not in chosen_names and refusal(backend, function, node) is None
    ]
    if not supporting:
        return f"no other backend for {device} does: replace this operator in the model"
    available = [backend.name for backend in supporting if backend.availability().available]
    listed = " or ".join(sorted(available or [backend.name for backend in supporting]))
    to_install = "" if available else ", once installed (`collage backends`)"
    return f"add {listed} to --backends{to_install}"
