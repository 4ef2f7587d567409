"""A small layer in any precision, for tests of GPU code."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.frontend import Function
from collage.frontend.load_function import make_function
from collage.graph.index_set import index_set
from collage.graph.op_pattern import OpPatternKind

TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}


def layer(folder: Path, dtype: str, batch: int = 1) -> Function:
    """relu(x w + b), layer normalisation, softmax, and a product of two computed matrices."""
    kind = TYPES[dtype]

    def weight(name, *shape):
        values = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        as_type = values.astype(helper.tensor_dtype_to_np_dtype(kind))
        return numpy_helper.from_array(as_type, name)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "s", "b"], ["n"]),
        helper.make_node("Softmax", ["n"], ["e"]),
        helper.make_node("MatMul", ["e", "r"], ["y"]),
    ]
    shape = (batch, 64, 64)
    graph = helper.make_graph(
        nodes, "layer",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape)],
        [weight("w", 64, 64), weight("b", 64), weight("s", 64)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    # ONNX Runtime has no bfloat16 products on a CPU, so this is loaded as a worker does, not imported.
    kinds = [OpPatternKind.OPAQUE] * len(nodes)
    inferred = onnx.shape_inference.infer_shapes(proto)
    return make_function(inferred, "main", folder / "layer.onnx", kinds)


def nodes_of(function: Function, *ops: str) -> int:
    """The first nodes of the given operators, as a set."""
    positions = [next(n.index for n in function.graph.nodes if n.op == op) for op in ops]
    return index_set(positions)
