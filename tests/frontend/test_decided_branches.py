"""Branches for other shapes: a model that ONNX Runtime refuses with static shapes is imported."""

import numpy as np
import onnx
import pytest

from collage.errors import ModelError
from collage.frontend import import_model
from collage.frontend.inputs import random_inputs, reference_values
from collage.frontend.onnx_proto import all_nodes
from collage.frontend.onnxruntime_session import session
from tests.frontend.build import save

CHECK = """
            dims_N = Shape (VALUE)
            two_N = Constant <value_int = 2> ()
            one_N = Constant <value_int = 1> ()
            width_N = Gather <axis = 0> (dims_N, two_N)
            is_one_N = Equal (width_N, one_N)
            axes_N = Constant <value_ints = [2]> ()
            RESULT = If (is_one_N) <
                then_branch = squeezed_N () => (s) { s = Squeeze (VALUE, axes_N) },
                else_branch = kept_N () => (k) {
                    z = Neg (VALUE)
                    k = ReduceSum <keepdims = 0> (z, axes_N) }>
"""
"""As exporters write a squeeze of a dynamic dimension: with four columns, the first branch is invalid."""


def check(value: str, result: str, suffix: str = "_1") -> str:
    return CHECK.replace("VALUE", value).replace("RESULT", result).replace("_N", suffix)


HEAD = '<ir_version: 9, opset_import: ["" : 17]>\n'
TOP = f"""{HEAD} main (float[n,c,h] x) => (float[a,b] y) {{ {check("x", "z")} y = Relu (z) }}"""
TWICE = f"""{HEAD} main (float[n,c,h] x) => (float[a,b] y)
{{ {check("x", "r")} axes = Constant <value_ints = [2]> () t = Unsqueeze (r, axes)
   u = Concat <axis = 2> (t, x) {check("u", "z", "_2")} y = Relu (z) }}"""
INNER = f"""{HEAD} main (float[n,c,h] x, bool flag) => (float[a,b] y) {{
    y = If (flag) <
        then_branch = outer () => (float[p,q] o) {{ {check("x", "r")} o = Relu (r) }},
        else_branch = other () => (float[p,q] m) {{ m = ReduceMax <axes = [2], keepdims = 0> (x) }}>
}}"""
CAPTURED = f"""{HEAD} main (float[n,c,h] x, bool flag) => (float[a,b] y) {{
    z = Abs (x)
    dims = Shape (x) two = Constant <value_int = 2> () one = Constant <value_int = 1> ()
    width = Gather <axis = 0> (dims, two) is_one = Equal (width, one)
    axis = Constant <value_ints = [2]> ()
    y = If (is_one) <
        then_branch = squeezed () => (s) {{ s = Squeeze (x, axis) }},
        else_branch = kept () => (k) {{
            n = Neg (z)
            k = If (flag) <
                then_branch = yes () => (a) {{ a = ReduceSum <keepdims = 0> (n, axis) }},
                else_branch = no () => (b) {{ b = ReduceMax <axes = [2], keepdims = 0> (z) }}> }}>
}}"""
"""The branch that stays has a body, which reads its values and the outer ones."""


@pytest.mark.parametrize("text", [TOP, TWICE, INNER, CAPTURED])
@pytest.mark.parametrize("columns", [1, 4])
def test_a_branch_for_other_shapes_goes(text, columns, tmp_path):
    path = save(onnx.parser.parse_model(text), tmp_path)
    model = import_model(path, shapes=[{"x": (2, 3, columns)}], work_dir=tmp_path)
    function = model.functions[0]
    assert "Squeeze" not in {node.op for node in function.graph.nodes} or columns == 1
    original = session(path)
    for flag in (False, True):
        inputs = random_inputs(function, 0)
        inputs |= {"flag": np.array(flag)} if "flag" in inputs else {}
        values = reference_values(function, inputs)
        (expected,) = original.run(["y"], inputs)
        np.testing.assert_allclose(values["y"], expected, rtol=1e-5)


def test_a_branch_that_data_choose_stays(tmp_path):
    text = TOP.replace("width_1 = Gather", "ignored = Gather").replace(
        "is_one_1 = Equal (width_1, one_1)",
        "total = ReduceSum <keepdims = 0> (x) limit = Constant <value_float = 0.0> ()"
        " is_one_1 = Greater (total, limit)",
    )
    path = save(onnx.parser.parse_model(text), tmp_path)
    assert any(node.op_type == "If" for node in all_nodes(onnx.load(path)))
    with pytest.raises(ModelError, match="does not load the model with these shapes"):
        import_model(path, shapes=[{"x": (2, 3, 4)}], work_dir=tmp_path)
