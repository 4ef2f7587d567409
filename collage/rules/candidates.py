"""All candidates of a function: every backend's rule, in all its variants, and the host's.

The list always contains, for each backend: every single node it supports, and its single-backend
partition (what it would do alone, the bar that a plan must not miss). `Backend.rule` overrides the
style's default for everything else.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import BackendStyle
from collage.graph.index_set import IndexSet, index_set
from collage.graph.sub_graph import SubGraph
from collage.rules.base import Host, Singles
from collage.rules.coalesce import coalesce, greedy_partition
from collage.rules.native import ONE_RESULT, fuse_ops, native_rule
from collage.rules.regions import Regions
from collage.rules.rule import HOST, Candidate, PartitionRule, PartitionSpec, unique

if TYPE_CHECKING:
    from collage.backends.base import Backend
    from collage.frontend.model import Function


def find_candidates(function: "Function", backends: "Sequence[Backend]") -> list[Candidate]:
    """List the candidates of `function`, each once, in the order of `Candidate.order`.

    Args:
        function: an imported function.
        backends: available backends; the host's candidates come in addition.
    """
    graph = function.graph
    found = Host().candidates(graph, PartitionSpec(HOST, rule=Host()))
    for backend in backends:
        rule = default_rule(function, backend)
        singles = Singles(supported_nodes(function, backend))
        for variant in backend.variants:
            spec = PartitionSpec(backend.name, variant, rule)
            found += rule.candidates(graph, spec)
            found += singles.candidates(graph, spec)
            found += single_backend_partition(function, backend, variant)
    return sorted(unique(found), key=lambda c: c.order)


def default_rule(function: "Function", backend: "Backend") -> PartitionRule:
    """Return the backend's own rule, or that of its style."""
    own = backend.rule(function)
    if own is not None:
        return own
    supported = supported_nodes(function, backend)
    if backend.style is BackendStyle.NATIVE:
        return native_rule(supported)
    if backend.style is BackendStyle.GRAPH:
        return Regions(supported)
    return Singles(supported)


def supported_nodes(function: "Function", backend: "Backend") -> IndexSet:
    """Return the nodes for which the backend has no reason to refuse."""
    return index_set(
        i for i in range(len(function.graph)) if backend.unsupported(function, i) is None
    )


def single_backend_partition(
    function: "Function", backend: "Backend", variant: str | None = None
) -> list[Candidate]:
    """Return what the backend would run alone: disjoint, acyclic together, all supported nodes.

    A native backend fuses as TVM does; a graph backend takes regions as large as they can be; a
    library, or a backend with a rule of its own, takes its largest candidates first.

    Args:
        function: an imported function.
        backend: the backend.
        variant: one of the backend's variants; None means the first one.
    """
    spec = PartitionSpec(backend.name, backend.variants[0] if variant is None else variant)
    return _partition(function, backend, spec)


def _partition(function: "Function", backend: "Backend", spec: PartitionSpec) -> list[Candidate]:
    graph, supported, rule = (
        function.graph,
        supported_nodes(function, backend),
        backend.rule(function),
    )
    alone = Singles(supported).candidates(graph, spec)
    if rule is not None:
        return greedy_partition([*rule.candidates(graph, spec), *alone])
    if backend.style is BackendStyle.GRAPH:
        return coalesce(alone)
    if backend.style is BackendStyle.NATIVE:
        groups = [SubGraph(graph, group) for group in fuse_ops(graph, supported)]
        fused = [Candidate(g, spec, "FuseOps") for g in groups if g.validity(ONE_RESULT) is None]
        return greedy_partition([*fused, *alone])
    return alone
