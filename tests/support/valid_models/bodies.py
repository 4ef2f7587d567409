"""Traits of bodies of control flow and of local functions."""

from collections.abc import Sequence

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper
from onnx.helper import make_node as node

from tests.support.valid_models.builders import model, trait, untyped, value, weight


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
