"""Stamps that are newer than what ONNX Runtime reads: lowered where nothing needs them, else refused."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.errors import ModelError
from collage.frontend import import_model
from collage.frontend.onnx_versions import (
    make_readable,
    newest_ir_version,
    newest_opset,
    readable_bytes,
)
from collage.frontend.onnxruntime_session import refusal_reason, session_options
from collage.verify.original_model import Original, open_file

NEWEST = onnx.defs.onnx_opset_version()


def made(*nodes, weights=None, opset=None, ir_version=None, kind=TensorProto.FLOAT, functions=()):
    """Make a model from x to y as `make_model` does by default, stamped with the newest versions."""
    values = [helper.make_tensor_value_info(name, kind, [2, 4]) for name in "xy"]
    constants = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", values[:1], values[1:], constants)
    stamps = [helper.make_opsetid("", opset or NEWEST)]
    stamps += [helper.make_opsetid(function.domain, 1) for function in functions]
    model = helper.make_model(graph, opset_imports=stamps, functions=functions)
    if ir_version:
        model.ir_version = ir_version
    return model


RELU = helper.make_node("Relu", ["x"], ["y"])


def test_the_default_stamps_are_newer_than_onnx_runtime_reads():
    """Without this the tests below show nothing."""
    assert newest_ir_version() < onnx.IR_VERSION
    assert newest_opset("") < NEWEST
    with pytest.raises(Exception, match="IR version"):
        onnxruntime.InferenceSession(made(RELU).SerializeToString())


@pytest.mark.parametrize(
    "nodes",
    [
        [RELU],
        [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32),
         helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT)],
    ],
    ids=["the very operator", "only more types since"],
)  # fmt: skip
def test_a_default_model_is_imported_and_is_the_reference(nodes, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(made(*nodes), path)
    function = import_model(path, work_dir=tmp_path / "work").functions[0]
    x = np.array([[-1.5, 2, 0, 3], [1, -1, 2.5, 9]], np.float32)
    (imported,) = onnxruntime.InferenceSession(str(function.simplified)).run(None, {"x": x})
    (original,) = Original(path, {"float32"}).run(["y"], {"x": x})
    np.testing.assert_array_equal(imported, original)
    np.testing.assert_array_equal(original, np.maximum(x, 0) if len(nodes) == 1 else np.trunc(x))


def test_a_readable_model_is_left_as_it_is(tmp_path):
    model = made(RELU, opset=newest_opset(""), ir_version=newest_ir_version())
    before = model.SerializeToString(deterministic=True)
    onnx.save(model, tmp_path / "model.onnx")
    assert not make_readable(model)
    assert model.SerializeToString(deterministic=True) == before
    assert readable_bytes(tmp_path / "model.onnx") is None


def test_weights_in_other_files_are_found_from_a_lowered_file(tmp_path):
    weight = np.arange(8, dtype=np.float32).reshape(2, 4)
    path = tmp_path / "model.onnx"
    onnx.save(
        made(helper.make_node("Add", ["x", "w"], ["y"]), weights={"w": weight}), path,
        save_as_external_data=True, location="weights", size_threshold=0,
    )  # fmt: skip
    opened = open_file(path, session_options("ORT_ENABLE_ALL"), ["CPUExecutionProvider"])
    (output,) = opened.run(None, {"x": np.ones((2, 4), np.float32)})
    np.testing.assert_array_equal(output, weight + 1)


def test_local_functions_are_lowered_with_their_model(tmp_path):
    stamp = [helper.make_opsetid("", NEWEST)]
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], stamp
    )
    path = tmp_path / "model.onnx"
    onnx.save(
        made(helper.make_node("Twice", ["x"], ["y"], domain="mine"), functions=[function]), path
    )
    (output,) = Original(path, {"float32"}).run(["y"], {"x": np.ones((2, 4), np.float32)})
    np.testing.assert_array_equal(output, np.full((2, 4), 2))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: made(helper.make_node("Mod", ["x", "x"], ["y"], name="m", fmod=1)),
         rf"node 'm' is Mod of operator set {NEWEST}.*export the model with opset \d+"),
        (lambda: made(helper.make_node("SwiGLU", ["x"], ["y"])), "node 'y' is SwiGLU"),
        (lambda: made(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT6E2M3),
                      opset=26, kind=TensorProto.FLOAT6E2M3),
         r"type FLOAT6E2M3, which ONNX has since IR version 14"),
    ],
    ids=["changed operator", "new operator", "new type"],
)  # fmt: skip
def test_what_needs_the_newer_version_is_refused_by_name(model, reason, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    with pytest.raises(ModelError, match=reason) as refusal:
        import_model(path, work_dir=tmp_path / "work")
    assert str(path) in str(refusal.value)
    with pytest.raises(ModelError, match=reason):
        Original(path, {"float32"})


def test_a_refusal_of_onnx_runtime_names_no_place_in_its_sources():
    with pytest.raises(Exception, match=r"model\.cc") as refusal:
        onnxruntime.InferenceSession(made(RELU).SerializeToString())
    reason = refusal_reason(refusal.value)
    assert reason.startswith("Unsupported model IR version"), reason
