"""Small models with the types that no executable has: text, sequences, maps, optional values, float8."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

IR_VERSION = 10


def tensor(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def save_model(file: Path, nodes, inputs, outputs, initializers=(), opsets=(("", 18),)) -> Path:
    """Save a model and return its path."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    onnx.save(model, file)
    return file


def text_model(file: Path) -> Path:
    """`y` is the text of `x` twice, `n` the ids of its words; `x` has any length."""
    nodes = [
        helper.make_node("StringConcat", ["x", "x"], ["y"]),
        helper.make_node(
            "LabelEncoder", ["x"], ["n"], domain="ai.onnx.ml",
            keys_strings=["one", "two"], values_int64s=[1, 2], default_int64=-1,
        ),
    ]  # fmt: skip
    outputs = [tensor("y", TensorProto.STRING, ["n"]), tensor("n", TensorProto.INT64, ["n"])]
    opsets = (("", 20), ("ai.onnx.ml", 2))
    return save_model(file, nodes, [tensor("x", TensorProto.STRING, ["n"])], outputs, opsets=opsets)


def sequence_model(file: Path) -> Path:
    """`y` is the sequence `x` with its first element again at the end; `n` is its length."""
    float_tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    sequence = helper.make_sequence_type_proto(float_tensor)
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("SequenceAt", ["x", "zero"], ["first"]),
        helper.make_node("SequenceInsert", ["x", "first"], ["y"]),
        helper.make_node("SequenceLength", ["y"], ["n"]),
    ]
    inputs = [helper.make_value_info("x", sequence)]
    outputs = [helper.make_value_info("y", sequence), tensor("n", TensorProto.INT64, [])]
    return save_model(file, nodes, inputs, outputs)


def map_model(file: Path) -> Path:
    """`p` is a sequence of one map for each row of `x`: probabilities by class."""
    names = ["cat", "dog", "bird"]
    nodes = [
        helper.make_node("ZipMap", ["x"], ["p"], domain="ai.onnx.ml", classlabels_strings=names)
    ]
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, value))
    opsets = (("", 18), ("ai.onnx.ml", 2))
    return save_model(
        file, nodes, [tensor("x", TensorProto.FLOAT, ["n", 3])], [helper.make_value_info("p", maps)],
        opsets=opsets,
    )  # fmt: skip


def dictionary_model(file: Path) -> Path:
    """`y` is the vector of the map `x` over a vocabulary."""
    nodes = [
        helper.make_node(
            "DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["cat", "dog"]
        )
    ]
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    inputs = [helper.make_value_info("x", helper.make_map_type_proto(TensorProto.STRING, value))]
    opsets = (("", 18), ("ai.onnx.ml", 2))
    return save_model(file, nodes, inputs, [tensor("y", TensorProto.FLOAT, [1, 2])], opsets=opsets)


def float8_model(file: Path) -> Path:
    """`y` is `x` in float8, and `z` the input `w` of float8 in float32."""
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN),
        helper.make_node("Cast", ["w"], ["z"], to=TensorProto.FLOAT),
    ]
    inputs = [
        tensor("x", TensorProto.FLOAT, ["n"]),
        tensor("w", TensorProto.FLOAT8E4M3FN, ["m"]),
    ]
    outputs = [tensor("y", TensorProto.FLOAT8E4M3FN, ["n"]), tensor("z", TensorProto.FLOAT, ["m"])]
    return save_model(file, nodes, inputs, outputs, opsets=(("", 19),))


def scale_model(file: Path) -> Path:
    """`y` is `x` times `factor`, an initialiser that callers may override."""
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y"])]
    factor = helper.make_tensor("factor", TensorProto.FLOAT, [1], [3.0])
    inputs = [tensor("x", TensorProto.FLOAT, ["n", 2]), tensor("factor", TensorProto.FLOAT, [1])]
    outputs = [tensor("y", TensorProto.FLOAT, ["n", 2])]
    return save_model(file, nodes, inputs, outputs, [factor])


def flushed_scale_model(file: Path) -> Path:
    """As `scale_model`, of the shape [2, 8] and without negative numbers."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Mul", ["r", "factor"], ["y"]),
    ]
    factor = helper.make_tensor("factor", TensorProto.FLOAT, [1], [3.0])
    x, y = (tensor(name, TensorProto.FLOAT, [2, 8]) for name in "xy")
    inputs = [x, tensor("factor", TensorProto.FLOAT, [1])]
    return save_model(file, nodes, inputs, [y], [factor])


def square_model(file: Path) -> Path:
    """`y` is `x` times itself."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    values = [tensor(name, TensorProto.FLOAT, ["n", 2]) for name in "xy"]
    return save_model(file, nodes, values[:1], values[1:])
