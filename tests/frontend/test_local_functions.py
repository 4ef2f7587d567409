"""Local functions: expanded at import, so that equal calls have equal regions, measured once."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.helper import make_node as node

from collage.frontend.importer import import_model
from collage.frontend.inputs import random_inputs, reference_values
from collage.frontend.region import region_digest
from tests.frontend.build import imported

OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]

LAYERS = """
<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
main (float[2,8] x) => (float[2,8] y)
<float[8,8] first, float[8,8] second, float[8,8] third>
{
    a = local.layer (x, first)
    b = local.layer (a, second)
    y = local.layer (b, third)
}
<domain: "local", opset_import: ["" : 18]>
layer (state, weight) => (next) {
    product = MatMul (state, weight)
    active = Tanh (product)
    next = Add (active, state)
}
"""

CASES = {
    "body_of_if": (
        """
        main (float[4] x, bool c) => (float[4] y, float[4] z)
        { y = local.choose (x, c)  z = local.choose (y, c) }
        """,
        """
        choose (value, flag) => (result) {
            twice = Add (value, value)
            result = If (flag) <
                then_branch = yes () => (r1) { r1 = Tanh (twice) },
                else_branch = no () => (r2) { r2 = Sub (twice, value) }
            >
        }
        """,
        ["Add", "If", "Add", "If"],
    ),
    "body_of_loop": (
        """
        main (float[4] x) => (float[4] y) { a = local.repeat (x)  y = local.repeat (a) }
        """,
        """
        repeat (value) => (result) {
            turns = Constant <value = int64 {3}> ()
            go = Constant <value = bool {1}> ()
            result = Loop (turns, go, value) <body = turn (int64 i, bool going, float[4] state)
                => (bool next_going, float[4] next) {
                    next_going = Identity (going)
                    half = Tanh (state)
                    next = Add (half, value)
                }>
        }
        """,
        ["Loop", "Loop"],
    ),
    "attributes": (
        """
        main (float[3,4] x) => (float[3,4] y, float[3,4] z)
        { y = local.leak <slope = 0.5, along = 0> (x)  z = local.leak (y) }
        """,
        """
        leak <slope: float = 0.25, along: int = 1> (value) => (result) {
            a = LeakyRelu <alpha: float = @slope> (value)
            result = Softmax <axis: int = @along> (a)
        }
        """,
        ["LeakyRelu", "Softmax", "LeakyRelu", "Softmax"],
    ),
    "attributes_in_bodies": (
        """
        main (float[3,4] x, bool c) => (float[3,4] y, float[3,4] z)
        { y = local.outer <slope = 0.5> (x, c)  z = local.outer <slope = 0.125> (y, c) }
        """,
        """
        outer <slope> (value, flag) => (result) { result = local.leak <slope: float = @slope> (value, flag) }
        <domain: "local", opset_import: ["" : 18]>
        leak <slope> (value, flag) => (result) {
            result = If (flag) <
                then_branch = yes () => (r1) { r1 = LeakyRelu <alpha: float = @slope> (value) },
                else_branch = no () => (r2) { r2 = Elu <alpha: float = @slope> (value) }
            >
        }
        """,
        ["If", "If"],
    ),
    "nested_calls": (
        """
        main (float[4] x) => (float[4] y) { a = local.outer (x)  y = local.outer (a) }
        """,
        """
        outer (value) => (result) { a = local.inner (value)  result = local.inner (a) }
        <domain: "local", opset_import: ["" : 18]>
        inner (value) => (result) { a = Tanh (value)  result = Add (a, value) }
        """,
        4 * ["Tanh", "Add"],
    ),
    "different_types": (
        """
        main (float[4] x, double[2,3] w, int32[5] n) => (float[4] y, double[2,3] z, int32[5] m)
        { y = local.twice (x)  z = local.twice (w)  m = local.twice (n) }
        """,
        """
        twice (value) => (result) { a = Abs (value)  result = Add (a, value) }
        """,
        3 * ["Abs", "Add"],
    ),
    "parts_left_out": (
        """
        main (float[4] x) => (float[4] y, float[4] z)
        { y, unused = local.clip (x)  z, other = local.clip (y) }
        """,
        """
        clip (value, low, high) => (result, other) {
            result = Clip (value, low, high)
            other = Neg (result)
        }
        """,
        ["Clip", "Clip"],
    ),
}  # fmt: skip


def parsed(text):
    """Return the model of a text, with random values for the weights that it declares."""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        weight = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, value.name))
    del model.graph.value_info[:]
    return model


def check(model, folder):
    """Import the model, and compare with the original in ONNX Runtime; return the function."""
    function = imported(model, folder)
    inputs = random_inputs(function, 0)
    values = reference_values(function, inputs)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    for name, expected in zip(names, session.run(names, inputs), strict=True):
        np.testing.assert_allclose(values[name], expected, rtol=1e-5, atol=1e-6)
    return function


def ops(function):
    return [node.op for node in function.graph.nodes]


@pytest.mark.parametrize("name", CASES)
def test_calls_are_expanded(name, tmp_path):
    graph, functions, expanded = CASES[name]
    model = parsed(f"""
        <ir_version: 10, opset_import: ["" : 18, "local" : 1]> {graph}
        <domain: "local", opset_import: ["" : 18, "local" : 1]> {functions}
    """)
    assert ops(check(model, tmp_path)) == expanded


def overloaded():
    """Return a model with two functions of one name that differ by their overload."""
    functions = [
        helper.make_function("local", "f", ["a"], ["b"], [node(op, ["a"], ["b"])], OPSETS[:1])
        for op in ("Tanh", "Neg")
    ]
    calls = [node("f", [read], [written], domain="local") for read, written in ("xv", "vy")]
    for number, (function, call) in enumerate(zip(functions, calls, strict=True)):
        function.overload = call.overload = f"form{number}"
    x, y = (helper.make_tensor_value_info(name, 1, (4,)) for name in "xy")
    graph = helper.make_graph(calls, "g", [x], [y])
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=10)


def test_an_overload_chooses_the_function(tmp_path):
    assert ops(check(overloaded(), tmp_path)) == ["Tanh", "Neg"]


def test_another_operator_set_is_read_as_onnx_runtime_does(tmp_path):
    """ONNX Runtime takes the model's operator set for the bodies of functions too."""
    model = parsed("""
        <ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        main (float[3,4,5] x) => (float[3,4,5] y) { a = local.f (x)  y = local.f (a) }
        <domain: "local", opset_import: ["" : 12]>
        f (value) => (result) { a = Tanh (value)  result = Softmax <axis = 1> (a) }
    """)
    assert ops(check(model, tmp_path)) == ["Tanh", "Softmax", "Tanh", "Softmax"]


def test_calls_of_one_function_have_one_digest(tmp_path):
    onnx.save(parsed(LAYERS), tmp_path / "model.onnx")
    (function,) = import_model(tmp_path / "model.onnx", work_dir=tmp_path).functions
    assert ops(function) == 3 * ["MatMul", "Tanh", "Add"]
    calls = [0b111 << 3 * call for call in range(3)]
    assert len({region_digest(function, call) for call in calls}) == 1
    assert region_digest(function, 0b11) == region_digest(function, 0b11 << 3)
