"""ONNX attributes by type, with defaults."""

import pytest
from onnx import helper

from collage.frontend.onnx_attributes import NodeAttributes, node_attributes
from tests.frontend.build import imported, model


@pytest.fixture
def attributes(tmp_path):
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[3, 2], auto_pad="SAME_UPPER", ceil_mode=0
    )
    function = imported(model([node], {"x": ("float32", (1, 4, 8, 8))}, ("y",)), tmp_path)
    return node_attributes(function, 0)


def test_present_attributes_have_their_type(attributes):
    assert attributes.integers("kernel_shape", ()) == (3, 2)
    assert attributes.text("auto_pad", "NOTSET") == "SAME_UPPER"
    assert attributes.integer("ceil_mode", 1) == 0
    assert "kernel_shape" in attributes


def test_absent_attributes_have_the_default(attributes):
    assert attributes.integers("strides", [1, 1]) == (1, 1)
    assert attributes.text("mode", "nearest") == "nearest"
    assert attributes.number("alpha", 0.2) == 0.2
    assert attributes.get("strides") is None
    assert "strides" not in attributes


def test_numbers_of_another_type_are_converted():
    attributes = NodeAttributes({"alpha": 2, "axis": 1.0})
    assert isinstance(attributes.number("alpha", 0.0), float)
    assert isinstance(attributes.integer("axis", 0), int)
