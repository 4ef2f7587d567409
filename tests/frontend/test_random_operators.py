"""Random operators stand alone on ONNX Runtime, and Dropout in training mode draws."""

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node as node

from collage.backends.base import BuildContext
from collage.backends.registry import available_backends, class_path
from collage.frontend.inputs import random_inputs, reference_values, save_reference
from collage.frontend.load import read_model
from collage.measure.function_kernel_builder import FunctionKernelBuilder
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import Setup
from collage.measure.worker import first_run
from collage.rules.candidates import find_candidates, refusal
from tests.frontend.build import floats, imported, model, save
from tests.frontend.test_valid_models import executable

SHAPE = (16, 64)


def noisy(tmp_path):
    """Two draws of one shape between products."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("RandomNormalLike", ["m"], ["first"]),
        node("RandomNormalLike", ["m"], ["second"]),
        node("Add", ["m", "first"], ["y"]),
        node("Add", ["m", "second"], ["z"]),
        node("Relu", ["m"], ["quiet"]),
    ]
    outputs = ["y", "z", "quiet"]
    return imported(
        model(nodes, {"x": ("float32", SHAPE)}, outputs, {"w": floats(64, 64)}), tmp_path
    )


def dropout(ratio, training, *, outputs=("y",), flag_is_input=False):
    nodes = [node("Dropout", ["x", "ratio", "training"], ["y", "mask"])]
    inputs = {"x": ("float32", SHAPE)}
    weights = {"ratio": np.float32(ratio)}
    if flag_is_input:
        inputs["training"] = ("bool", ())
    else:
        weights["training"] = np.bool_(training)
    return model(nodes, inputs, list(outputs), weights)


def test_outputs_behind_a_draw_are_known(tmp_path):
    function = noisy(tmp_path)
    drawing = [node.op for node in function.graph.nodes if function.drawing >> node.index & 1]
    assert drawing == ["RandomNormalLike"] * 2
    assert function.drawn_outputs == {"y", "z"}


def test_a_draw_has_candidates_of_its_own_only(tmp_path):
    function = noisy(tmp_path)
    backends = available_backends(("onnxruntime", "openvino", "tvm", "onednn"))
    drawing = [
        candidate
        for candidate in find_candidates(function, backends)
        if candidate.inside & function.drawing
    ]
    assert {candidate.backend for candidate in drawing} == {"onnxruntime"}
    assert {candidate.inside.bit_count() for candidate in drawing} == {1}
    (index,) = {c.inside.bit_length() - 1 for c in drawing if not c.inside & (c.inside - 1)} - {
        max(c.inside.bit_length() - 1 for c in drawing)
    }
    for backend in backends:
        if backend.name == "openvino":
            assert "draws random numbers" in refusal(backend, function, index)


def test_a_draw_is_not_compared_on_edge_inputs(tmp_path):
    function = noisy(tmp_path)
    (backend,) = available_backends(("onnxruntime",))
    save_reference(reference_values(function, random_inputs(function, 0)), tmp_path / "reference")
    setup = Setup(
        loader="",
        functions=(("main", function.simplified),),
        backends=(class_path(backend),),
        build=BuildContext(1),
        reference_dir=tmp_path / "reference",
        memory_bytes=4 << 30,
        cache_flush_bytes=1 << 20,
        measure_dispatch_overhead=False,
    )
    builder = FunctionKernelBuilder(setup)
    for node_of_graph in function.graph.nodes:
        request = MeasurementRequest("main", 1 << node_of_graph.index, "onnxruntime")
        prepared = builder.prepare(request)
        assert first_run(prepared) == ("", 0.0)
        is_draw = node_of_graph.op == "RandomNormalLike"
        assert (prepared.judge_edges is None) is is_draw


def test_kernels_of_equal_draws_draw_different_numbers(tmp_path):
    from collage.assemble import FunctionPlan, PlannedKernel, assemble
    from collage.backends.base import BuildContext
    from collage.frontend.region import region_values
    from collage.runtime.session import ExecutableSession
    from collage.verify.plan_executable import function_signature

    function = noisy(tmp_path)
    (backend,) = available_backends(("onnxruntime",))
    planned = []
    for index in range(len(function.graph)):
        kernel = backend.compile(function, 1 << index, BuildContext(1))
        names = region_values(function, 1 << index)
        planned.append(PlannedKernel(1 << index, "onnxruntime", kernel, *names))
    assemble([FunctionPlan(function, tuple(planned))], 1, tmp_path / "model.so")
    session = ExecutableSession(tmp_path / "model.so", (function_signature(function),), 1)
    outputs = session.run({"x": floats(*SHAPE)})
    again = session.run({"x": floats(*SHAPE)})
    np.testing.assert_array_equal(outputs["quiet"], again["quiet"])
    noise = outputs["y"] - outputs["z"]
    assert 1.2 < noise.std() < 1.6  # of two independent normal numbers: the square root of 2
    assert (outputs["y"] != again["y"]).mean() > 0.9


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.75])
def test_dropout_in_training_mode_draws_a_mask(ratio, tmp_path):
    function = imported(dropout(ratio, True, outputs=("y", "mask")), tmp_path)
    assert "Dropout" not in {node.op for node in function.graph.nodes}
    assert function.drawn_outputs == {"y", "mask"}
    outputs = executable(function, tmp_path, [function.graph.everything]).run(
        {"x": np.ones(SHAPE, np.float32)}
    )
    assert outputs["mask"].dtype == np.bool_
    assert abs(outputs["mask"].mean() - (1 - ratio)) < 0.08
    kept = np.float32(1 / (1 - ratio))
    np.testing.assert_allclose(outputs["y"], np.where(outputs["mask"], kept, 0), rtol=1e-6)


def test_dropout_in_inference_mode_is_no_draw(tmp_path):
    function = imported(dropout(0.5, False), tmp_path)
    assert not function.drawing


def test_dropout_with_its_mode_as_input_follows_it(tmp_path):
    function = imported(dropout(0.5, True, flag_is_input=True), tmp_path)
    session = executable(function, tmp_path, [function.graph.everything])
    ones = np.ones(SHAPE, np.float32)
    kept = session.run({"x": ones, "training": np.array(False)})["y"]
    np.testing.assert_array_equal(kept, ones)
    drawn = session.run({"x": ones, "training": np.array(True)})["y"]
    assert 0.4 < (drawn == 0).mean() < 0.6


def test_half_precision_dropout_keeps_its_type(tmp_path):
    document = dropout(0.5, True)
    document.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    lowered, _ = read_model(save(document, tmp_path))
    casts = [proto for proto in lowered.graph.node if proto.op_type == "CastLike"]
    assert all(proto.input[1] == "x" for proto in casts)
