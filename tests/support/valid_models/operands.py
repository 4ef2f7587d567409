"""Traits of operands: omitted, sparse, of every type, empty."""

import numpy as np
from onnx import TensorProto, helper
from onnx.helper import make_node as node

from tests.support.valid_models.builders import model, trait, value, weight


@trait
def omitted_operands():
    nodes = [node("Clip", ["x", "", "high"], ["c"]), node("Resize", ["c", "", "scales"], ["y"])]
    weights = [weight("high", 0.5), weight("scales", [1, 2])]
    return model(nodes, ["y"], weights=weights)


@trait
def omitted_outputs():
    nodes = [node("GRU", ["x", "w", "r"], ["", "y"], hidden_size=2)]
    weights = [weight("w", np.ones((1, 6, 3))), weight("r", np.ones((1, 6, 2)))]
    return model(nodes, ["y"], inputs=[value("x", shape=(4, 1, 3))], weights=weights)


@trait
def sparse_initializer():
    document = model([node("Add", ["x", "w"], ["y"])], ["y"])
    values, places = weight("w", [5, 7]), weight("w_places", [1, 5], np.int64)
    document.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    return document


@trait
def sparse_constant():
    values, places = weight("values", [5, 7]), weight("places", [1, 5], np.int64)
    sparse = helper.make_sparse_tensor(values, places, [2, 3])
    return model(
        [node("Constant", [], ["w"], sparse_value=sparse), node("Add", ["x", "w"], ["y"])], ["y"]
    )


@trait
def constants_of_every_kind():
    kinds = {
        "value_float": 2.0, "value_floats": [1.0, 2.0, 3.0], "value_int": 4,
        "value_ints": [1, 2, 3], "value": weight("", [[1], [2]]),
    }  # fmt: skip
    nodes, last = [], "x"
    for number, (name, content) in enumerate(kinds.items()):
        nodes.append(node("Constant", [], [f"c{number}"], **{name: content}))
        nodes.append(node("Cast", [f"c{number}"], [f"f{number}"], to=TensorProto.FLOAT))
        nodes.append(node("Add", [last, f"f{number}"], [f"s{number}"]))
        last = f"s{number}"
    return model(nodes, [last])


@trait
def equal_initializers():
    weights = [weight(name, [1, 2, 3]) for name in "abc"]
    nodes = [node("Add", ["x", "a"], ["p"]), node("Mul", ["p", "b"], ["q"])]
    return model([*nodes, node("Sub", ["q", "c"], ["y"])], ["y"], weights=weights)


@trait
def scalars():
    nodes = [node("Mul", ["x", "two"], ["m"]), node("ReduceSum", ["m"], ["y"], keepdims=0)]
    return model(nodes, ["y"], inputs=[value("x", shape=())], weights=[weight("two", 2)])


@trait
def huge_integers():
    nodes = [node("Add", ["x", "large"], ["s"]), node("Max", ["s", "small"], ["y"])]
    bounds = np.iinfo(np.int64)
    weights = [
        weight("large", [bounds.max - 10], np.int64),
        weight("small", [bounds.min], np.int64),
    ]
    return model(nodes, ["y"], inputs=[value("x", TensorProto.INT64)], weights=weights)


@trait
def unsigned_integers():
    nodes = [node("Mul", ["x", "w"], ["m"]), node("Cast", ["m"], ["y"], to=TensorProto.FLOAT)]
    inputs = [value("x", TensorProto.UINT64)]
    return model(nodes, ["y", "m"], inputs=inputs, weights=[weight("w", [1 << 63], np.uint64)])


@trait
def four_bit_weights():
    packed = helper.make_tensor("w", TensorProto.UINT4, [2, 3], [1, 15, 3, 4, 5, 6])
    nodes = [node("DequantizeLinear", ["w", "scale"], ["d"]), node("Add", ["x", "d"], ["y"])]
    return model(nodes, ["y"], weights=[packed, weight("scale", 0.5)], opsets={"": 21})


@trait
def bfloat16_inside():
    nodes = [
        node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    return model(nodes, ["y"])


@trait
def strings_inside():
    nodes = [
        node("Cast", ["x"], ["s"], to=TensorProto.STRING),
        node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    return model(nodes, ["y"])


@trait
def sequence_inside():
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=1),
        node("SequenceAt", ["s", "first"], ["y"]),
    ]
    return model(nodes, ["y"], weights=[weight("first", 1, np.int64)])


@trait
def empty_input():
    nodes = [node("Concat", ["x", "w"], ["c"], axis=0), node("Relu", ["c"], ["y"])]
    inputs = [value("x", shape=(0, 3))]
    return model(nodes, ["y"], inputs=inputs, weights=[weight("w", [[1, -2, 3]])])


@trait
def empty_result():
    nodes = [node("Slice", ["x", "begin", "end"], ["s"]), node("Relu", ["s"], ["y"])]
    weights = [weight("begin", [1], np.int64), weight("end", [1], np.int64)]
    return model(nodes, ["y"], weights=weights)


@trait
def reduction_of_an_empty_axis():
    nodes = [node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    weights = [weight("axes", [0], np.int64)]
    return model(nodes, ["y"], inputs=[value("x", shape=(0, 3))], weights=weights)


@trait
def negative_axes():
    nodes = [
        node("Softmax", ["x"], ["s"], axis=-2),
        node("Concat", ["s", "x"], ["c"], axis=-1),
        node("ReduceMean", ["c"], ["m"], axes=[-1, -2], keepdims=1),
        node("Flatten", ["m"], ["f"], axis=-1),
        node("Gather", ["f", "places"], ["y"], axis=-1),
    ]
    weights = [weight("places", [-1, 0], np.int64)]
    return model(nodes, ["y"], weights=weights, opsets={"": 17})


@trait
def reduction_without_axes():
    nodes = [
        node("ReduceSum", ["x", "axes"], ["y"], noop_with_empty_axes=1),
        node("ReduceSum", ["x", "axes"], ["z"]),
    ]
    return model(nodes, ["y", "z"], weights=[weight("axes", [], np.int64)])
