"""Which graphs are quantised, and which compute in small integers."""

import pytest

from collage.graph.dataflow import DataflowGraph, Node, TensorType
from collage.graph.op_pattern import OpPatternKind
from collage.graph.quantisation import computes_int8, is_quantised


def chain(ops: str) -> DataflowGraph:
    """Make a chain of operators."""
    values = [f"v{index}" for index in range(len(ops.split()) + 1)]
    nodes = tuple(
        Node(index, op, op, OpPatternKind.OPAQUE, (values[index],), (values[index + 1],))
        for index, op in enumerate(ops.split())
    )
    types = dict.fromkeys(values, TensorType((2,), "float32"))
    return DataflowGraph(nodes, types, (values[0],), (values[-1],))


@pytest.mark.parametrize(
    ("ops", "quantised", "int8"),
    [
        ("Conv Relu", False, False),
        ("QuantizeLinear", True, False),
        ("DequantizeLinear Relu", False, False),
        ("DequantizeLinear Conv QuantizeLinear", True, True),
        ("DynamicQuantizeLinear MatMulInteger Cast Mul", True, True),
        # A function may have small integers as inputs and outputs: nothing but the product rounds.
        ("QLinearConv QLinearAdd", True, True),
        # The product of integers is exact.
        ("MatMulInteger Cast Mul", False, True),
    ],
)
def test_quantised_means_rounding_to_small_integers(ops, quantised, int8):
    graph = chain(ops)
    everything = (1 << len(graph.nodes)) - 1
    assert is_quantised(graph) is is_quantised(graph, everything) is quantised
    assert computes_int8(graph, everything) is int8


def test_a_region_is_quantised_by_its_own_operators():
    graph = chain("Conv QuantizeLinear")
    assert not is_quantised(graph, 0b01)
    assert is_quantised(graph, 0b10)
