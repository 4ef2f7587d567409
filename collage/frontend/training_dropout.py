"""Dropout in training mode as a draw of uniform numbers and plain arithmetic.

Toolchains treat Dropout as a view of its input, which is right in inference mode only. A model that was
exported in training mode on purpose (Monte Carlo dropout) draws a new mask in every run. As
RandomUniformLike, a comparison and a product, the draw is a node of its own (`frontend.random_operators`),
and every toolchain computes the rest.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage.frontend.onnx_attributes import attributes_of
from collage.frontend.onnx_proto import STANDARD_DOMAINS, sub_graphs

DEFAULT_RATIO = 0.5
HAS_CAST_LIKE = 15
"""First operator set with CastLike."""


def lower_training_dropout(model: onnx.ModelProto) -> bool:
    """Replace, in place, every Dropout whose training mode is on, or is known only when it runs.

    Returns:
        Whether there was one.
    """
    opset = max(
        (stamp.version for stamp in model.opset_import if stamp.domain in STANDARD_DOMAINS),
        default=1,
    )
    return _lower(model.graph, {}, opset)


def _lower(graph: onnx.GraphProto, outer: dict[str, bool], opset: int) -> bool:
    flags = outer | _flags(graph)
    nodes: list[onnx.NodeProto] = []
    lowered = False
    for node in graph.node:
        for body in sub_graphs(node):
            lowered |= _lower(body, flags, opset)
        if _may_train(node, flags):
            nodes += _drawn(node, opset)
            lowered = True
        else:
            nodes.append(node)
    if lowered:
        del graph.node[:]
        graph.node.extend(nodes)
    return lowered


def _flags(graph: onnx.GraphProto) -> dict[str, bool]:
    """Return the constant booleans of a graph by name."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors |= {
        node.output[0]: attribute.t
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    return {
        name: bool(numpy_helper.to_array(tensor).any())
        for name, tensor in tensors.items()
        if tensor.data_type == onnx.TensorProto.BOOL
    }


def _may_train(node: onnx.NodeProto, flags: dict[str, bool]) -> bool:
    if node.op_type != "Dropout" or node.domain not in STANDARD_DOMAINS or len(node.input) < 3:
        return False
    return bool(node.input[2]) and flags.get(node.input[2], True)


def _drawn(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    x, ratio, training = node.input
    prefix = f"{node.output[0]}/dropout"
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: Sequence[str], output: str = "", /, **attributes: object) -> str:
        output = output or f"{prefix}/{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def number(value: float, dtype: type = np.float32) -> str:
        return add("Constant", [], value=numpy_helper.from_array(np.array(value, dtype)))

    ratio = add("Cast", [ratio], to=onnx.TensorProto.FLOAT) if ratio else number(DEFAULT_RATIO)
    share = add("Where", [training, ratio, number(0)])
    shape = add("Shape", [x])
    blank = add("ConstantOfShape", [shape], value=helper.make_tensor("", 1, [1], [0.0]))
    uniform = add("RandomUniformLike", [blank], dtype=onnx.TensorProto.FLOAT, **_seed(node))
    mask_name = node.output[1] if len(node.output) > 1 else ""
    mask = add("Not", [add("Less", [uniform, share])], mask_name)
    scale = add("Div", [number(1), add("Sub", [number(1), share])])
    nothing = number(0)
    if opset >= HAS_CAST_LIKE:  # before, the arithmetic is in float32
        scale, nothing = (add("CastLike", [value, x]) for value in (scale, nothing))
    add("Where", [mask, add("Mul", [x, scale]), nothing], node.output[0])
    return nodes


def _seed(node: onnx.NodeProto) -> dict[str, float]:
    attributes = attributes_of(node)
    return {"seed": float(attributes.integer("seed", 0))} if "seed" in attributes else {}
