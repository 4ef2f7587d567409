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
from collage.rules.combine import ByAnchor, Combine
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, unique


def parallel_products(products: IndexSet, supported: IndexSet) -> PartitionRule:
    """Return the rule for two or more products of one value, without and with their epilogues.

    Args:
        products: nodes of products.
        supported: nodes supported in an epilogue.
    """
    siblings = (ByAnchor(horizontal=True),)
    return Combine(WithEpilogues(products, supported), siblings, keeps_parts=False)


@dataclass(frozen=True)
class WithEpilogues(PartitionRule):
    """Each product alone, and with the chain of its element-wise readers.

    Attributes:
        products: nodes of products.
        supported: nodes supported in an epilogue.
    """

    products: IndexSet
    supported: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return unique(
            Candidate(SubGraph(graph, region), spec, "WithEpilogues")
            for index in indices(self.products)
            for region in (1 << index, self._with_epilogue(graph, index))
        )

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
