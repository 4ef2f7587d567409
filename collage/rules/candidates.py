"""All candidates of a function: the rule of every backend, in all its variants, and the host's.

Where the user allows reduced precision, the backends' reduced variants follow, restricted to regions with a
product: no other region gains from them.

A node that draws random numbers has candidates of its own only, on backends that draw as the original does.

The list always contains, for each backend, every supported single node (in its first variant) and its
single-backend partition (the backend alone, the bar for every plan). Only views are left to the host: a
kernel of views alone would be a view again. `Backend.rule` overrides the style's default for everything
else. The spec of a rule names the variant, so a rule can offer some variants on some nodes only.

Nothing is pruned. Upstream keeps maximal candidates only and loses the optimum on one random graph in eight
(defect D4); here the lazy search selects the candidates to measure.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from collage.errors import OptionError
from collage.graph.dataflow import DataflowGraph
from collage.graph.dynamic_shape_groups import contract_groups
from collage.graph.index_set import IndexSet, index_set, is_subset
from collage.rules.backend_style import BackendStyle, style_partition, style_rule
from collage.rules.base_rules import Host, Singles
from collage.rules.coalesce import greedy_partition
from collage.rules.composites import composites_of
from collage.rules.rule import HOST, Candidate, PartitionRule, PartitionSpec, unique

if TYPE_CHECKING:
    from collage.frontend.model import Function

HALF_DTYPES = ("float16", "bfloat16")


class CandidateBackend(Protocol):
    """The part of a backend that lists candidates; `collage.backends.base.Backend` implements it."""

    @property
    def name(self) -> str:
        """Unique name of the toolchain."""
        ...

    @property
    def style(self) -> BackendStyle:
        """Style of the default rule."""
        ...

    @property
    def variants(self) -> tuple[str, ...]:
        """Implementations of one region."""
        ...

    @property
    def reduced(self) -> Mapping[str, str]:
        """Variants in reduced precision, each with its precision."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of composites, each an implementation of certain regions."""
        ...

    @property
    def draws_random_numbers(self) -> bool:
        """Tell whether random operators draw as in the original model."""
        ...

    def unsupported(self, function: "Function", node: int) -> str | None:
        """Return why `node` cannot run here, or None when it can."""
        ...

    def reduced_reason(self) -> str:
        """Return why this machine cannot run the reduced variants, "" when it can."""
        ...

    def rule(self, function: "Function") -> PartitionRule | None:
        """Return the backend's own rule; None for the style's default."""
        ...


def find_candidates(
    function: "Function", backends: Sequence[CandidateBackend], *, may_reduce: bool = False
) -> list[Candidate]:
    """List the candidates of `function`, each once, in the order of `Candidate.order`.

    Args:
        function: an imported function.
        backends: available backends; the host's candidates are added.
        may_reduce: list the reduced variants of backends too, if this machine supports them; default False.

    Raises:
        OptionError: a rule chooses an implementation that its backend lacks.
    """
    graph = function.graph
    products = product_nodes(function) if may_reduce else 0
    host = Host().candidates(graph, PartitionSpec(HOST))
    views = index_set(candidate.inside.bit_length() - 1 for candidate in host)
    candidates: list[Candidate] = []
    for backend in backends:
        supported = supported_nodes(function, backend)
        own_rule = backend.rule(function)
        rule = own_rule or style_rule(
            backend.style, supported, functools.partial(refusal, backend, function)
        )
        offers_reduced = may_reduce and not backend.reduced_reason()
        for variant in (*backend.variants, *(backend.reduced if offers_reduced else ())):
            spec = PartitionSpec(backend.name, variant)
            listed = _labelled(rule.candidates(graph, spec), backend)
            if own_rule is None or variant == backend.variants[0]:
                listed = with_singles(listed, supported, graph, spec=spec)
            if own_rule is not None:
                listed += greedy_partition(listed)
            else:
                listed += style_partition(graph, backend.style, supported, spec)
            if variant in backend.reduced:
                listed = [candidate for candidate in listed if candidate.inside & products]
            candidates += apart(listed, function, backend)
    kernels = [candidate for candidate in candidates if not is_subset(candidate.inside, views)]
    return sorted(unique([*host, *kernels]), key=lambda candidate: candidate.order)


