"""Small models that several areas compile."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small_model(path, dynamic=False):
    """Write ten nodes with two outputs to `path`: convolutions, a product and a softmax."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((16, 3, 3, 3)) * 0.2,
        "b1": rng.standard_normal(16),
        "w2": rng.standard_normal((16, 16, 1, 1)) * 0.2,
        "w3": rng.standard_normal((16, 10)) * 0.3,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], kernel_shape=[1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["g"]),
        helper.make_node("Mul", ["s", "g"], ["m"]),
        helper.make_node("GlobalAveragePool", ["m"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"], axis=-1),
    ]
    side = "side" if dynamic else 24
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, side, side])
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10]),
        helper.make_tensor_value_info("m", TensorProto.FLOAT, [1, 16, side, side]),
    ]
    initializers = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "small", [x], outputs, initializers)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path
