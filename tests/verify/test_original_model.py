"""The reference of a file in bfloat16, which ONNX Runtime does not compute on a CPU."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.verify.original_model import Original


@pytest.fixture
def model(tmp_path):
    """Make a file in bfloat16 of one operator with an output of some type."""

    def make(op, output):
        graph = helper.make_graph(
            [helper.make_node(op, ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [1, 4])],
            [helper.make_tensor_value_info("y", output, None)],
        )
        file = tmp_path / f"{op}.onnx"
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10),
            file,
        )
        return file

    return make


@pytest.mark.parametrize(
    ("op", "output", "expected"),
    [
        ("Neg", TensorProto.BFLOAT16, np.array([[-1, -3, -2, 0]], ml_dtypes.bfloat16)),
        ("ArgMax", TensorProto.INT64, np.array([[0, 0, 0, 0]])),
    ],
)
def test_a_bfloat16_file_runs_in_float32(model, op, output, expected):
    x = np.array([[1, 3, 2, 0]], ml_dtypes.bfloat16)
    (output_array,) = Original(model(op, output), {"bfloat16"}).run(["y"], {"x": x})
    assert output_array.dtype == expected.dtype
    np.testing.assert_array_equal(output_array, expected)
