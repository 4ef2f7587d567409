"""`collage candidates`: the candidates of each backend for a model, and the reasons of refused nodes.

The rule of a backend decides on its candidates, the machine only on its availability. So the list needs no
device: candidates for a GPU can be read, and tested, on a laptop.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collage.backends.base import Backend
from collage.backends.registry import known_backends
from collage.entries import ModelEntry
from collage.frontend import Function
from collage.graph.index_set import indices
from collage.options import Options
from collage.pipeline.entry_import import import_entries
from collage.rules import Candidate, find_candidates, single_backend_partition
from collage.rules.candidates import refusal


@dataclass(frozen=True)
class ListedCandidate:
    """A region with the backend's variants of it.

    Attributes:
        nodes: names of its nodes.
        label: name of the pattern, else the operators.
        variants: variants of the backend.
        implementations: labels of `Composite` rules; each is a candidate in every variant.
    """

    nodes: tuple[str, ...]
    label: str
    variants: tuple[str, ...]
    implementations: tuple[str, ...] = ()


@dataclass(frozen=True)
class ListedBackend:
    """Candidates of one backend for one function.

    Attributes:
        name: name of the backend.
        style: style of its rule.
        missing: reason of unavailability on this machine, "" if available.
        function: name of the function.
        nodes: number of nodes of the function.
        alone: number of nodes in the backend's own partition of the function.
        candidates: regions with their variants.
        refused: names of nodes without a candidate, by reason.
        left_out: numbers of refused regions by "label: reason", for regions that fit the rule.
    """

    name: str
    style: str
    missing: str
    function: str
    nodes: int
    alone: int
    candidates: tuple[ListedCandidate, ...]
    refused: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, int]

    @property
    def labels(self) -> Mapping[str, int]:
        """Number of regions of each label, in descending order."""
        counts: dict[str, int] = {}
        for candidate in self.candidates:
            counts[candidate.label] = counts.get(candidate.label, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def list_candidates(entries: Sequence[ModelEntry], options: Options) -> list[ListedBackend]:
    """List the candidates of each backend of `options` for each function of the entries' models.

    Raises:
        InputError: the model, a dimension or a backend is invalid.
    """
    backends = known_backends(options.backends, options.device)
    with tempfile.TemporaryDirectory(prefix="collage-") as folder:
        models = import_entries(entries, [entry.name for entry in entries], options, Path(folder))
        return [
            listed(function, backend, may_reduce=options.may_reduce)
            for model in models
            for function in model.functions
            for backend in backends
        ]


def listed(function: Function, backend: Backend, *, may_reduce: bool = False) -> ListedBackend:
    """List the candidates of a backend for a function; with `may_reduce` also in less than float32."""
    candidates = find_candidates(function, [backend], may_reduce=may_reduce)
    kernels = [candidate for candidate in candidates if not candidate.is_host]
    covered = 0
    for candidate in kernels:
        covered |= candidate.inside
    alone = sum(candidate.inside for candidate in single_backend_partition(function, backend))
    return ListedBackend(
        backend.name,
        backend.style.value,
        backend.availability().reason,
        function.name,
        nodes=len(function.graph),
        alone=alone.bit_count(),
        candidates=_by_region(function, kernels),
        refused=_refused(function, backend, covered | alone),
        left_out=_left_out(function, backend),
    )


def _by_region(function: Function, candidates: list[Candidate]) -> tuple[ListedCandidate, ...]:
    variants: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        variants.setdefault(candidate.inside, []).append(candidate)
    return tuple(
        ListedCandidate(
            tuple(function.graph.nodes[i].name for i in indices(inside)),
            _label(region_candidates),
            tuple(dict.fromkeys(candidate.variant for candidate in region_candidates)),
            tuple(
                dict.fromkeys(
                    candidate.implementation
                    for candidate in region_candidates
                    if candidate.implementation
                )
            ),
        )
        for inside, region_candidates in variants.items()
    )


def _label(candidates: list[Candidate]) -> str:
    """Return the pattern's name, else the operators."""
    named = [candidate.sub_graph.label for candidate in candidates if candidate.sub_graph.label]
    return named[0] if named else candidates[0].label


def _refused(function: Function, backend: Backend, covered: int) -> dict[str, tuple[str, ...]]:
    reasons: dict[str, list[str]] = {}
    for node in function.graph.nodes:
        reason = refusal(backend, function, node.index)
        if reason and not covered >> node.index & 1:
            reasons.setdefault(reason, []).append(node.name)
    return {reason: tuple(names) for reason, names in sorted(reasons.items())}


def _left_out(function: Function, backend: Backend) -> dict[str, int]:
    rule = backend.rule(function)
    refusals = rule.refusals(function.graph) if rule else []
    return dict(
        sorted(Counter(f"{refusal.label}: {refusal.reason}" for refusal in refusals).items())
    )
