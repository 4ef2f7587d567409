"""Models of a bundle with several entries: they differ in their last operator alone."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = {
    name: np.random.default_rng(seed).standard_normal((48, 48)).astype("float32") / 7
    for seed, name in enumerate("wv")
}


def write_net(path, last):
    """Write y = last(relu(x w) v) to `path`, with a dimension `n`."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node(last, ["c"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 48])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(value, name) for name, value in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
