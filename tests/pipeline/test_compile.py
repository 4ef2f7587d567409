"""The main job, whole: ONNX in, a proven bundle out, nothing measured twice."""

import json
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest

import collage
from collage.cli import main
from collage.errors import DimensionError, ModelError, OptionError
from collage.option_text import parse_dims, parse_shapes
from tests.support.models import small_model

MIX = {"fallback": False, "allow_slower": True}
"""Options under which a plan of regions ships, whatever the machine does beside."""
TIMES = {"measure_budget_s": 8.0, "refine_s": 2.0, "tune_s": 0.0, "verify_s": 0.1}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, store):
    folder = tmp_path_factory.mktemp("compiled")
    model = small_model(folder / "small.onnx")
    options = collage.Options(threads=1, cache_dir=store, **TIMES, **MIX)
    return model, folder / "bundle", collage.compile(model, options, output=folder / "bundle")


def test_the_summary_covers_every_node_once(compiled):
    _, _, summary = compiled
    nodes = sorted(node for region in summary.plan for node in region.nodes)
    assert nodes == list(range(10))
    assert summary.candidates.measured >= len(summary.backends)
    assert summary.latency.collage_s > 0
    assert summary.functions[0].predicted_s > 0
    assert summary.gate.reason


def test_a_fresh_process_loads_it_without_compiler_or_onnx(compiled, tmp_path):
    model, bundle, _ = compiled
    code = f"""
import sys, numpy as np, collage
x = np.random.default_rng(3).standard_normal((1, 3, 24, 24)).astype(np.float32)
outputs = collage.load({str(bundle)!r}).run({{"x": x}})
np.savez({str(tmp_path / "out.npz")!r}, x=x, **outputs)
loaded = {{"tvm", "onnx", "pydantic", "onnxruntime", "openvino"}} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    import onnxruntime

    with np.load(tmp_path / "out.npz") as out:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        y, m = session.run(["y", "m"], {"x": out["x"]})
        np.testing.assert_allclose(out["y"], y, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(out["m"], m, rtol=1e-3, atol=1e-4)


def test_a_second_compile_measures_nothing(compiled, store, tmp_path, capsys):
    model, _, first = compiled
    arguments = ["compile", str(model), "-o", str(tmp_path / "again"), "--threads", "1"]
    arguments += ["--budget", "8s", "--refine", "2s", "--tune", "0s", "--verify", "0.1s"]
    assert main([*arguments, "--cache-dir", str(store), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["candidates"]["measured"] == 0
    assert facts["candidates"]["cached"] >= first.candidates.measured
    assert facts["models"] == [first.models[0].model_dump()]
    assert (tmp_path / "again" / "report.html").stat().st_size > 1000


def seen_in_place(store):
    marks = [json.loads(file.read_text()) for file in (store / "searches").iterdir()]
    return [mark["in_place"] for mark in marks]


@pytest.mark.full
def test_in_context_costs_are_remembered(compiled, store, tmp_path):
    model, bundle, first = compiled
    (checkpoint,) = seen_in_place(store)
    assert checkpoint
    assert first.functions[0].predicted_s != first.functions[0].alone_s
    options = collage.Options(threads=1, cache_dir=store, **TIMES, **MIX)
    again = collage.compile(model, options, output=tmp_path / "again")
    assert seen_in_place(store) == [checkpoint]
    assert again.functions[0].predicted_s != again.functions[0].alone_s
    took = defaultdict(list)
    for key, _, in_context_s in checkpoint:
        took[json.dumps(key)].append(in_context_s)
    means_s = [sum(times_s) / len(times_s) for times_s in took.values()]
    for folder, summary in ((bundle, first), (tmp_path / "again", again)):
        report = json.loads((folder / "report.json").read_text())
        regions = report["functions"][0]["regions"]
        (function,) = summary.functions
        assert sum(region["predicted_s"] for region in regions) == pytest.approx(
            function.predicted_s
        )
        assert sum(region["alone_s"] for region in regions) == pytest.approx(function.alone_s)
        paced_s = [function.pace * mean_s for mean_s in means_s]
        assert any(
            np.isclose(region["predicted_s"], mean_s) for region in regions for mean_s in paced_s
        )


def test_run_bench_and_report_read_the_bundle(compiled, capsys):
    _, bundle, _ = compiled
    assert main(["run", str(bundle)]) == 0
    assert main(["bench", str(bundle), "--seconds", "0.2", "--json"]) == 0
    assert main(["report", str(bundle)]) == 0
    assert "report.html" in capsys.readouterr().out


def test_the_plan_is_explained_from_the_bundle(compiled, capsys):
    _, bundle, summary = compiled
    assert main(["explain", str(bundle), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    regions = [region for _, region in facts["regions"]]
    assert [region["backend"] for region in regions] == [region.backend for region in summary.plan]
    for region in regions:
        assert region["backend"] == "host" or region["measured_s"] > 0
        assert region["bound_s"] >= 0
    assert main(["explain", str(bundle), "--node", "0", "--json"]) == 0
    node = json.loads(capsys.readouterr().out)
    assert node["node"]["op"] == "Conv"
    assert 0 in node["region"]["nodes"]
    assert any(candidate["chosen"] for candidate in node["ranked"])
    assert main(["diff", str(bundle), str(bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []


def test_a_changed_byte_is_refused(compiled, tmp_path, capsys):
    import shutil

    _, bundle, _ = compiled
    copy = tmp_path / "changed"
    shutil.copytree(bundle, copy)
    content = bytearray((copy / "model.so").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "model.so").write_bytes(bytes(content))
    assert main(["run", str(copy)]) == 5
    assert "model.so" in capsys.readouterr().err


def test_an_unbound_dimension_says_which_option_to_add(tmp_path, capsys):
    model = small_model(tmp_path / "dynamic.onnx", dynamic=True)
    assert main(["compile", str(model), "-o", str(tmp_path / "b"), "--quiet"]) == 2
    message = capsys.readouterr().err
    assert "--shape x=1,3,?,?" in message
    assert "--dim side=" in message
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07\x12\x04test"])
def test_what_is_no_model_is_refused(tmp_path, content):
    file = tmp_path / "broken.onnx"
    file.write_bytes(content)
    with pytest.raises(ModelError):
        collage.compile(file, collage.Options(cache_dir=tmp_path / "s"), output=tmp_path / "b")


def test_an_unknown_backend_is_refused_with_the_known_ones(tmp_path):
    model = small_model(tmp_path / "small.onnx")
    options = collage.Options(backends=("tensorflow",), cache_dir=tmp_path / "s")
    with pytest.raises(OptionError, match="onnxruntime"):
        collage.compile(model, options, output=tmp_path / "b")


def test_dimension_options_are_parsed():
    assert parse_dims(["batch=1", "a=b=2"]) == {"batch": 1, "a=b": 2}
    assert parse_shapes(["x=1,3;y=2", "x=2,3"]) == ({"x": (1, 3), "y": (2,)}, {"x": (2, 3)})
    with pytest.raises(DimensionError):
        parse_dims(["batch=zero"])
    with pytest.raises(DimensionError):
        parse_shapes(["x=1,?,3"])
