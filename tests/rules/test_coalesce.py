"""Graphs that no public test covers: fork, inception, complete bipartite, mixed backends."""

import pytest

from collage.graph.builder import GraphBuilder
from collage.graph.contract import quotient_order
from collage.graph.index_set import index_set
from collage.rules import (
    ByAnchor,
    Combine,
    MaxCoalesce,
    OpCallByKind,
    PartitionSpec,
    Regions,
    Singles,
    Union,
    coalesce,
)
from collage.rules.coalesce import greedy_partition

SPEC = PartitionSpec("a")
OTHER = PartitionSpec("b")


def _inception(arms=4):
    """0 relu; per arm conv and relu; one concat."""
    graph = GraphBuilder()
    x = graph.add("Relu", graph.input("x"))
    ends = [graph.add("Relu", graph.add("Conv", x)) for _ in range(arms)]
    graph.add("Concat", *ends)
    return graph.build()


def _bipartite(width=3):
    graph = GraphBuilder()
    tops = [graph.add("Relu", graph.input(f"x{k}")) for k in range(width)]
    graph.returns(*(graph.add("Concat", *tops) for _ in range(width)))
    return graph.build()


def _on(graph, spec, nodes):
    return Singles(index_set(nodes)).candidates(graph, spec)


def test_fork():
    graph = GraphBuilder()
    x = graph.add("Relu", graph.input("x"))
    graph.returns(graph.add("Tanh", x), graph.add("Abs", x))
    graph = graph.build()
    assert [candidate.inside for candidate in coalesce(_on(graph, SPEC, [0, 1, 2]))] == [0b111]
    merged = coalesce(_on(graph, SPEC, [0, 1]) + _on(graph, OTHER, [2]))
    assert [(candidate.inside, candidate.backend) for candidate in merged] == [
        (0b011, "a"),
        (0b100, "b"),
    ]


def test_inception():
    """With one arm on another backend, the nodes before and after it are two groups."""
    graph = _inception()
    assert [candidate.inside for candidate in coalesce(_on(graph, SPEC, range(len(graph))))] == [
        graph.everything
    ]
    nodes = [node for node in range(len(graph)) if node not in (1, 2)]
    merged = coalesce(_on(graph, SPEC, nodes) + _on(graph, OTHER, [1, 2]))
    assert len(merged) == 3
    assert quotient_order(graph, [candidate.inside for candidate in merged]) is not None


def test_complete_bipartite():
    graph = _bipartite()
    parts = _on(graph, SPEC, [0, 1, 3, 4]) + _on(graph, OTHER, [2, 5])
    merged = coalesce(parts)
    assert sum(candidate.inside for candidate in merged) == graph.everything
    assert quotient_order(graph, [candidate.inside for candidate in merged]) is not None
    assert all(candidate.sub_graph.is_convex for candidate in merged)


def test_two_native_targets_do_not_merge():
    graph = _inception(1)
    specs = [PartitionSpec("tvm-llvm"), PartitionSpec("tvm-cuda")]
    merged = coalesce([_on(graph, specs[node % 2], [node])[0] for node in range(4)])
    assert [candidate.inside for candidate in merged] == [1, 2, 4, 8]


def test_overlapping_candidates_are_refused():
    graph = _inception(1)
    with pytest.raises(ValueError, match="overlap"):
        coalesce(_on(graph, SPEC, [0]) + _on(graph, OTHER, [0]))


def test_greedy_partition_takes_the_largest_without_a_cycle():
    graph = _inception(2)
    everything = Singles(graph.everything)
    partition = greedy_partition(Union((everything, Regions(0b11111))).candidates(graph, SPEC))
    assert [candidate.inside for candidate in partition] == [0b011111, 0b100000]


def test_max_coalesce_is_a_rule():
    graph = _inception(2)
    candidates = MaxCoalesce(Singles(0b011110)).candidates(graph, SPEC)
    assert [candidate.inside for candidate in candidates] == [0b00110, 0b11000]


def test_anchors_join_vertically_and_horizontally():
    """Siblings with one common operand join, and a convolution with the one that reads it."""
    graph = GraphBuilder()
    x = graph.add("Conv", graph.input("x"))
    graph.returns(graph.add("MatMul", x), graph.add("MatMul", x), graph.add("Conv", x))
    graph = graph.build()
    beside = Combine(OpCallByKind(), (ByAnchor(horizontal=True),)).candidates(graph, SPEC)
    assert [candidate.inside for candidate in beside] == [1, 2, 4, 8, 0b0110]
    below = Combine(OpCallByKind(), (ByAnchor(),), max_nodes=2).candidates(graph, SPEC)
    assert [candidate.inside for candidate in below] == [1, 2, 4, 8, 0b0011, 0b0101, 0b1001]


def test_horizontal_anchors_join_all_three_projections():
    graph = GraphBuilder()
    x = graph.input("x")
    graph.add("Concat", *(graph.add("MatMul", x, graph.weight()) for _ in range(3)))
    rule = Combine(OpCallByKind(), (ByAnchor(horizontal=True),))
    assert 0b0111 in {candidate.inside for candidate in rule.candidates(graph.build(), SPEC)}
