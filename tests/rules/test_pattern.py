"""All alternatives of a pattern are found."""

import pytest

from collage.graph.builder import GraphBuilder
from collage.rules import DFPattern, PartitionSpec, is_constant, matches, op, wildcard


def _graph():
    """0 conv, 1 add(bias), 2 relu, 3 add(relu, conv)."""
    graph = GraphBuilder()
    conv = graph.add("Conv", graph.input("x"), graph.weight("w"), graph.weight("b"))
    biased = graph.add("Add", graph.weight("c"), conv)
    graph.add("Add", graph.add("Relu", biased), conv)
    return graph.build()


CONV = op("Conv", wildcard(), is_constant(), name="conv")
ADD = op("Add", wildcard(), wildcard())


@pytest.mark.parametrize(
    ("pattern", "nodes"),
    [
        (CONV, [0b1]),
        (op(("Conv", "Relu")), [0b1, 0b100]),
        (op("Relu") | op("Conv"), [0b1, 0b100]),
        (op("Add", op("Conv"), is_constant()), [0b11]),
        (op("Add", op("Conv"), is_constant(), commutative=False), []),
        (ADD, [0b10, 0b1000]),
        (op("Add", op("Conv"), op("Relu", wildcard())), [0b1101]),
        (CONV.optional(lambda x: op("Add", x, is_constant())), [0b1, 0b11]),
        (op("Relu", op("Add", CONV | wildcard(), wildcard())), [0b110, 0b111]),
        (op("Add", op("Relu", op("Add", CONV, wildcard())), CONV), [0b1111]),
        (op("Conv", wildcard(), is_constant(), is_constant(), wildcard()), []),
        (op("Conv", where=lambda graph, node: len(node.inputs) == 3), [0b1]),
        (op("Conv", where=lambda graph, node: len(node.inputs) == 2), []),
        (wildcard(), []),
    ],
)
def test_matches(pattern, nodes):
    assert [match.nodes for match in matches(pattern, _graph())] == nodes


def test_one_pattern_object_is_one_value():
    graph = GraphBuilder()
    x, y = graph.input("x"), graph.input("y")
    total = graph.add("Add", x, x)
    graph.add("Add", total, y)
    same, different = wildcard(), wildcard()
    assert [match.nodes for match in matches(op("Add", same, same), graph.build())] == [0b1]
    assert [match.nodes for match in matches(op("Add", same, different), graph.build())] == [
        0b1,
        0b10,
    ]


def test_the_predicate_gets_the_match():
    calls = []

    def refuse(match):
        calls.append((match.root, match.node("conv").op))
        return "no" if match.root == 0 else None

    pattern = CONV.optional(lambda x: op("Add", x, is_constant()))
    rule = DFPattern("conv_bias", pattern, refuse)
    candidates = rule.candidates(_graph(), PartitionSpec("test"))
    assert [(candidate.inside, candidate.label) for candidate in candidates] == [
        (0b11, "conv_bias")
    ]
    assert calls == [(0, "Conv"), (1, "Conv")]


def test_a_second_output_can_be_matched():
    graph = GraphBuilder()
    _, second = graph.add_many("Split", [graph.input("x")], 2)
    graph.add("Relu", second)
    assert [match.nodes for match in matches(op("Relu", op("Split")), graph.build())] == [0b11]
