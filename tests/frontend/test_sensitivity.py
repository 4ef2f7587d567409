"""What errors inside a function are at its outputs."""

import numpy as np
import pytest
from onnx import helper

from collage.frontend.inputs import random_inputs
from collage.frontend.sensitivity import MAX_GAIN, Sensitivity
from tests.frontend.build import imported, model


def sensitivity(nodes, outputs, tmp_path, seconds=60.0, weights=None):
    function = imported(model(nodes, {"x": ("float32", (64, 64))}, outputs, weights), tmp_path)
    return function, Sensitivity(function, random_inputs(function, 0), 0.005, seconds)


def test_a_residual_sum_damps_errors_and_an_output_keeps_them(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["small"]),
        helper.make_node("MatMul", ["x", "x"], ["large"]),
        helper.make_node("Add", ["small", "large"], ["y"]),
    ]
    function, gains = sensitivity(nodes, ["y"], tmp_path)
    assert gains.of("y") == 1.0
    assert gains.of("large") == pytest.approx(1.0, abs=0.2)
    assert 0 < gains.of("small") < 0.5
    places = {value: node.index for node in function.graph.nodes for value in node.outputs}
    assert gains.of_region(1 << places["small"]) == gains.of("small")
    both_nodes = 1 << places["small"] | 1 << places["large"]
    assert gains.of_region(both_nodes) == gains.of("large")  # the worse of two


def test_a_softmax_of_large_logits_makes_them_larger(tmp_path):
    scale = np.float32([100.0])
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"], axis=-1),
    ]
    _, gains = sensitivity(nodes, ["y"], tmp_path, weights={"scale": scale})
    assert gains.of("logits") > 2


def test_integers_that_change_are_no_infinity(tmp_path):
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("ArgMax", ["a"], ["token"], axis=1, keepdims=0),
    ]
    _, gains = sensitivity(nodes, ["token"], tmp_path)
    assert gains.of("a") <= MAX_GAIN


def test_when_time_is_up_the_nearest_value_counts(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("MatMul", ["a", "a"], ["y"])]
    _, gains = sensitivity(nodes, ["y"], tmp_path, seconds=0.0)
    assert gains.of("a") == 1.0
    assert gains.of("y") == 1.0
