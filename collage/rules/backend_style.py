"""Backend styles: the default candidates of backends without a rule of their own (DESIGN 4.2)."""

from collections.abc import Callable
from enum import Enum

from collage.graph.dataflow import DataflowGraph
from collage.graph.dynamic_shape_groups import contract_groups, expanded
from collage.graph.index_set import IndexSet
from collage.graph.sub_graph import SubGraph
from collage.rules.base_rules import OpPredicate, Singles
from collage.rules.coalesce import greedy_partition
from collage.rules.regions import Regions, maximal_regions, supported_groups
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec
from collage.rules.tvm_fusion import ONE_RESULT, fuse_ops, native_rule
from collage.rules.wrap import Primitive


class BackendStyle(Enum):
    """Default rule of a backend's candidates: TVM's fusion, single nodes, or regions (DESIGN 4.2)."""

    NATIVE = "native"
    LIBRARY = "library"
    GRAPH = "graph"


def style_rule(
    style: BackendStyle, supported: IndexSet, unsupported: Callable[[int], str | None]
) -> PartitionRule:
    """Return the rule of a style.

    Args:
        style: style of the backend.
        supported: nodes supported by the backend.
        unsupported: returns why the backend does not compute a node, None where it does.
    """
    if style is BackendStyle.NATIVE:
        return native_rule(supported)
    if style is BackendStyle.GRAPH:
        return Primitive(Regions(supported))
    return OpPredicate(lambda graph, index: unsupported(index))


def style_partition(
    graph: DataflowGraph, style: BackendStyle, supported: IndexSet, spec: PartitionSpec
) -> list[Candidate]:
    """Partition the supported nodes as a single backend of `style` does."""
    singles = Singles(supported).candidates(graph, spec)
    if style is BackendStyle.GRAPH:
        contracted, members = contract_groups(graph)
        regions = maximal_regions(contracted, supported_groups(members, supported))
        inside = [SubGraph(graph, expanded(region, members)) for region in regions]
        return [Candidate(region, spec, "MaxCoalesce") for region in inside]
    if style is BackendStyle.NATIVE:
        groups = [SubGraph(graph, group) for group in fuse_ops(graph, supported)]
        fused = [
            Candidate(group, spec, "FuseOps")
            for group in groups
            if group.validity(ONE_RESULT) is None
        ]
        return greedy_partition([*fused, *singles])
    return singles
