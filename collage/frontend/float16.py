"""Models in 16-bit floats keep their type during constant folding.

ONNX Runtime has no CPU kernels for 16-bit floats: its optimiser turns a float16 model into float32 with
conversions at each operator, and does not load a bfloat16 model. A GPU needs the 16-bit type. So a model
with floats of a single 16-bit type is widened to float32, folded, and narrowed again; constants are folded
in float32 and rounded once. A model with mixed types stays unchanged.
"""

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.frontend.onnx_proto import all_nodes, sub_graphs

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
FLOATS = (*HALVES, TensorProto.FLOAT, TensorProto.DOUBLE)


def half_type(model: onnx.ModelProto) -> int:
    """Return the 16-bit type of all floats in the model; 0 without floats or with other types."""
    float_numbers = {number for number in element_types(model) if number in FLOATS}
    return float_numbers.pop() if len(float_numbers) == 1 and float_numbers <= set(HALVES) else 0


def file_float_types(file: Path) -> frozenset[str]:
    """Return `float_types` of the model in a file."""
    return float_types(onnx.load(file, load_external_data=False))


def float_types(model: onnx.ModelProto) -> frozenset[str]:
    """Return the names of all types of floats in the model."""
    numbers = set(element_types(model))
    return frozenset(
        helper.tensor_dtype_to_np_dtype(number).name for number in numbers & set(FLOATS)
    )


def retyped(model: onnx.ModelProto, before: int, after: int) -> onnx.ModelProto:
    """Return a copy of the model with floats of type `before` as `after`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in _graphs(copy):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == before:
                value.type.tensor_type.elem_type = after
        for tensor in graph.initializer:
            _retype(tensor, before, after)
    for node in all_nodes(copy):
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == before:
                attribute.i = after
            if attribute.HasField("t"):
                _retype(attribute.t, before, after)
    return copy


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model with bfloat16 as float32, whose casts to bfloat16 still round.

    ONNX Runtime has no kernels for bfloat16 on a CPU but Cast.
    """
    before, after = TensorProto.BFLOAT16, TensorProto.FLOAT
    wide = retyped(model, before, after)
    pairs = list(zip(_graphs(model), _graphs(wide), strict=True))
    for narrow_graph, graph in reversed(
        pairs
    ):  # bodies first: their nodes are copied with their owners
        nodes = []
        for narrow_node, node in zip(narrow_graph.node, graph.node, strict=True):
            if _casts_to(narrow_node, before):
                rounded = f"{node.output[0]}/bfloat16"
                nodes.append(helper.make_node("Cast", node.input, [rounded], to=before))
                node.input[0] = rounded
            nodes.append(node)
        if len(nodes) > len(graph.node):
            del graph.node[:]
            graph.node.extend(nodes)
    return wide


def _casts_to(node: onnx.NodeProto, element_type: int) -> bool:
    return node.op_type == "Cast" and any(
        attribute.name == "to" and attribute.i == element_type for attribute in node.attribute
    )


def retyped_array(value: np.ndarray, before: int, after: int) -> np.ndarray:
    """Return an array of type `before` in type `after`; return other arrays unchanged.

    Values out of range become the largest finite value: a mask of -3e38 times 0 stays 0.
    """
    if value.dtype != helper.tensor_dtype_to_np_dtype(before):
        return value
    dtype = helper.tensor_dtype_to_np_dtype(after)
    if after in HALVES:
        largest = float(ml_dtypes.finfo(dtype).max)
        value = np.where(np.isfinite(value), np.clip(value, -largest, largest), value)
    return value.astype(dtype)


def _retype(tensor: TensorProto, before: int, after: int) -> None:
    if tensor.data_type == before:
        value = retyped_array(numpy_helper.to_array(tensor), before, after)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def element_types(model: onnx.ModelProto) -> Iterator[int]:
    """Yield the types of all inputs, outputs, annotated values and constants, and targets of casts."""
    for graph in _graphs(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.type.tensor_type.elem_type
        for tensor in graph.initializer:
            yield tensor.data_type
    for node in all_nodes(model):
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                yield attribute.i
            if attribute.HasField("t"):
                yield attribute.t.data_type


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield model.graph
    for node in all_nodes(model):
        yield from sub_graphs(node)
