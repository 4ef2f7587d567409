"""Traits of a graph's borders, names and stamps."""

from onnx import TensorProto
from onnx.helper import make_node as node

from tests.support.valid_models.builders import model, trait, value, weight


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
