"""QDQ groups of a quantised model are candidates, even if they are not contiguous in the order."""

from collage.graph.dataflow import DataflowGraph, Node, TensorType
from collage.graph.index_set import index_set
from collage.graph.op_pattern import OpPatternKind
from collage.rules.qdq_groups import find_qdq_groups
from collage.rules.regions import Regions
from collage.rules.rule import PartitionSpec

NODES = [
    ("DequantizeLinear", "x", "a"),  # 0
    ("DequantizeLinear", "y", "b"),  # 1
    ("DequantizeLinear", "w", "c"),  # 2: weights
    ("Conv", "ac", "d"),  # 3
    ("MatMul", "ab", "e"),  # 4: shares an operand with 3
    ("Erf", "b", "f"),  # 5
    ("Relu", "d", "g"),  # 6
    ("QuantizeLinear", "g", "h"),  # 7: of 0, 2, 3 and 6
    ("Add", "ef", "i"),  # 8
    ("QuantizeLinear", "i", "j"),  # 9: of 0, 1, 4, 5 and 8
    ("DequantizeLinear", "j", "k"),  # 10
    ("QuantizeLinear", "k", "l"),  # 11: too small for a group
    ("DequantizeLinear", "h", "m"),  # 12
    ("DequantizeLinear", "l", "n"),  # 13
    ("Add", "mn", "o"),  # 14: float, so no group
]
FIRST, SECOND = index_set([0, 2, 3, 6, 7]), index_set([0, 1, 4, 5, 8, 9])


def graph() -> DataflowGraph:
    nodes = tuple(
        Node(index, result, op, OpPatternKind.OPAQUE, tuple(read), (result,))
        for index, (op, read, result) in enumerate(NODES)
    )
    types = {name: TensorType((2,), "float32") for name in "xywabcdefghijklmno"}
    return DataflowGraph(nodes, types, ("x", "y"), ("o",), frozenset("w"))


def test_a_qdq_group_ends_at_dequantised_operands():
    assert set(find_qdq_groups(graph())) == {FIRST, SECOND}


def test_qdq_groups_are_regions():
    qdq_graph = graph()
    candidates = Regions(qdq_graph.everything, short=3).candidates(qdq_graph, PartitionSpec("any"))
    origins = {candidate.inside: candidate.origin for candidate in candidates}
    assert origins[FIRST] == origins[SECOND] == "Regions.island"


def test_a_group_with_an_unsupported_node_is_no_region():
    qdq_graph = graph()
    candidates = Regions(qdq_graph.everything & ~(1 << 6)).candidates(
        qdq_graph, PartitionSpec("any")
    )
    inside = {candidate.inside for candidate in candidates}
    assert FIRST not in inside
    assert SECOND in inside
