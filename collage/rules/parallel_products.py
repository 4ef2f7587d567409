"""Products that read the same value side by side: queries, keys and values of an attention.

They do not follow each other, so no interval, pattern or branch holds exactly them. One kernel for all
reads and packs the shared operand once. Each region holds all such readers of one value, and a
second one also what alone follows each of them elementwise, such as its bias.
"""

from dataclasses import dataclass

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraph
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, unique


@dataclass(frozen=True)
class Parallel(PartitionRule):
    """Two or more of `products` that read one value first, without and with their epilogues.

    Args of the constructor: `products`, and the nodes that are `supported` behind them.
    """

    products: IndexSet
    supported: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        found = []
        for value, readers in graph.readers.items():
            nodes = [i for i in indices(readers & self.products) if self._reads(graph, i, value)]
            if len(nodes) < 2:
                continue
            bare = sum(1 << index for index in nodes)
            longer = sum(self._with_epilogue(graph, index) for index in nodes)
            for region in dict.fromkeys((bare, longer)):
                sub_graph = SubGraph(graph, region)
                if sub_graph.is_convex:
                    found.append(Candidate(sub_graph, spec, "Parallel"))
        return unique(found)

    @staticmethod
    def _reads(graph: DataflowGraph, index: int, value: str) -> bool:
        return graph.nodes[index].inputs[0] == value

    def _with_epilogue(self, graph: DataflowGraph, index: int) -> IndexSet:
        """The node, and the elementwise readers that follow it one by one with constants only."""
        region = 1 << index
        while (after := graph.successors[index]).bit_count() == 1 and after & self.supported:
            index = after.bit_length() - 1
            node = graph.nodes[index]
            made = [name for name in node.inputs if name and name not in graph.constants]
            if node.kind > OpPatternKind.BROADCAST or len(made) != 1:
                break
            region |= after
        return region
