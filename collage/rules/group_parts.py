"""The parts of dynamic-shape groups around nodes whose kernels allocate their results."""

from dataclasses import dataclass

from collage.graph.dataflow import DataflowGraph
from collage.graph.dynamic_shape_groups import group_parts
from collage.graph.index_set import IndexSet
from collage.graph.sub_graph import SubGraph
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec


@dataclass(frozen=True)
class GroupParts(PartitionRule):
    """Each part of a dynamic-shape group between nodes that another backend may take alone.

    Attributes:
        driven: these nodes.
    """

    driven: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, part), spec, "GroupParts")
            for part in group_parts(graph, self.driven)
        ]
