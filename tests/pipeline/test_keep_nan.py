"""Kernels that hide NaN are listed in summary and manifest, and refused with --keep-nan."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage


@pytest.fixture(scope="module")
def activation(tmp_path_factory):
    path = tmp_path_factory.mktemp("keep_nan") / "relu.onnx"
    nodes = [helper.make_node("Softmax", ["x"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 64)) for name in "xy"]
    graph = helper.make_graph(nodes, "relu", values[:1], values[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


def compiled(model, folder, *backends, **more):
    options = collage.Options(
        backends=backends, measure_budget_s=5.0, refine_s=0.0, tune_s=0.0, verify_s=0.05, fallback=False,
        allow_slower=True, cache_dir=folder / "store", **more,
    )  # fmt: skip
    summary = collage.compile(model, output=folder / "bundle", options=options)
    return summary, json.loads((folder / "bundle" / "manifest.json").read_text())["nan"]


def test_a_kernel_that_hides_nan_is_listed(activation, tmp_path):
    summary, regions = compiled(activation, tmp_path, "onednn")
    assert {region.nan for region in summary.plan} == {"hidden"}
    assert [(region["backend"], region["nan"]) for region in regions] == [
        ("onednn", "hidden")
    ] * len(summary.plan)


@pytest.mark.full
def test_keep_nan_refuses_it_and_the_bundle_keeps_nan(activation, tmp_path):
    summary, regions = compiled(activation, tmp_path, "onednn", "tvm", keep_nan=True)
    assert {region.backend for region in summary.plan} == {"tvm"}
    assert not regions
    x = np.ones((4, 64), np.float32)
    x[1, 5], x[3] = np.nan, -np.inf
    (y,) = collage.load(tmp_path / "bundle").run({"x": x}).values()
    np.testing.assert_array_equal(np.isnan(y).all(axis=1), [False, True, False, True])