def single_backend_partition(
    function: "Function", backend: CandidateBackend, variant: str | None = None
) -> list[Candidate]:
    """Return the partition of one backend alone: disjoint, acyclic together, all supported nodes.

    A native backend fuses as TVM does; a graph backend takes regions as large as possible; a library takes
    single nodes, and a backend with its own rule its largest candidates first.

    Args:
        function: an imported function.
        backend: the backend.
        variant: one of the backend's variants; None for the first.
    """
    graph, supported = function.graph, supported_nodes(function, backend)
    spec = PartitionSpec(backend.name, backend.variants[0] if variant is None else variant)
    rule = backend.rule(function)
    if rule is None:
        return apart(style_partition(graph, backend.style, supported, spec), function, backend)
    listed = apart(rule.candidates(graph, spec), function, backend)
    return greedy_partition(with_singles(listed, supported, graph, spec=spec))


def with_singles(
    listed: Sequence[Candidate], supported: IndexSet, graph: DataflowGraph, *, spec: PartitionSpec
) -> list[Candidate]:
    """Add the supported single nodes that a rule does not list; its own may have labels."""
    alone = {candidate.inside for candidate in listed}
    singles = Singles(supported).candidates(graph, spec)
    return [*listed, *(single for single in singles if single.inside not in alone)]


def _labelled(candidates: Sequence[Candidate], backend: CandidateBackend) -> list[Candidate]:
    """Check that the backend has the labels of its rule's candidates."""
    labels = {
        composite.label
        for candidate in candidates
        for composite in composites_of(candidate.sub_graph)
    }
    if missing := sorted(labels - {*backend.labels}):
        own = f"it has {', '.join(backend.labels)}" if backend.labels else "it has none"
        raise OptionError(
            f"the rule of {backend.name} chooses the implementation {missing[0]!r} with Composite, and "
            f"{own}: use one of its labels, or leave Composite out"
        )
    return list(candidates)


def product_nodes(function: "Function") -> IndexSet:
    """Return the convolutions and matrix products that a reduced precision can shorten.

    Products in 16 bits are left out: every reduced variant computes in 16 bits or more.
    """
    from collage.frontend.region import region_bytes_and_flops

    return index_set(
        node.index
        for node in function.graph.nodes
        if region_bytes_and_flops(function, 1 << node.index)[1]
        and function.graph.types[node.outputs[0]].dtype not in HALF_DTYPES
    )


def supported_nodes(function: "Function", backend: CandidateBackend) -> IndexSet:
    """Return the nodes supported by the backend."""
    return index_set(
        index for index in range(len(function.graph)) if refusal(backend, function, index) is None
    )


def refusal(backend: CandidateBackend, function: "Function", node: int) -> str | None:
    """Return why the backend has no candidate with a node, None where it has."""
    reason = backend.unsupported(function, node)
    if reason is None and function.drawing >> node & 1 and not backend.draws_random_numbers:
        operator = function.graph.nodes[node].op
        return f"{operator} draws random numbers: only ONNX Runtime draws them as the original does"
    return reason


def apart(
    listed: Sequence[Candidate], function: "Function", backend: CandidateBackend
) -> list[Candidate]:
    """Leave out candidates that join a draw with other nodes, and every draw of other backends.

    Nodes that exchange values of data-dependent shape count as one node.
    """
    drawing = function.drawing
    if not drawing:
        return list(listed)
    groups = set(contract_groups(function.graph)[1]) if backend.draws_random_numbers else set()
    return [
        candidate
        for candidate in listed
        if not candidate.inside & drawing or candidate.inside in groups
    ]
