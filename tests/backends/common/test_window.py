"""Windows of convolutions with explicit pads."""

from collage.backends.common.window import Window, explicit_window
from collage.frontend.onnx_attributes import NodeAttributes


def test_absent_attributes_give_a_dense_window():
    window = explicit_window(NodeAttributes({}), (3, 5))
    assert window == Window((3, 5), (1, 1), (1, 1), (0, 0), (0, 0))


def test_pads_begin_come_before_pads_end():
    attributes = NodeAttributes({"pads": [1, 2, 3, 4], "strides": [2, 3], "dilations": [1, 2]})
    window = explicit_window(attributes, (3, 3))
    assert (window.pads_begin, window.pads_end) == ((1, 2), (3, 4))
    assert (window.strides, window.dilations) == ((2, 3), (1, 2))


def test_one_dimension_becomes_two_with_a_unit_in_front():
    window = explicit_window(NodeAttributes({"pads": [2, 1], "strides": [3]}), (5,)).with_rank(2)
    assert window == Window((1, 5), (1, 3), (1, 1), (0, 2), (0, 1))


def test_a_window_of_higher_rank_is_unchanged():
    window = explicit_window(NodeAttributes({}), (3, 3, 3))
    assert window.with_rank(2) == window
