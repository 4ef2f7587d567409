"""All candidates of a function: every backend's rule, in all its variants, and the host's.

Where the user allows less precision, the backends' reduced variants follow: what their rules list, as
far as it holds a product, for nothing else gains from them.

The list always contains, for each backend: every single node it supports (in its first variant),
and its single-backend partition (what it would do alone, the bar that a plan must not miss). Only what
the host does for nothing (views) is no backend's: a kernel of views alone would be a view again.
`Backend.rule` overrides the style's default for everything else. A rule sees the variant in the spec
that it is given, so that it can offer some variants on some nodes only.

Nothing is pruned. Upstream keeps maximal candidates only, which loses the optimum on one random
graph in eight (defect D4); here the search decides lazily what is worth measuring.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import BackendStyle
from collage.graph.dataflow import DataflowGraph
from collage.graph.dynamic_shape_groups import contract_units, expanded
from collage.graph.index_set import IndexSet, index_set, is_subset
from collage.graph.sub_graph import SubGraph
from collage.rules.base_rules import Host, Singles
from collage.rules.coalesce import greedy_partition
from collage.rules.regions import Regions, maximal_regions, supported_units
from collage.rules.rule import HOST, Candidate, PartitionRule, PartitionSpec, unique
from collage.rules.tvm_fusion import ONE_RESULT, fuse_ops, native_rule

if TYPE_CHECKING:
    from collage.backends.base import Backend
    from collage.frontend.model import Function

HALVES = ("float16", "bfloat16")


def find_candidates(
    function: "Function", backends: "Sequence[Backend]", *, may_reduce: bool = False
) -> list[Candidate]:
    """List the candidates of `function`, each once, in the order of `Candidate.order`.

    Args:
        function: an imported function.
        backends: available backends; the host's candidates come in addition.
        may_reduce: list the reduced variants of backends too, where this machine has what they need.
    """
    graph = function.graph
    products = product_nodes(function) if may_reduce else 0
    host = Host().candidates(graph, PartitionSpec(HOST))
    views = index_set(candidate.inside.bit_length() - 1 for candidate in host)
    found: list[Candidate] = []
    for backend in backends:
        supported = supported_nodes(function, backend)
        own = backend.rule(function)
        rule = own or style_rule(backend.style, supported)
        offered = may_reduce and not backend.reduced_reason()
        for variant in (*backend.variants, *(backend.reduced if offered else ())):
            spec = PartitionSpec(backend.name, variant)
            listed = list(rule.candidates(graph, spec))
            if own is None or variant == backend.variants[0]:
                listed += Singles(supported).candidates(graph, spec)
            if own is not None:
                listed += greedy_partition(listed)
            else:
                listed += style_partition(graph, backend.style, supported, spec)
            if variant in backend.reduced:
                listed = [one for one in listed if one.inside & products]
            found += listed
    kernels = [candidate for candidate in found if not is_subset(candidate.inside, views)]
    return sorted(unique([*host, *kernels]), key=lambda c: c.order)


def single_backend_partition(
    function: "Function", backend: "Backend", variant: str | None = None
) -> list[Candidate]:
    """Return what the backend would run alone: disjoint, acyclic together, all supported nodes.

    A native backend fuses as TVM does; a graph backend takes regions as large as they can be; a
    library takes single nodes, and a backend with a rule of its own its largest candidates first.

    Args:
        function: an imported function.
        backend: the backend.
        variant: one of the backend's variants; None means the first one.
    """
    graph, supported = function.graph, supported_nodes(function, backend)
    spec = PartitionSpec(backend.name, backend.variants[0] if variant is None else variant)
    rule = backend.rule(function)
    if rule is None:
        return style_partition(graph, backend.style, supported, spec)
    singles = Singles(supported).candidates(graph, spec)
    return greedy_partition([*rule.candidates(graph, spec), *singles])


def product_nodes(function: "Function") -> IndexSet:
    """Return the convolutions and matrix products that can be computed in less than they are.

    What is in 16 bits stays so: all that a reduced variant computes in has as many, or more.
    """
    from collage.frontend.region import region_bytes_and_flops

    return index_set(
        node.index
        for node in function.graph.nodes
        if region_bytes_and_flops(function, 1 << node.index)[1]
        and function.graph.types[node.outputs[0]].dtype not in HALVES
    )


def supported_nodes(function: "Function", backend: "Backend") -> IndexSet:
    """Return the nodes for which the backend has no reason to refuse."""
    return index_set(
        i for i in range(len(function.graph)) if backend.unsupported(function, i) is None
    )


def default_rule(function: "Function", backend: "Backend") -> PartitionRule:
    """Return the backend's own rule, or that of its style."""
    return backend.rule(function) or style_rule(backend.style, supported_nodes(function, backend))


def style_rule(style: BackendStyle, supported: IndexSet) -> PartitionRule:
    """Return the rule of a style over the supported nodes."""
    if style is BackendStyle.NATIVE:
        return native_rule(supported)
    if style is BackendStyle.GRAPH:
        return Regions(supported)
    return Singles(supported)


def style_partition(
    graph: DataflowGraph, style: BackendStyle, supported: IndexSet, spec: PartitionSpec
) -> list[Candidate]:
    """Partition the supported nodes as a backend of `style` would alone."""
    alone = Singles(supported).candidates(graph, spec)
    if style is BackendStyle.GRAPH:
        small, members = contract_units(graph)
        regions = maximal_regions(small, supported_units(members, supported))
        inside = [SubGraph(graph, expanded(region, members)) for region in regions]
        return [Candidate(region, spec, "MaxCoalesce") for region in inside]
    if style is BackendStyle.NATIVE:
        groups = [SubGraph(graph, group) for group in fuse_ops(graph, supported)]
        fused = [Candidate(g, spec, "FuseOps") for g in groups if g.validity(ONE_RESULT) is None]
        return greedy_partition([*fused, *alone])
    return alone
