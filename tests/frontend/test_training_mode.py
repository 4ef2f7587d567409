"""Operators in training mode keep their meaning in files that ONNX Runtime optimises."""

import numpy as np
import onnxruntime
import pytest
from onnx.helper import make_node as node

from collage.frontend.original_file import original_bytes
from collage.frontend.training_mode import lowered_model
from collage.verify.original_model import Original
from tests.frontend.build import model, save

X = np.ones((8, 32), np.float32)


def dropout(folder, opset, *, training=True):
    """Save a model whose Dropout keeps about 70 % of the elements."""
    weights = {"ratio": np.array(0.3, np.float32), "on": np.array(training)}
    nodes = [node("Dropout", ["x", "ratio", "on"], ["h"]), node("Relu", ["h"], ["y"])]
    document = model(nodes, {"x": ("float32", X.shape)}, ["y"], weights, opset=opset)
    document.ir_version = 8
    return save(document, folder)


@pytest.mark.parametrize("opset", [12, 13, 18])
def test_dropout_draws_in_an_optimised_session(opset, tmp_path):
    content = original_bytes(dropout(tmp_path, opset))
    session = onnxruntime.InferenceSession(content)
    first, second = (session.run(None, {"x": X})[0] for _ in range(2))
    assert (first != second).any()
    assert set(np.unique(first.round(3))) == {np.float32(0), np.float32(1 / 0.7).round(3)}
    assert 0.5 < (first > 0).mean() < 0.9


def test_dropout_draws_in_the_reference(tmp_path):
    original = Original(dropout(tmp_path, 18), frozenset({"float32"}))
    first, second = (original.run(["y"], {"x": X})[0] for _ in range(2))
    assert (first != second).any()


def test_dropout_in_inference_mode_stays(tmp_path):
    file = dropout(tmp_path, 18, training=False)
    assert lowered_model(file) is None
    assert original_bytes(file) == file.read_bytes()
