"""Dynamic-shape groups: nodes that exchange tensors of unknown shape run together."""

import pytest

from collage.graph.contract import quotient_order
from collage.graph.dataflow import DataflowGraph, Node, TensorType
from collage.graph.dynamic_shape_groups import (
    contract_groups,
    dynamic_shape_groups,
    group_parts,
    passes_on_dynamic_shape,
    returns_dynamic_shape,
)
from collage.graph.index_set import index_set, indices
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraph
from collage.rules.base_rules import Host, Singles
from collage.rules.regions import Regions
from collage.rules.rule import PartitionSpec

SPEC = PartitionSpec("any")


def graph(edges: str, unknown: str, outputs: str = "") -> DataflowGraph:
    """Make nodes from `b:a c:ab`: node and value `b` reads `a`; `x` is the input."""
    nodes = []
    for index, text in enumerate(edges.split()):
        name, reads = text.split(":")
        kind = OpPatternKind.OPAQUE
        nodes.append(Node(index, name, name.upper(), kind, tuple(reads), (name,)))
    known_values = {"x", *(node.name for node in nodes)} - set(unknown)
    types = dict.fromkeys(known_values, TensorType((2,), "float32"))
    return DataflowGraph(tuple(nodes), types, ("x",), tuple(outputs or nodes[-1].name))


@pytest.mark.parametrize(
    ("edges", "unknown", "expected"),
    [
        ("a:x b:a c:b", "", []),
        ("a:x b:a c:b d:c", "b", [{1, 2}]),
        ("a:x b:a c:b d:c e:d", "bc", [{1, 2, 3}]),
        ("a:x b:a c:b d:c e:d f:e", "be", [{1, 2}, {4, 5}]),
        ("a:x b:a c:a d:bc", "a", [{0, 1, 2}]),
        ("a:x b:x c:ab d:c", "ab", [{0, 1, 2}]),
        # b and d join over a; c lies on a path between them.
        ("a:x b:a c:b d:ac e:d", "a", [{0, 1, 2, 3}]),
        # the groups a-d and b-c feed each other: a to c, and b to d.
        ("a:x b:x e:a f:b c:be d:af", "ab", [{0, 1, 2, 3, 4, 5}]),
        # only as whole groups: reader p of a feeds q, and reader r of b feeds s.
        ("a:x b:x p:a q:b r:ap s:bq", "ab", [{0, 2, 4}, {1, 3, 5}]),
        ("a:x b:x p:a q:bp r:b s:ar", "ab", [{0, 1, 2, 3, 4, 5}]),
        # a returned value without a reader joins nothing.
        ("a:x b:a", "b", []),
    ],
)
def test_dynamic_shape_groups(edges, unknown, expected):
    dataflow = graph(edges, unknown)
    groups = dynamic_shape_groups(dataflow)
    assert [set(indices(group)) for group in groups] == expected
    assert quotient_order(dataflow, groups) is not None
    assert all(SubGraph(dataflow, group).is_convex for group in groups)


@pytest.mark.parametrize(
    ("edges", "unknown", "driven", "expected"),
    [
        ("a:x b:a c:b d:c", "b", {1}, [{2}]),
        ("a:x b:a c:b d:c e:d", "bcd", {2}, [{1}, {3, 4}]),
        ("a:x b:a c:b d:c e:d", "bcd", {1, 3}, [{2}, {4}]),
        ("a:x b:a c:b d:c", "b", {0}, []),
        # b and d join over a; c, on a path between them, is driven.
        ("a:x b:a c:b d:ac e:d", "a", {2}, [{0, 1}, {3}]),
    ],
)
def test_driven_nodes_divide_their_groups(edges, unknown, driven, expected):
    dataflow = graph(edges, unknown)
    parts = group_parts(dataflow, index_set(driven))
    assert [set(indices(part)) for part in parts] == expected
    assert all(SubGraph(dataflow, part).is_convex for part in parts)


def test_a_region_allocates_what_others_read():
    dataflow = graph("a:x b:a c:b d:c", "b")
    assert passes_on_dynamic_shape(dataflow, 0b0010)
    assert not passes_on_dynamic_shape(dataflow, 0b0110)
    assert not passes_on_dynamic_shape(dataflow, 0b1100)
    assert passes_on_dynamic_shape(graph("a:x b:a", "b"), 0b11)


def test_contracted_nodes_contain_every_node_once():
    dataflow = graph("a:x b:a c:b d:c e:d", "bc", "e")
    small, members = contract_groups(dataflow)
    assert [set(indices(member)) for member in members] == [{0}, {1, 2, 3}, {4}]
    assert small.nodes[1].inputs == ("a",)
    assert small.nodes[1].outputs == ("d",)


@pytest.mark.parametrize("supported", [0b11111, 0b11011])
def test_no_candidate_cuts_a_group(supported):
    dataflow = graph("a:x b:a c:b d:c e:d", "bc", "e")
    group = index_set((1, 2, 3))
    candidates = Regions(supported).candidates(dataflow, SPEC) + Singles(supported).candidates(
        dataflow, SPEC
    )
    inside = {candidate.inside for candidate in candidates}
    assert all(nodes & group in (0, group) for nodes in inside)
    with_group = {group, 0b11111, 0b01111, 0b11110}
    assert inside == {0b1, 0b10000} | (with_group if supported == 0b11111 else set())


def test_a_view_of_unknown_shape_is_no_host_node():
    nodes = (
        Node(0, "n", "NonZero", OpPatternKind.OPAQUE, ("x",), ("n",)),
        Node(1, "r", "Reshape", OpPatternKind.INJECTIVE, ("n", "shape"), ("r",)),
    )
    types = dict.fromkeys(("x", "r", "shape"), TensorType((4,), "int64"))
    dataflow = DataflowGraph(nodes, types, ("x",), ("r",), frozenset({"shape"}))
    assert Host().candidates(dataflow, SPEC) == []
    with_shape = DataflowGraph(nodes, types | {"n": types["x"]}, ("x",), ("r",), dataflow.constants)
    assert [candidate.inside for candidate in Host().candidates(with_shape, SPEC)] == [0b10]


def test_returned_values_of_unknown_shape():
    dataflow = graph("a:x b:a c:a", "b", "bc")
    assert returns_dynamic_shape(dataflow, 0b010)
    assert not returns_dynamic_shape(dataflow, 0b101)
