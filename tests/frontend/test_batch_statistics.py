"""BatchNormalization in training mode is plain arithmetic after import, with ONNX Runtime's numbers."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.helper import make_node as node

from collage.frontend.batch_statistics import lower_batch_statistics
from collage.frontend.load import read_model
from collage.frontend.original_file import original_bytes
from collage.frontend.training_mode import lowered_model
from collage.verify.original_model import Original
from tests.frontend.build import floats, model, save

CHANNELS = 3


def training(opset=18, outputs=("y", "mean", "variance"), shape=(2, CHANNELS, 4, 5), **attributes):
    normalise = node(
        "BatchNormalization",
        ["x", "scale", "bias", "mean_before", "variance_before"],
        ["y", "mean", "variance"],
        training_mode=1,
        **attributes,
    )
    weights = {
        "scale": floats(CHANNELS, seed=1),
        "bias": floats(CHANNELS, seed=2),
        "mean_before": floats(CHANNELS, seed=3),
        "variance_before": np.full(CHANNELS, 2, np.float32),
    }
    return model([normalise], {"x": ("float32", shape)}, list(outputs), weights, opset)


def results(document, values):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(document.SerializeToString(), options)
    return session.run(None, {"x": values})


@pytest.mark.parametrize("opset", [14, 15, 17, 18, 21])
@pytest.mark.parametrize("shape", [(4, CHANNELS), (2, CHANNELS, 6), (2, CHANNELS, 4, 5)])
def test_the_arithmetic_has_the_same_numbers(opset, shape):
    document = training(opset, shape=shape, epsilon=1e-2, momentum=0.7)
    values = floats(*shape, seed=4)
    expected = results(document, values)
    assert lower_batch_statistics(document)
    assert "BatchNormalization" not in {proto.op_type for proto in document.graph.node}
    for actual, reference in zip(results(document, values), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-5, atol=1e-5)


def test_inference_mode_stays():
    document = training()
    normalise = document.graph.node[0]
    normalise.attribute[0].i = 0
    del normalise.output[1:], document.graph.output[1:]
    assert not lower_batch_statistics(document)
    assert [proto.op_type for proto in document.graph.node] == ["BatchNormalization"]


def test_bodies_and_functions_are_lowered_too(tmp_path):
    document = training(outputs=("y",))
    body = helper.make_graph(document.graph.node, "body", [], [onnx.ValueInfoProto(name="y")])
    branch = node("If", ["condition"], ["y"], then_branch=body, else_branch=body)
    del document.graph.node[:]
    document.graph.node.append(branch)
    document.graph.input.append(
        helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, [])
    )
    function = helper.make_function(
        "local", "normal", ["x", "s", "b", "m", "v"], ["y"],
        [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "n", "o"], training_mode=1)],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    called = training(outputs=("y",))
    called.functions.append(function)
    called.opset_import.append(helper.make_opsetid("local", 1))
    called.graph.node[0].CopyFrom(
        node("normal", list(called.graph.node[0].input), ["y"], domain="local")
    )
    for name, traits in (("branch", document), ("function", called)):
        folder = tmp_path / name
        folder.mkdir()
        path = save(traits, folder)
        lowered = lowered_model(path)
        assert lowered is not None
        assert b"training_mode" not in lowered.SerializeToString()
        assert b"training_mode" not in original_bytes(path)
        assert b"training_mode" not in read_model(path)[0].SerializeToString()


def test_the_original_keeps_no_state_between_runs(tmp_path):
    document = training(outputs=("y",))
    for tensor in document.graph.initializer:  # ONNX Runtime shares equal ones
        equal = np.full(CHANNELS, tensor.name in ("scale", "variance_before"), np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(equal, tensor.name))
    values = floats(2, CHANNELS, 4, 5, seed=4)
    expected = results(document, values)
    original = Original(save(document, tmp_path), frozenset({"float32"}))
    for _ in range(3):
        (actual,) = original.run(["y"], {"x": values})
        np.testing.assert_allclose(actual, expected[0], rtol=1e-4, atol=1e-4)
