"""Units: what exchanges tensors of unknown shape runs together, and the rest stays free."""

import pytest

from collage.graph.contract import quotient_order
from collage.graph.dataflow import DataflowGraph, Node, TensorType
from collage.graph.dynamic_shape_groups import contract_units, joined_units, returned_open
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
    known = {"x", *(node.name for node in nodes)} - set(unknown)
    types = dict.fromkeys(known, TensorType((2,), "float32"))
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
        # the units a-d and b-c feed each other: a to c, and b to d.
        ("a:x b:x e:a f:b c:be d:af", "ab", [{0, 1, 2, 3, 4, 5}]),
        # only as wholes: one's reader p feeds the other, whose other reader feeds the first.
        ("a:x b:x p:a q:b r:ap s:bq", "ab", [{0, 2, 4}, {1, 3, 5}]),
        ("a:x b:x p:a q:bp r:b s:ar", "ab", [{0, 1, 2, 3, 4, 5}]),
        # a value that is only returned joins nothing.
        ("a:x b:a", "b", []),
    ],
)
def test_units(edges, unknown, expected):
    made = graph(edges, unknown)
    units = joined_units(made)
    assert [set(indices(unit)) for unit in units] == expected
    assert quotient_order(made, units) is not None
    assert all(SubGraph(made, unit).is_convex for unit in units)


def test_contracted_nodes_stand_for_all_nodes_once():
    made = graph("a:x b:a c:b d:c e:d", "bc", "e")
    small, members = contract_units(made)
    assert [set(indices(member)) for member in members] == [{0}, {1, 2, 3}, {4}]
    assert small.nodes[1].inputs == ("a",)
    assert small.nodes[1].outputs == ("d",)


@pytest.mark.parametrize("supported", [0b11111, 0b11011])
def test_no_candidate_cuts_a_unit(supported):
    made = graph("a:x b:a c:b d:c e:d", "bc", "e")
    unit = index_set((1, 2, 3))
    found = Regions(supported).candidates(made, SPEC) + Singles(supported).candidates(made, SPEC)
    inside = {candidate.inside for candidate in found}
    assert all(nodes & unit in (0, unit) for nodes in inside)
    whole = {unit, 0b11111, 0b01111, 0b11110}
    assert inside == {0b1, 0b10000} | (whole if supported == 0b11111 else set())


def test_a_view_of_an_unknown_shape_is_no_node_of_the_host():
    nodes = (
        Node(0, "n", "NonZero", OpPatternKind.OPAQUE, ("x",), ("n",)),
        Node(1, "r", "Reshape", OpPatternKind.INJECTIVE, ("n", "shape"), ("r",)),
    )
    types = dict.fromkeys(("x", "r", "shape"), TensorType((4,), "int64"))
    made = DataflowGraph(nodes, types, ("x",), ("r",), frozenset({"shape"}))
    assert Host().candidates(made, SPEC) == []
    known = DataflowGraph(nodes, types | {"n": types["x"]}, ("x",), ("r",), made.constants)
    assert [one.inside for one in Host().candidates(known, SPEC)] == [0b10]


def test_returned_values_of_unknown_shape():
    made = graph("a:x b:a c:a", "b", "bc")
    assert returned_open(made, 0b010)
    assert not returned_open(made, 0b101)
