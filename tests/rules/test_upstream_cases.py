"""Behaviour of upstream's test_pass_collage_partition.py: who gets which nodes at which cost.

The cases run the product's stages: candidates, search, adjacent regions of one toolchain joined. Upstream
joins without a measurement and reports the sum of the parts; here the union's cost counts, which is lower.

Two cases are ties between placing the longer group first or last; there only the cost and the kinds
of groups are asserted.
"""

import pytest

from collage.graph.builder import GraphBuilder
from tests.support.mock_costs import partition


def _relus(count):
    graph = GraphBuilder()
    value = graph.input("x")
    for number in range(count):
        value = graph.add("Relu", value, name=f"r{number}")
    return graph.build()


@pytest.mark.parametrize(("bases", "backend"), [((1, 2), "tvm"), ((2, 1), "byoc")])
def test_single_op(bases, backend):
    result = partition(_relus(1), dict(zip(("tvm", "byoc"), bases, strict=True)), (8, 8))
    assert result.groups == [(backend, ("r0",))]
    assert result.total == 1


@pytest.mark.parametrize("depth", [1, 3])
def test_diamond_keeps_a_valid_topology(depth):
    """With a depth of 1 no rule lists b and s together: they are joined after the search."""
    graph = GraphBuilder()
    r = graph.add("Relu", graph.input("x"), name="r")
    a = graph.add("Abs", r, name="a")
    graph.add("Add", a, graph.add("Relu", a, name="b"), name="s")
    result = partition(graph.build(), {"tvm": 2, "byoc": 1}, (1, depth))
    assert result.groups == [("byoc", ("r",)), ("tvm", ("a",)), ("byoc", ("b", "s"))]
    assert result.total == pytest.approx(4.9)


@pytest.mark.parametrize("cheap", ["tvm", "byoc"])
@pytest.mark.parametrize(("depth", "total"), [(1, 297), (2, 289), (3, 271)])
def test_max_depth(cheap, depth, total):
    """The dearer backend wins as much as its depth limit lets it fuse."""
    dear = "byoc" if cheap == "tvm" else "tvm"
    depths = (depth, 1) if dear == "tvm" else (1, depth)
    result = partition(_relus(3), {cheap: 99, dear: 100}, depths)
    joined = cheap == "byoc" and depth == 1
    assert result.total == pytest.approx(99 * 2.71 if joined else total, abs=0.5)
    nodes = dict.fromkeys(("tvm", "byoc"), 0)
    for backend, names in result.groups:
        nodes[backend] += len(names)
    assert nodes[dear] == (0 if depth == 1 else depth)
    if nodes["byoc"] == 3:
        assert result.groups == [("byoc", ("r0", "r1", "r2"))]


def test_output_tuple():
    """Joining makes one function with two results, one of them a tap."""
    graph = GraphBuilder()
    r0 = graph.add("Relu", graph.input("x"), name="r0")
    r1 = graph.add("Relu", r0, name="r1")
    graph.returns(r0, r1, graph.add("Abs", r1, name="a"))
    result = partition(graph.build(), {"tvm": 2, "byoc": 1}, (2, 2))
    assert result.groups == [("byoc", ("r0", "r1")), ("tvm", ("a",))]
    assert result.total == pytest.approx(1.9 + 2)


def test_intermediate_tuple():
    """The tuple stays on the host; the concat is a function of its own."""
    graph = GraphBuilder()
    r0 = graph.add("Relu", graph.input("x"), name="r0")
    r1 = graph.add("Relu", r0, name="r1")
    graph.add("Concat", graph.add("tuple", r0, r1, name="t"), name="c")
    result = partition(graph.build(), {"tvm": 2, "byoc": 1}, (3, 5))
    assert result.groups == [("byoc", ("r0", "r1")), ("byoc", ("c",))]
    assert result.total == pytest.approx(1.9 + 1)


def test_fusion_benefit():
    """Five operators in one function beat the cheaper backend that fuses nothing."""
    graph = GraphBuilder()
    x = graph.input("x")
    a = graph.add("Relu", graph.add("Relu", x, name="a1"), name="a2")
    b = graph.add("Relu", graph.add("Abs", x, name="b1"), name="b2")
    graph.add("Abs", graph.add("Relu", graph.add("Add", a, b, name="s"), name="c"), name="d")
    result = partition(graph.build(), {"tvm": 5, "byoc": 6}, (1, 5))
    assert ("byoc", ("a1", "a2", "b2", "s", "c")) in result.groups
    assert [group for group in result.groups if group[0] == "tvm"] == [
        ("tvm", ("b1",)),
        ("tvm", ("d",)),
    ]
    assert result.total == pytest.approx(34.5706)


def test_double_residual():
    graph = GraphBuilder()
    r = graph.add("Relu", graph.input("x"), name="r")
    a = graph.add("Abs", r, name="a")
    graph.add("Add", a, graph.add("Add", r, a, name="s"), name="t")
    result = partition(graph.build(), {"tvm": 2, "byoc": 1}, (4, 4))
    assert result.groups == [("byoc", ("r",)), ("tvm", ("a",)), ("byoc", ("s", "t"))]
    assert result.total == pytest.approx(4.9)


def test_residuals_in_one_function():
    """Upstream prunes 14 candidates to 2 here; without pruning the result is the same."""
    graph = GraphBuilder()
    r0 = graph.add("Relu", graph.input("x"), name="r0")
    r1 = graph.add("Relu", r0, name="r1")
    graph.add("Add", r1, graph.add("Add", r0, r1, name="s"), name="t")
    result = partition(graph.build(), {"tvm": 2, "byoc": 1}, (4, 4))
    assert result.groups == [("byoc", ("r0", "r1", "s", "t"))]
    assert result.total == pytest.approx(3.439)
