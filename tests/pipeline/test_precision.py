"""`--precision auto`, whole: faster within the tolerance, float32 where nothing is, and said so."""

import json
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.cli import main
from collage.errors import BundleError, OptionError
from collage.options import Options
from collage.runtime.cpu import bf16_reason
from collage.store.blobs import digest_of
from tests.backends.quantised import quantised_model

pytestmark = pytest.mark.full

needs_bf16 = pytest.mark.skipif(bool(bf16_reason()), reason=bf16_reason() or "-")
WIDE = 768


def wide_model(path, with_indices=False):
    """Two large products, where bf16 is about twice as fast; the indices of the result if wanted."""
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.standard_normal((WIDE, WIDE)) / np.sqrt(WIDE)).astype(np.float32)
        for name in ("w1", "w2")
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [128, WIDE])]
    if with_indices:
        nodes.append(helper.make_node("ArgMax", ["y"], ["token"], axis=1, keepdims=0))
        outputs = [helper.make_tensor_value_info("token", TensorProto.INT64, [128])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [128, WIDE])
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "wide", [x], outputs, initializers)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


def compiled(model, store, tmp_path, **overrides):
    options = {"threads": 1, "verify_s": 0.5, "refine_s": 0.0, "measure_budget_s": 20}
    options |= {"fallback": False, "allow_slower": True}
    options |= {"backends": ("onnxruntime", "openvino", "onednn"), "cache_dir": store}
    return collage.compile(model, Options(**options | overrides), output=tmp_path / "bundle")


@needs_bf16
def test_it_ships_what_is_faster_and_within_the_tolerance(store, tmp_path):
    model = wide_model(tmp_path / "wide.onnx")
    summary = compiled(model, store, tmp_path, precision="auto")
    precision = summary.precision
    reduced = [region for region in summary.plan if region.precision == "bf16"]
    assert len(reduced) == precision.reduced_regions >= 1
    assert precision.trials == 11
    assert 1e-4 < precision.errors["y"] <= precision.tolerance == 0.01
    assert {0, 2} <= {node for region in reduced for node in region.nodes}, "both products"
    assert all((region.error > 0) == (region in reduced) for region in summary.plan)
    assert set(summary.latency.baselines) == {"onnxruntime", "openvino", "openvino-bf16"}
    assert precision.baselines["openvino-bf16"] > 1e-4

    bundle = tmp_path / "bundle"
    manifest = json.loads((bundle / "manifest.json").read_text())["precision"]
    assert manifest["reduced"]
    assert manifest["tolerance"] == 0.01
    assert manifest["errors"] == precision.errors
    assert [region["precision"] for region in manifest["regions"]] == [
        "bf16"
    ] * precision.reduced_regions
    loaded = collage.load(bundle)
    loaded.check()
    x = np.random.default_rng(99).standard_normal((128, WIDE)).astype(np.float32)
    weights = {w.name: numpy_helper.to_array(w) for w in onnx.load(model).graph.initializer}
    right = np.maximum(x @ weights["w1"], 0) @ weights["w2"]
    error = np.abs(loaded.run({"x": x})["y"] - right).max() / np.abs(right).max()
    assert 1e-4 < error < 0.01


@needs_bf16
def test_a_golden_output_beyond_tolerance_fails_self_check(store, tmp_path):
    compiled(wide_model(tmp_path / "wide.onnx"), store, tmp_path, precision="auto")
    bundle = tmp_path / "bundle"
    with np.load(bundle / "golden.npz") as golden:
        data = dict(golden)
    data["main/output/y"][0, 0] += 0.02 * np.abs(data["main/output/y"]).max()
    np.savez(bundle / "golden.npz", **data)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"]["golden.npz"] = digest_of(bundle / "golden.npz")
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    loaded = collage.load(bundle)
    with pytest.raises(BundleError, match=r"above the tolerance of 0\.01"):
        loaded.check()


@needs_bf16
def test_with_too_small_a_tolerance_float32_ships(store, tmp_path):
    model = wide_model(tmp_path / "wide.onnx")
    summary = compiled(model, store, tmp_path, precision="auto", tolerance=1.5e-3)
    precision = summary.precision
    assert precision.reduced_regions == 0
    assert {region.precision for region in summary.plan} == {""}
    assert len(precision.rejected) >= 1
    assert "tolerance 0.0015" in next(iter(precision.rejected.values()))
    assert "float32 ships: all" in precision.notes[0]
    assert precision.errors["y"] < 1e-5
    assert "openvino-bf16" in precision.excused  # faster than it may be: it does not judge
    assert not json.loads((tmp_path / "bundle" / "manifest.json").read_text())["precision"][
        "reduced"
    ]


