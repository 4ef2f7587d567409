"""Candidates of random graphs can run; lists are complete, ordered and repeatable."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.base import BackendStyle
from collage.graph.builder import GraphBuilder
from collage.graph.contract import quotient_order
from collage.rules import (
    DFPattern,
    PartitionSpec,
    Singles,
    coalesce,
    find_candidates,
    op,
    single_backend_partition,
    supported_nodes,
    wildcard,
)
from collage.rules.tvm_fusion import ONE_RESULT, fuse_ops
from tests.support.fake_backend import FakeBackend, Graph
from tests.support.graphs import chain

OPS = ("Relu", "Add", "Conv", "Transpose", "ReduceMean", "Concat", "LSTM", "Reshape", "Tanh")


BACKENDS = (
    FakeBackend("tvm", BackendStyle.NATIVE, frozenset({"LSTM"})),
    FakeBackend("onednn", BackendStyle.LIBRARY, frozenset({"LSTM", "Concat"})),
    FakeBackend("openvino", BackendStyle.GRAPH, frozenset({"Tanh"})),
    FakeBackend("onnxruntime", BackendStyle.GRAPH),
)


@st.composite
def graphs(draw, max_nodes=14):
    graph = GraphBuilder()
    values = [graph.input("x"), graph.input("y")]
    for _ in range(draw(st.integers(1, max_nodes))):
        name = draw(st.sampled_from(OPS))
        count = 2 if name in ("Add", "Concat") else 1
        near = values[-draw(st.integers(1, 6)) :]
        outputs = graph.add_many(
            name,
            [draw(st.sampled_from(near)) for _ in range(count)],
            draw(st.sampled_from([1, 1, 1, 2])),
        )
        values += outputs
    results = draw(st.sets(st.sampled_from(values[2:]), min_size=1, max_size=3))
    graph.returns(*sorted({*results, values[-1]}))
    return graph.build()


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_every_candidate_is_convex_and_supported(graph):
    supported = {backend.name: supported_nodes(Graph(graph), backend) for backend in BACKENDS}
    candidates = find_candidates(Graph(graph), BACKENDS)
    for candidate in candidates:
        assert candidate.inside
        assert candidate.sub_graph.is_convex, candidate
        if not candidate.is_host:
            assert candidate.inside & ~supported[candidate.backend] == 0, candidate
        if candidate.backend == "tvm" and candidate.sub_graph.size > 1:
            assert candidate.sub_graph.validity(ONE_RESULT) is None, candidate
    assert len({candidate.key for candidate in candidates}) == len(candidates)
    assert candidates == sorted(candidates, key=lambda candidate: candidate.order)


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_single_nodes_and_backend_partitions_are_candidates(graph):
    candidates = find_candidates(Graph(graph), BACKENDS)
    keys = {candidate.key for candidate in candidates}
    views = sum(candidate.inside for candidate in candidates if candidate.is_host)
    for backend in BACKENDS:
        supported = supported_nodes(Graph(graph), backend)
        for node in range(len(graph)):
            if (supported & ~views) >> node & 1:
                assert (backend.name, "", 1 << node, "") in keys
        parts = single_backend_partition(Graph(graph), backend)
        assert sum(part.inside for part in parts) == supported
        assert quotient_order(graph, [part.inside for part in parts]) is not None
        assert {part.key for part in parts if part.inside & ~views} <= keys
        assert all(candidate.is_host for candidate in candidates if not candidate.inside & ~views)


@given(graphs(), st.data())
@settings(max_examples=200, deadline=None)
def test_coalescing_is_disjoint_and_acyclic(graph, data):
    """Nodes of two backends and uncovered ones; groups keep all nodes and have an order."""
    specs = [PartitionSpec("a"), PartitionSpec("b"), None]
    chosen = [data.draw(st.sampled_from(specs)) for _ in graph.nodes]
    singles = [
        Singles(1 << index).candidates(graph, spec)[0] for index, spec in enumerate(chosen) if spec
    ]
    merged = coalesce(singles)
    assert sum(candidate.inside for candidate in merged) == sum(
        candidate.inside for candidate in singles
    )
    assert sum(candidate.sub_graph.size for candidate in merged) == len(singles)
    assert quotient_order(graph, [candidate.inside for candidate in merged]) is not None
    assert all(candidate.sub_graph.is_convex for candidate in merged)
    for candidate in merged:
        nodes = [index for index in range(len(graph)) if candidate.inside >> index & 1]
        assert {chosen[index] for index in nodes} == {candidate.spec}


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_fuse_ops_partitions_the_graph(graph):
    groups = fuse_ops(graph)
    assert sum(groups) == graph.everything
    assert sum(group.bit_count() for group in groups) == len(graph)
    assert quotient_order(graph, groups) is not None


def test_candidates_repeat_and_backends_do_not_mix():
    graph = chain("Conv", "Relu", "Conv", "Relu")
    candidates = find_candidates(Graph(graph), BACKENDS)
    assert candidates == find_candidates(Graph(graph), BACKENDS)
    openvino_only = [candidate for candidate in candidates if candidate.backend == "openvino"]
    assert openvino_only == [
        candidate
        for candidate in find_candidates(Graph(graph), BACKENDS[2:3])
        if not candidate.is_host
    ]


def test_variants_multiply_the_specs():
    backend = FakeBackend("onednn", BackendStyle.LIBRARY, variants=("", "winograd"))
    candidates = find_candidates(Graph(chain("Conv", "Relu")), [backend])
    assert [(candidate.inside, candidate.variant) for candidate in candidates] == [
        (1, ""), (1, "winograd"), (2, ""), (2, "winograd"),
    ]  # fmt: skip


def test_a_rule_overrides_the_style():
    pattern = op("Relu", op("Conv", wildcard()))
    backend = FakeBackend("mine", BackendStyle.GRAPH, own_rule=DFPattern("conv_relu", pattern))
    candidates = find_candidates(Graph(chain("Conv", "Relu", "Tanh")), [backend])
    assert [candidate.inside for candidate in candidates] == [0b1, 0b11, 0b10, 0b100]
    assert candidates[1].label == "conv_relu"


def test_unsupported_nodes_break_intervals():
    backend = FakeBackend("openvino", BackendStyle.GRAPH, frozenset({"LSTM"}))
    candidates = find_candidates(Graph(chain("Conv", "Relu", "LSTM", "Conv", "Relu")), [backend])
    assert [candidate.inside for candidate in candidates] == [
        0b1,
        0b11,
        0b10,
        0b1000,
        0b11000,
        0b10000,
    ]


def test_arms_of_a_residual_are_candidates():
    """Both arms alone, each with the addition, both together, and the block."""
    graph = GraphBuilder()
    x = graph.input("x")
    arm = graph.add("Conv", graph.add("Relu", graph.add("Conv", x)))
    graph.add("Add", arm, graph.add("Conv", x))
    backend = FakeBackend("openvino", BackendStyle.GRAPH)
    regions = {candidate.inside for candidate in find_candidates(Graph(graph.build()), [backend])}
    assert {0b00111, 0b01000, 0b10111, 0b11000, 0b01111, 0b11111, 0b00011, 0b10100} <= regions


def test_host_takes_views_only():
    graph = GraphBuilder()
    x = graph.input("x")
    a = graph.add("Reshape", x, graph.weight())
    b = graph.add("Reshape", a, graph.add("Shape", x))
    graph.add("Relu", graph.add("Identity", b))
    candidates = find_candidates(Graph(graph.build()), [])
    assert [(candidate.backend, candidate.sub_graph.ops) for candidate in candidates] == [
        ("host", ("Reshape",)),
        ("host", ("Identity",)),
    ]


@pytest.mark.parametrize("make", ["residual_cnn", "transformer"])
def test_a_thousand_nodes_take_seconds(make):
    enumeration = pytest.importorskip("benchmarks.enumeration")
    graph = getattr(enumeration, make)(1000)
    assert len(find_candidates(Graph(graph), enumeration.BACKENDS)) < 200_000
