"""`collage inspect`: what a user needs before the first compile."""

import json

import onnx
import pytest
from onnx import TensorProto, helper

from collage.cli import main
from tests.support import original_models


def save(file, shape, *, opset=18):
    """Save relu, a loop-free body in `If`, and a node of a foreign domain's like; `x` has `shape`."""
    body = helper.make_graph(
        [helper.make_node("Neg", ["r"], ["n"])],
        "body",
        [],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ReduceMax", ["r"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(model, file)
    return str(file)


def inspected(capsys, *arguments, code=0):
    assert main(["inspect", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_open_dimensions_come_with_the_options_that_bind_them(tmp_path, capsys):
    file = save(tmp_path / "m.onnx", ["batch", 4])
    [model] = inspected(capsys, file)["models"]
    assert model["open_dimensions"] == ["--dim batch=N"]
    assert model["inputs"] == ["x: float32[?, 4]"]
    assert not model["backends"]
    assert "batch" in model["obstacle"]
    [unnamed] = inspected(capsys, save(tmp_path / "n.onnx", [None, 4]))["models"]
    assert unnamed["open_dimensions"] == ["--shape x=N,4"]


def test_bound_models_are_shown_to_every_backend(tmp_path, capsys):
    file = save(tmp_path / "m.onnx", ["batch", 4])
    [model] = inspected(capsys, file, "--dim", "batch=2", "--backends", "onnxruntime,onednn")[
        "models"
    ]
    assert model["operators"] == {"Neg": 2, "Cast": 1, "If": 1, "ReduceMax": 1, "Relu": 1}
    backends = {backend["name"]: backend for backend in model["backends"]}
    assert backends["onnxruntime"]["taken"] == backends["onnxruntime"]["nodes"] == 4
    assert backends["onednn"]["taken"] < 4
    assert sum(backends["onednn"]["refused"].values()) == 4 - backends["onednn"]["taken"]


def test_text_models_run_whole(tmp_path, capsys):
    file = original_models.text_model(tmp_path / "m.onnx")
    [model] = inspected(capsys, str(file))["models"]
    assert "runs whole" in model["obstacle"]
    assert main(["inspect", str(file)]) == 0
    assert "x: tensor(string)" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--dim", "other=2"], ["--backends", "none"]])
def test_options_that_do_not_fit_are_refused(tmp_path, capsys, arguments):
    file = save(tmp_path / "m.onnx", ["batch", 4])
    code = 0 if arguments[0] == "--dim" else 2
    answer = inspected(capsys, file, *arguments, code=code)
    assert "other" in json.dumps(answer) or "none" in json.dumps(answer)
