"""Parallel products: products of the same value, such as queries, keys and values of an attention.

They do not depend on each other, so no interval, pattern or branch contains exactly these nodes. One kernel
for all of them reads and packs the shared operand once. One region contains all products of one value, a
second one their element-wise epilogues too, such as the biases.
"""

from dataclasses import dataclass

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraph
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, unique


@dataclass(frozen=True)
class Parallel(PartitionRule):
    """Two or more products of one value, without and with their epilogues.

    Attributes:
        products: nodes of products.
        supported: nodes supported in an epilogue.
    """

    products: IndexSet
    supported: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        candidates = []
        for value, readers in graph.readers.items():
            nodes = [
                index
                for index in indices(readers & self.products)
                if self._reads(graph, index, value)
            ]
            if len(nodes) < 2:
                continue
            bare = sum(1 << index for index in nodes)
            longer = sum(self._with_epilogue(graph, index) for index in nodes)
            for region in dict.fromkeys((bare, longer)):
                sub_graph = SubGraph(graph, region)
                if sub_graph.is_convex:
                    candidates.append(Candidate(sub_graph, spec, "Parallel"))
        return unique(candidates)

    @staticmethod
    def _reads(graph: DataflowGraph, index: int, value: str) -> bool:
        return graph.nodes[index].inputs[0] == value

    def _with_epilogue(self, graph: DataflowGraph, index: int) -> IndexSet:
        """Return the node and the chain of its element-wise readers with constant operands only."""
        region = 1 << index
        while (after := graph.successors[index]).bit_count() == 1 and after & self.supported:
            index = after.bit_length() - 1
            node = graph.nodes[index]
            computed = [
                operand for operand in node.inputs if operand and operand not in graph.constants
            ]
            if node.kind > OpPatternKind.BROADCAST or len(computed) != 1:
                break
            region |= after
        return region
