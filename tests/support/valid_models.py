"""Tiny valid models with traits that importers of other systems have refused, each with its own builder.

A builder returns a model whose inputs have static shapes. Every model runs in ONNX Runtime.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

Builder = Callable[[], onnx.ModelProto]
BUILDERS: dict[str, Builder] = {}


def trait(builder: Builder) -> Builder:
    """Register a builder under its own name."""
    BUILDERS[builder.__name__] = builder
    return builder


def value(name: str, dtype: int = TensorProto.FLOAT, shape: Sequence[int] | None = (2, 3)):
    return helper.make_tensor_value_info(name, dtype, shape)


def untyped(*names: str) -> list[onnx.ValueInfoProto]:
    return [onnx.ValueInfoProto(name=name) for name in names]


def weight(name: str, array: object, dtype: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def model(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str],
    *,
    inputs: Sequence[onnx.ValueInfoProto] = (),
    weights: Sequence[TensorProto] = (),
    opsets: Mapping[str, int] | None = None,
    ir_version: int = 10,
) -> onnx.ModelProto:
    """Make a model, by default of one input `x`: float32[2, 3]."""
    graph = helper.make_graph(
        nodes, "valid", list(inputs or [value("x")]), untyped(*outputs), list(weights)
    )
    imports = [helper.make_opsetid(*item) for item in (opsets or {"": 18}).items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


# Borders of the graph.


@trait
def input_is_output():
    return model([node("Relu", ["x"], ["y"])], ["y", "x"])


@trait
def only_input_is_output():
    return model([], ["x"])


@trait
def initializer_is_output():
    return model([node("Relu", ["x"], ["y"])], ["w", "y"], weights=[weight("w", [1, 2])])


@trait
def constant_is_output():
    constant = node("Constant", [], ["c"], value_ints=[3, 4])
    return model([constant, node("Relu", ["x"], ["y"])], ["c", "y"])


@trait
def folded_value_is_output():
    nodes = [node("Add", ["w", "w"], ["f"]), node("Mul", ["x", "f"], ["y"])]
    return model(nodes, ["f", "y"], weights=[weight("w", [1, 2, 3])])


@trait
def no_inputs():
    nodes = [node("Add", ["w", "w"], ["f"]), node("Neg", ["f"], ["y"])]
    document = model(nodes, ["y"], weights=[weight("w", [1, 2, 3])])
    del document.graph.input[:]
    return document


@trait
def unused_input():
    return model([node("Relu", ["x"], ["y"])], ["y"], inputs=[value("x"), value("unused")])


@trait
def identity_chain_to_outputs():
    nodes = [node("Relu", ["x"], ["r"])]
    nodes += [node("Identity", [source], [target]) for source, target in ("ra", "ab", "bc", "xd")]
    return model(nodes, ["a", "c", "d"])


@trait
def identity_of_an_initializer():
    nodes = [node("Identity", ["w"], ["y"]), node("Add", ["x", "w"], ["z"])]
    return model(nodes, ["y", "z"], weights=[weight("w", [1, 2, 3])])


@trait
def output_is_read_by_a_node():
    return model([node("Relu", ["x"], ["y"]), node("Exp", ["y"], ["z"])], ["y", "z"])


@trait
def cast_of_the_input():
    nodes = [node("Cast", ["x"], ["y"], to=TensorProto.INT32)]
    return model(nodes, ["y", "x"])


@trait
def dead_nodes():
    nodes = [node("Exp", ["x"], ["dead"]), node("Relu", ["x"], ["y"]), node("Neg", ["dead"], ["d"])]
    return model(nodes, ["y"])


@trait
def wrong_declared_output():
    document = model([node("Relu", ["x"], ["y"])], ["y"])
    document.graph.output[0].CopyFrom(value("y", shape=("batch", 7)))
    return document


@trait
def wrong_value_info():
    document = model([node("Relu", ["x"], ["r"]), node("Exp", ["r"], ["y"])], ["y"])
    document.graph.value_info.append(value("r", shape=(5, 5)))
    return document


# Names and stamps.


@trait
def odd_names():
    nodes = [node("Relu", ["x"], ["größe/√:0"]), node("Exp", ["größe/√:0"], ["a b\n\"c'"])]
    return model(nodes, ["a b\n\"c'"])


@trait
def names_like_generated_ones():
    nodes = [
        node("Relu", ["x"], ["v0"]),
        node("Exp", ["v0"], ["r0"]),
        node("Neg", ["r0"], ["main"]),
    ]
    return model(nodes, ["main"])


@trait
def unsorted_nodes():
    return model([node("Exp", ["a"], ["y"]), node("Relu", ["x"], ["a"])], ["y"])


@trait
def odd_metadata():
    document = model([node("Relu", ["x"], ["y"])], ["y"])
    document.metadata_props.add(key="collage.kinds", value="[1, 2, 3]")
    document.metadata_props.add(key="ü\n\t", value='{"a": "\u2028"}')
    document.doc_string = "\x07" * 10
    return document


@trait
def ir_version_3():
    document = model([node("Add", ["x", "w"], ["y"])], ["y"], weights=[weight("w", [1, 2, 3])])
    document.ir_version = 3
    document.opset_import[0].version = 8
    document.graph.input.append(value("w", shape=(3,)))
    return document


@trait
def opset_7():
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"])]
    nodes += [node("Upsample", ["n"], ["y"], mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])]
    channels = [weight(name, [1, 2]) for name in "sbmv"]
    inputs = [value("x", shape=(1, 2, 3, 3))]
    return model(nodes, ["y"], inputs=inputs, weights=channels, opsets={"": 7}, ir_version=3)


@trait
def both_names_of_the_standard_domain():
    nodes = [node("Relu", ["x"], ["a"], domain="ai.onnx"), node("Exp", ["a"], ["y"])]
    return model(nodes, ["y"], opsets={"": 17, "ai.onnx": 17})


@trait
def mixed_domains():
    nodes = [node("Gelu", ["x"], ["g"], domain="com.microsoft"), node("Relu", ["g"], ["r"])]
    nodes.append(
        node("Scaler", ["r"], ["y"], domain="ai.onnx.ml", offset=[1.0] * 3, scale=[2.0] * 3)
    )
    return model(nodes, ["y"], opsets={"": 18, "com.microsoft": 1, "ai.onnx.ml": 3})


@trait
def unused_opset_import():
    return model([node("Relu", ["x"], ["y"])], ["y"], opsets={"": 18, "nobody.has.this": 7})


# Operands.


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


# Empty tensors and axes.


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


# Bodies and functions.


def _body(nodes: Sequence[NodeProto], output: str, weights: Sequence[TensorProto] = ()):
    return helper.make_graph(nodes, "body", [], untyped(output), list(weights))


def _branch(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.ModelProto:
    inputs = [value("x"), value("flag", TensorProto.BOOL, ())]
    branch = node("If", ["flag"], ["y"], then_branch=then, else_branch=otherwise)
    return model([branch], ["y"], inputs=inputs, weights=[weight("w", [1, 2, 3])])


@trait
def branch_is_output():
    return _branch(
        _body([node("Relu", ["x"], ["a"])], "a"), _body([node("Exp", ["x"], ["b"])], "b")
    )


@trait
def initializer_only_in_a_body():
    return _branch(
        _body([node("Add", ["x", "w"], ["a"])], "a"),
        _body([node("Mul", ["x", "own"], ["b"])], "b", [weight("own", [4, 5, 6])]),
    )


@trait
def body_hides_an_outer_name():
    then = _body([node("Relu", ["x"], ["inner"])], "inner")
    otherwise = _body([node("Add", ["x", "w"], ["b"])], "b", [weight("w", [7, 8, 9])])
    return _branch(then, otherwise)


@trait
def function_with_an_attribute():
    scaled = helper.make_function(
        "local", "scaled", ["a"], ["b"],
        [_with_reference("LeakyRelu", ["a"], ["b"], "alpha", "slope")],
        [helper.make_opsetid("", 18)], attributes=["slope"],
    )  # fmt: skip
    nodes = [node("scaled", ["x"], ["m"], domain="local", slope=0.3)]
    nodes.append(node("scaled", ["m"], ["y"], domain="local", slope=0.5))
    document = model(nodes, ["y"], opsets={"": 18, "local": 1})
    document.functions.append(scaled)
    return document


def _with_reference(
    op: str, inputs: Sequence[str], outputs: Sequence[str], name: str, source: str
) -> NodeProto:
    proto = node(op, inputs, outputs)
    proto.attribute.append(
        AttributeProto(name=name, ref_attr_name=source, type=AttributeProto.FLOAT)
    )
    return proto
