"""Groups of TVM's FuseOps pass on the examples of its documentation and tests."""

from dataclasses import replace

import pytest

from collage.graph.builder import GraphBuilder
from collage.graph.dataflow import TensorType
from collage.graph.index_set import index_set
from collage.graph.op_pattern import OpPatternKind as Kind
from collage.rules import PartitionSpec, native_rule
from collage.rules.tvm_fusion import fuse_ops
from tests.support.graphs import chain


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (("Conv", "Relu", "Tanh"), [0b111]),
        (("Relu", "Conv"), [0b01, 0b10]),
        (("Conv", "Conv"), [0b01, 0b10]),
        (("Conv", "Relu", "ReduceMean"), [0b011, 0b100]),
        (("Relu", "Tanh", "ReduceMean"), [0b111]),
        (("ReduceMean", "Relu"), [0b01, 0b10]),
        (("Transpose", "Reshape", "Relu"), [0b111]),
        (("Conv", "Transpose"), [0b01, 0b10]),
        (("Relu", "LSTM", "Relu", "Relu"), [0b0001, 0b0010, 0b1100]),
    ],
)
def test_chains(names, groups):
    assert fuse_ops(chain(*names)) == groups


def test_a_diamond_of_elementwise_nodes_joins_its_anchor():
    graph = GraphBuilder()
    conv = graph.add("Conv", graph.input("x"))
    graph.add("Add", graph.add("Relu", conv), graph.add("Tanh", conv))
    assert fuse_ops(graph.build()) == [0b1111]


def test_a_skip_producer_joins_a_finished_anchor():
    """conv + relu(skip): the pairwise combiner of upstream misses it (defect D1)."""
    graph = GraphBuilder()
    conv = graph.add("Conv", graph.input("x"))
    graph.add("Relu", graph.add("Add", conv, graph.add("Relu", graph.input("y"))))
    assert fuse_ops(graph.build()) == [0b1111]


def test_two_anchors_stay_apart():
    graph = GraphBuilder()
    x = graph.input("x")
    graph.add("Relu", graph.add("Add", graph.add("Conv", x), graph.add("Conv", x)))
    assert fuse_ops(graph.build()) == [0b1101, 0b10]


def test_a_returned_node_ends_its_group():
    graph = GraphBuilder()
    conv = graph.add("Conv", graph.input("x"))
    graph.returns(conv, graph.add("Relu", conv))
    assert fuse_ops(graph.build()) == [0b01, 0b10]


def test_a_broadcast_with_a_new_shape_ends_an_anchor():
    graph = GraphBuilder((1, 10))
    conv = graph.add("Conv", graph.input("x"))
    graph.add("Add", conv, graph.weight(), name="wide")
    built = graph.build()
    assert fuse_ops(built) == [0b11]
    types = {**built.types, "wide": TensorType((10, 10), "float32")}
    assert fuse_ops(replace(built, types=types)) == [0b01, 0b10]


def test_injective_producers_join_through_a_tuple():
    graph = GraphBuilder()
    x = graph.input("x")
    fields = [graph.add("Transpose", x), graph.add("Reshape", x)]
    graph.add("Concat", graph.add("tuple", *fields))
    assert fuse_ops(graph.build()) == [0b1111]


def test_unsupported_nodes_do_not_fuse():
    assert fuse_ops(chain("Relu", "Tanh", "Relu", "Relu"), index_set([0, 2, 3])) == [1, 0b1100]


def test_the_default_rule_offers_less_fusion_too():
    graph = chain("Conv", "Add", "Relu", "ReduceMean")
    candidates = native_rule(graph.everything).candidates(graph, PartitionSpec("tvm"))
    assert {candidate.inside for candidate in candidates} >= {
        1,
        2,
        4,
        8,
        0b11,
        0b111,
        0b110,
        0b1110,
    }
    assert all(candidate.sub_graph.kind <= Kind.OUT_ELEMWISE_FUSABLE for candidate in candidates)


def test_limits_keep_wide_graphs_finite():
    """Twenty parallel element-wise arms have a million unions."""
    graph = GraphBuilder()
    x = graph.add("Relu", graph.input("x"))
    total = graph.add("Relu", x)
    for _ in range(20):
        total = graph.add("Add", total, graph.add("Tanh", x))
    graph = graph.build()
    assert len(native_rule(graph.everything).candidates(graph, PartitionSpec("tvm"))) < 12 * len(
        graph
    )
