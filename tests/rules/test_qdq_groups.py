"""Islands of a quantised model are candidates, also where their nodes are not neighbours in the order."""

from collage.graph.dataflow import DataflowGraph, Node, TensorType
from collage.graph.index_set import index_set
from collage.graph.op_pattern import OpPatternKind
from collage.rules.qdq_groups import islands
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
    ("QuantizeLinear", "k", "l"),  # 11: too small to be worth a kernel
    ("DequantizeLinear", "h", "m"),  # 12
    ("DequantizeLinear", "l", "n"),  # 13
    ("Add", "mn", "o"),  # 14: float, so no island
]
FIRST, SECOND = index_set([0, 2, 3, 6, 7]), index_set([0, 1, 4, 5, 8, 9])


def graph() -> DataflowGraph:
    nodes = tuple(
        Node(index, made, op, OpPatternKind.OPAQUE, tuple(read), (made,))
        for index, (op, read, made) in enumerate(NODES)
    )
    types = {name: TensorType((2,), "float32") for name in "xywabcdefghijklmno"}
    return DataflowGraph(nodes, types, ("x", "y"), ("o",), frozenset("w"))


def test_an_island_reaches_from_dequantised_operands_to_the_quantised_result():
    assert set(islands(graph())) == {FIRST, SECOND}


def test_graph_backends_get_them():
    made = graph()
    found = Regions(made.everything, short=3).candidates(made, PartitionSpec("any"))
    origins = {one.inside: one.origin for one in found}
    assert origins[FIRST] == origins[SECOND] == "Regions.island"


def test_a_backend_that_lacks_a_node_does_not():
    made = graph()
    found = Regions(made.everything & ~(1 << 6)).candidates(made, PartitionSpec("any"))
    inside = {one.inside for one in found}
    assert FIRST not in inside
    assert SECOND in inside
