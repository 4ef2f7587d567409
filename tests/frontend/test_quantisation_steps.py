"""Quantisation steps are those that the graph states."""

import numpy as np
import pytest
from onnx.helper import make_node as node

from collage.frontend.quantisation_steps import output_steps
from tests.frontend.build import imported, model


def quantised(folder, scale, **attributes):
    """Import Q, DQ of `x` with a scale; `shown` are the small integers."""
    scale = np.asarray(scale, np.float32)
    zero = np.zeros(scale.shape, np.int8)
    return imported(
        model(
            [
                node("QuantizeLinear", ["x", "scale", "zero"], ["shown"], **attributes),
                node("DequantizeLinear", ["shown", "scale", "zero"], ["y"], **attributes),
                node("Relu", ["y"], ["r"]),
            ],
            {"x": ("float32", (2, 3, 4))},
            ["shown", "y", "r"],
            {"scale": scale, "zero": zero},
        ),
        folder,
    )


def steps_of(function, nodes=None):
    graph = function.graph
    return output_steps(function, graph.everything if nodes is None else nodes, graph.outputs)


def test_integers_and_dequantised_values_have_steps(tmp_path):
    steps = steps_of(quantised(tmp_path, 0.25))
    assert {position: step.tolist() for position, step in steps.items()} == {0: 1.0, 1: 0.25}


@pytest.mark.parametrize(("axis", "shape"), [(1, (1, 3, 1)), (-1, (1, 1, 4))])
def test_channels_have_steps_of_their_own(axis, shape, tmp_path):
    scales = np.arange(1, 1 + max(shape), dtype=np.float32) / 8
    steps = steps_of(quantised(tmp_path, scales, axis=axis))
    assert steps[1].shape == shape
    assert steps[1].ravel().tolist() == scales.tolist()


def test_a_region_that_does_not_round_is_exact(tmp_path):
    function = quantised(tmp_path, 0.25)
    ops = [each.op for each in function.graph.nodes]
    assert steps_of(function, 1 << ops.index("DequantizeLinear")) == {}


def test_a_scale_that_is_computed_states_no_step(tmp_path):
    function = imported(
        model(
            [
                node("DynamicQuantizeLinear", ["x"], ["code", "scale", "zero"]),
                node("DequantizeLinear", ["code", "scale", "zero"], ["y"]),
            ],
            {"x": ("float32", (2, 3))},
            ["y"],
            {},
        ),
        tmp_path,
    )
    assert steps_of(function) == {}
