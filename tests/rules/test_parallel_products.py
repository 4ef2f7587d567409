"""Parallel products of one value are one candidate."""

import pytest

from collage.graph.builder import GraphBuilder
from collage.graph.op_pattern import OpPatternKind
from collage.rules.parallel_products import parallel_products
from collage.rules.rule import PartitionSpec


def attention():
    """norm (node 0), then query and key with a bias, value without; scores read two of them."""
    graph = GraphBuilder()
    x = graph.add("Relu", graph.input("x"))
    query = graph.add("Add", graph.add("MatMul", x, graph.weight()), graph.weight())
    key = graph.add("Add", graph.add("MatMul", x, graph.weight()), graph.weight())
    value = graph.add("MatMul", x, graph.weight())
    graph.returns(graph.add("MatMul", graph.add("Softmax", graph.add("MatMul", query, key)), value))
    return graph.build()


def regions(graph, supported):
    products = sum(1 << node.index for node in graph.nodes if node.op == "MatMul")
    candidates = parallel_products(products & supported, supported).candidates(
        graph, PartitionSpec("mine")
    )
    return [candidate.inside for candidate in candidates]


def test_products_of_one_value():
    graph = attention()
    assert [node.op for node in graph.nodes][:6] == ["Relu", *["MatMul", "Add"] * 2, "MatMul"]
    assert regions(graph, graph.everything) == [0b101010, 0b111110]


def test_unsupported_products_are_left_out():
    graph = attention()
    assert regions(graph, graph.everything & ~0b100) == [0b101010, 0b111010]
    assert regions(graph, graph.everything & ~0b100000) == [0b1010, 0b11110]
    assert regions(graph, 0b10) == []


def test_dependent_products_are_not_parallel():
    graph = GraphBuilder()
    x = graph.input("x")
    first = graph.add("Softmax", graph.add("MatMul", x, graph.weight()))
    graph.returns(graph.add("MatMul", x, first))
    assert regions(graph.build(), 0b101) == []


@pytest.mark.parametrize("kind", [OpPatternKind.COMM_REDUCE, OpPatternKind.OPAQUE])
def test_epilogues_are_elementwise(kind):
    graph = GraphBuilder()
    x = graph.input("x")
    results = [graph.add("Any", graph.add("MatMul", x, graph.weight()), kind=kind) for _ in "ab"]
    graph.returns(*results)
    assert regions(graph.build(), 0b1111) == [0b101]
