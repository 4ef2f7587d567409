"""The reference of a model with casts to bfloat16 rounds where the model does."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node as node

from collage.frontend.float16 import widened
from collage.frontend.inputs import reference_values
from collage.verify.original_model import Original
from tests.frontend.build import floats, imported, model, save

X = floats(4, 8)
ROUNDED = X.astype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)).astype(np.float32)


@pytest.fixture
def rounding():
    """`y` is `x` rounded to bfloat16, times 3."""
    nodes = [
        node("Cast", ["x"], ["short"], to=TensorProto.BFLOAT16),
        node("Cast", ["short"], ["wide"], to=TensorProto.FLOAT),
        node("Mul", ["wide", "three"], ["y"]),
    ]
    return model(nodes, {"x": ("float32", X.shape)}, ["y"], {"three": np.array(3, np.float32)})


def test_values_of_the_function_are_rounded(rounding, tmp_path):
    function = imported(rounding, tmp_path)
    values = reference_values(function, {"x": X})
    wide = next(each.outputs[0] for each in function.graph.nodes if each.outputs[0] == "wide")
    np.testing.assert_array_equal(values[wide], ROUNDED)
    np.testing.assert_array_equal(values["y"], 3 * ROUNDED)


def test_outputs_of_the_original_are_rounded(rounding, tmp_path):
    original = Original(save(rounding, tmp_path), frozenset({"bfloat16", "float32"}))
    np.testing.assert_array_equal(original.run(["y"], {"x": X})[0], 3 * ROUNDED)


def test_casts_in_bodies_round_too():
    def branch(factor):
        nodes = [
            node("Cast", ["x"], [f"short{factor}"], to=TensorProto.BFLOAT16),
            node("Cast", [f"short{factor}"], [f"wide{factor}"], to=TensorProto.FLOAT),
        ]
        output = helper.make_tensor_value_info(f"wide{factor}", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, "branch", [], [output])

    document = model(
        [node("If", ["flag"], ["y"], then_branch=branch(1), else_branch=branch(2))],
        {"flag": ("bool", ()), "x": ("float32", X.shape)},
        ["y"],
    )
    wide = widened(document)
    session = onnxruntime.InferenceSession(wide.SerializeToString())
    (y,) = session.run(None, {"flag": np.array(True), "x": X})
    np.testing.assert_array_equal(y, ROUNDED)