def deep_model(path, products=4):
    """Products one after the other, whose errors add up."""
    rng = np.random.default_rng(1)
    names = ["x", *(f"h{n}" for n in range(products))]
    nodes, weights = [], []
    for n, (before, after) in enumerate(pairwise(names)):
        weight = (rng.standard_normal((WIDE, WIDE)) / np.sqrt(WIDE)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{n}"))
        nodes.append(helper.make_node("MatMul", [before, f"w{n}"], [f"a{n}"]))
        nodes.append(helper.make_node("Tanh", [f"a{n}"], [after]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [128, WIDE])]
    outputs = [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, [128, WIDE])]
    graph = helper.make_graph(nodes, "deep", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


@needs_bf16
def test_where_the_whole_is_beyond_the_tolerance_mixes_are_tried(store, tmp_path):
    model = deep_model(tmp_path / "deep.onnx")
    whole = compiled(model, store, tmp_path, precision="auto", tolerance=0.1).precision
    tolerance = 0.85 * whole.baselines["openvino-bf16"]
    summary = compiled(model, store, tmp_path, precision="auto", tolerance=tolerance, refine_s=5.0)
    found = summary.precision
    assert found.errors["h3"] <= tolerance
    assert "openvino-bf16" in found.excused
    report = json.loads((tmp_path / "bundle" / "report.json").read_text())
    made = {p["name"]: p for one in report["functions"] for p in one["plans"]}
    mixes = [p for name, p in made.items() if name.startswith(("budget-", "gentler-", "within-"))]
    assert mixes  # which of them is within, and fastest, depends on what was measured
    assert all(p["measured_s"] or "tolerance" in p["reason"] for p in mixes)


@needs_bf16
def test_flipped_integers_are_beyond_any_tolerance(store, tmp_path):
    model = wide_model(tmp_path / "indices.onnx", with_indices=True)
    summary = compiled(model, store, tmp_path, precision="auto", tolerance=0.5)
    assert summary.precision.errors == {"token": 0.0}


def test_float32_measures_the_same_candidates_with_and_without(store, tmp_path):
    model = wide_model(tmp_path / "wide.onnx")
    first = compiled(model, store, tmp_path)
    assert first.precision is None
    assert set(first.latency.baselines) == {"onnxruntime", "openvino"}
    again = compiled(model, store, tmp_path)
    assert again.candidates.measured == 0
    assert json.loads((tmp_path / "bundle" / "manifest.json").read_text())["precision"] is None


def test_a_processor_without_bf16_ships_float32_with_the_reason(store, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2\n")
    monkeypatch.setattr("collage.runtime.cpu.CPUINFO", tmp_path / "cpuinfo")
    model = wide_model(tmp_path / "wide.onnx")
    summary = compiled(model, store, tmp_path, precision="auto")
    assert summary.precision.reduced_regions == 0
    assert any("openvino offers no bf16" in note for note in summary.precision.notes)
    assert set(summary.latency.baselines) == {"onnxruntime", "openvino"}


def test_a_quantised_model_runs_in_int8_without_any_permission(tmp_path):
    summary = compiled(quantised_model(tmp_path), tmp_path / "store", tmp_path)
    assert "int8" in {region.precision for region in summary.plan}
    collage.load(tmp_path / "bundle").check()


@pytest.mark.parametrize("more", [{"tolerance": 0.0}, {"tolerance": -1.0}, {"tolerance": np.nan},
                                  {"precision": "fp8"}])  # fmt: skip
def test_options_that_make_no_sense_are_refused(more):
    with pytest.raises(OptionError, match=next(iter(more))):
        Options(**{"precision": "auto", **more})


def test_a_tolerance_without_permission_is_refused(tmp_path, capsys):
    model = wide_model(tmp_path / "wide.onnx")
    assert main(["compile", str(model), "--tolerance", "0.01"]) == 2
    assert "--precision auto" in capsys.readouterr().err
