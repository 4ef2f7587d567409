"""Cases of upstream's test_sub_graph.py: validity, and the graph after contraction."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.graph.builder import GraphBuilder
from collage.graph.contract import contract
from collage.graph.index_set import index_set, indices
from collage.graph.op_pattern import OpPatternKind as Kind
from collage.graph.sub_graph import SubGraph, SubGraphConfig, components


def _rewritten(graph, nodes, **config):
    """Contract the set if it is valid; nodes as (op, inputs, outputs)."""
    sub_graph = SubGraph(graph, index_set(nodes))
    valid = sub_graph.validity(SubGraphConfig(**config)) is None
    result = contract(graph, [sub_graph]) if valid else graph
    return [(node.op, node.inputs, node.outputs) for node in result.nodes]


def _unchanged(graph):
    return [(node.op, node.inputs, node.outputs) for node in graph.nodes]


def _two_adds():
    graph = GraphBuilder()
    a, b, c, d = (graph.input(name) for name in "abcd")
    graph.add("Sub", graph.add("Add", a, b, name="p"), graph.add("Add", c, d, name="q"), name="s")
    return graph.build()


def test_single_op():
    assert _rewritten(_two_adds(), [1], max_exits=1) == [
        ("Add", ("a", "b"), ("p",)),
        ("call", ("c", "d"), ("q",)),
        ("Sub", ("p", "q"), ("s",)),
    ]


def test_multi_output():
    graph = _two_adds()
    assert _rewritten(graph, [0, 1], max_exits=1) == _unchanged(graph)
    assert _rewritten(graph, [0, 1], max_exits=2) == [
        ("call", ("a", "b", "c", "d"), ("p", "q")),
        ("Sub", ("p", "q"), ("s",)),
    ]


def test_classic_conv_add_relu():
    graph = GraphBuilder()
    a, b, c, d = (graph.input(name) for name in "abcd")
    relu = graph.add("Relu", graph.add("Add", graph.add("Conv", a, b), c), name="r")
    graph.add("Sub", relu, d, name="s")
    assert _rewritten(graph.build(), [0, 1, 2], max_exits=1) == [
        ("call", ("a", "b", "c"), ("r",)),
        ("Sub", ("r", "d"), ("s",)),
    ]


def _diamond():
    graph = GraphBuilder()
    conv = graph.add("Conv", graph.input("x"), graph.weight())
    left_arm = graph.add("Relu", graph.add("Relu", conv), name="l")
    graph.add("Add", left_arm, graph.add("LeakyRelu", conv, name="r"), name="s")
    return graph.build()


def test_diamond_with_one_output():
    assert _rewritten(_diamond(), range(5), max_exits=1) == [("call", ("x",), ("s",))]


def test_diamond_with_two_outputs():
    assert _rewritten(_diamond(), range(4), max_exits=2) == [
        ("call", ("x",), ("l", "r")),
        ("Add", ("l", "r"), ("s",)),
    ]


def test_escaping_intermediate():
    graph = GraphBuilder()
    c = graph.add("Conv", graph.input("x"), graph.weight(), name="c")
    graph.add("Add", graph.add("Relu", c, name="r"), c, name="s")
    graph = graph.build()
    assert _rewritten(graph, [0, 1], max_exits=2, allow_escaping=False) == _unchanged(graph)
    assert _rewritten(graph, [0, 1], max_exits=2, allow_escaping=True) == [
        ("call", ("x",), ("c", "r")),
        ("Add", ("r", "c"), ("s",)),
    ]


def test_no_cycles():
    graph = GraphBuilder()
    x = graph.input("x")
    a = graph.add("Add", x, x)
    graph.add("Add", graph.add("Add", a, x), x, name="s")
    graph = graph.build()
    assert _rewritten(graph, [0, 2]) == _unchanged(graph)
    assert _rewritten(graph, [0, 1, 2]) == [("call", ("x",), ("s",))]
    with pytest.raises(ValueError, match="cycle"):
        contract(graph, [SubGraph(graph, 0b101)])


def _labelled(graph, **groups):
    parts = [
        SubGraph(graph, index_set(nodes), label=name).with_attrs(Composite=name)
        for name, nodes in groups.items()
    ]
    joined = parts[0]
    for part in parts[1:]:
        joined = joined.disjoint_union(part)
    return joined


def _two_diamonds(used_outside):
    graph = GraphBuilder()
    x = graph.add("Relu", graph.input("x"), name="in")
    tapped = []
    for name in "ab":
        left_arm = graph.add("Relu", x, name=f"{name}l")
        x = graph.add("Add", left_arm, graph.add("LeakyRelu", x, name=f"{name}r"), name=name)
        tapped.append(left_arm)
    out = graph.add("Relu", x, name="out")
    if used_outside:
        graph.add("Add", out, tapped[0], name="extra")
    return graph.build()


def test_labels_with_a_direct_connection():
    graph = _two_diamonds(used_outside=False)
    joined = _labelled(graph, a=[1, 2, 3], b=[4, 5, 6])
    assert joined.validity(SubGraphConfig(max_exits=1, allow_escaping=False)) is None
    (call,) = [node for node in contract(graph, [joined]).nodes if node.op == "call"]
    assert (call.inputs, call.outputs) == (("in",), ("b",))
    nested = [node.sub_graph for node in joined.nested]
    assert [(part.input_values, part.output_values) for part in nested] == [
        (("in",), ("a",)),
        (("a",), ("b",)),
    ]


def test_labels_with_an_escaping_intermediate():
    graph = _two_diamonds(used_outside=True)
    joined = _labelled(graph, a=[1, 2, 3], b=[4, 5, 6])
    assert joined.validity(SubGraphConfig(max_exits=2, allow_escaping=True)) is None
    assert joined.validity(SubGraphConfig(max_exits=1)) is not None
    assert joined.output_values == ("al", "b")
    assert joined.nested[0].sub_graph.output_values == ("al", "a")


def test_nested_sub_graphs_must_be_disjoint_and_inside():
    """Upstream never sees an overlap (defect D12)."""
    graph = _two_diamonds(used_outside=False)
    left, right = _labelled(graph, a=[1, 2, 3]), _labelled(graph, b=[3, 4, 5, 6])
    overlapping = SubGraph(graph, left.inside | right.inside, (*left.nested, *right.nested))
    assert overlapping.validity(SubGraphConfig()) == "nested sub-graphs overlap"
    outside = SubGraph(graph, 0b10, left.nested)
    assert outside.validity(SubGraphConfig()) == "a nested sub-graph is not inside"
    with pytest.raises(ValueError, match="overlap"):
        left.disjoint_union(right)


def test_properties_of_a_residual():
    graph = _diamond()
    sub_graph = SubGraph(graph, index_set([1, 2, 4]))
    assert list(indices(sub_graph.entry)) == [1, 4]
    assert list(indices(sub_graph.exit)) == [4]
    assert list(indices(sub_graph.input)) == [0, 3]
    assert sub_graph.output == 0
    assert sub_graph.depth == 3
    assert sub_graph.kind == Kind.BROADCAST
    assert sub_graph.input_values == (graph.nodes[0].name, "r")
    assert sub_graph.is_connected
    assert not SubGraph(graph, index_set([1, 3])).is_connected
    assert len(components(graph, index_set([1, 2, 3]))) == 2


def test_equality_compares_nodes_and_nesting_not_labels():
    graph = _diamond()
    plain = SubGraph(graph, 0b11)
    assert plain == SubGraph(graph, 0b11, label="named")
    assert plain.with_attrs(Composite="a") != plain
    assert plain.with_attrs(Composite="a") != plain.with_attrs(Composite="b")


@st.composite
def _graphs(draw):
    graph = GraphBuilder()
    values = [graph.input("x")]
    for _ in range(draw(st.integers(1, 9))):
        values.append(graph.add("Add", *(draw(st.sampled_from(values)) for _ in range(2))))
    return graph.build()


@given(_graphs(), st.data())
@settings(max_examples=200, deadline=None)
def test_properties_agree_with_their_definitions(graph, data):
    inside = data.draw(st.integers(1, graph.everything))
    sub_graph = SubGraph(graph, inside)
    edges = [
        (source, reader)
        for reader in range(len(graph))
        for source in indices(graph.predecessors[reader])
    ]

    def has(node):
        return bool(inside >> node & 1)

    assert set(indices(sub_graph.input)) == {
        source for source, reader in edges if has(reader) and not has(source)
    }
    assert set(indices(sub_graph.output)) == {
        reader for source, reader in edges if has(source) and not has(reader)
    }
    leaving = {source for source, reader in edges if has(source) and not has(reader)}
    assert set(indices(sub_graph.exit)) == leaving | {
        node for node in range(len(graph)) if has(node) and graph.external >> node & 1
    }
    through = [
        outside
        for outside in range(len(graph))
        if not has(outside)
        and graph.downstream[outside] & inside
        and sub_graph.downstream >> outside & 1
    ]
    assert sub_graph.is_convex == (not through)
    if sub_graph.is_convex:
        result = contract(graph, [sub_graph])
        assert len(result) == len(graph) - sub_graph.size + 1
