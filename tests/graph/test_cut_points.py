"""Cut points of chains, residuals and graphs with values that are live everywhere."""

from hypothesis import given, settings
from hypothesis import strategies as st

from collage.graph.builder import GraphBuilder
from collage.graph.cut_points import cut_points, intervals, pieces
from collage.graph.sub_graph import SubGraph


def test_a_chain_can_be_cut_everywhere():
    graph = GraphBuilder()
    value = graph.input("x")
    for _ in range(4):
        value = graph.add("Relu", value)
    assert cut_points(graph.build()) == [1, 2, 3]
    assert pieces(graph.build()) == [1, 2, 4, 8]


def test_a_residual_is_one_piece():
    graph = GraphBuilder()
    x = graph.add("Relu", graph.input("x"))
    y = graph.add("Conv", graph.add("Relu", graph.add("Conv", x)))
    graph.add("Relu", graph.add("Add", x, y))
    assert pieces(graph.build()) == [0b1, 0b11110, 0b100000]


def test_a_block_that_reads_the_input_twice_is_one_piece():
    graph = GraphBuilder()
    x = graph.input("x")
    graph.add("Add", graph.add("Conv", graph.add("Conv", x)), graph.add("Conv", x))
    assert pieces(graph.build()) == [0b1111]


def test_a_mask_hides_no_cut_point():
    """A mask made of an input and of weights is live over all layers."""
    graph = GraphBuilder()
    x, mask = graph.input("x"), graph.input("mask")
    mask = graph.add("Mul", graph.add("Sub", graph.weight(), mask), graph.weight())
    for _ in range(30):
        x = graph.add("Softmax", graph.add("Add", graph.add("MatMul", x, graph.weight()), mask))
    assert len(cut_points(graph.build())) >= 3 * 20


def test_weights_and_returned_values_are_not_live():
    graph = GraphBuilder()
    a = graph.add("Conv", graph.input("x"), graph.weight("w"))
    b = graph.add("Conv", a, "w")
    c = graph.add("Conv", b, "w")
    graph.returns(a, b, c)
    assert cut_points(graph.build()) == [1, 2]


def test_long_intervals_of_long_sequences_lie_on_a_grid():
    assert len(intervals([1 << index for index in range(60)])) == 1830
    parts = [1 << index for index in range(1000)]
    regions = intervals(parts)
    assert len(regions) == len(set(regions)) < 32_000
    assert set(parts) <= set(regions)
    assert (1 << 1000) - 1 in regions


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=25))
@settings(max_examples=100, deadline=None)
def test_pieces_cover_and_intervals_are_convex(reads):
    graph = GraphBuilder()
    values = [graph.input("x")]
    for first_distance, second_distance in reads:
        values.append(
            graph.add(
                "Add",
                values[-min(first_distance, len(values))],
                values[-min(second_distance, len(values))],
            )
        )
    graph = graph.build()
    parts = pieces(graph)
    assert sum(parts) == graph.everything
    for region in intervals(parts):
        sub_graph = SubGraph(graph, region)
        assert sub_graph.is_convex
