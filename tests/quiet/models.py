"""The smallest model that a compile has something to measure of."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper


def tiny_model(path: Path) -> Path:
    """Write a model of two operators, stamped as `make_model` does by default."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 4096]) for name in "xy")
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Sigmoid", ["a"], ["y"])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "tiny", [x], [y])), path)
    return path
