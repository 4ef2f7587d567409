"""Several shape sets, from the command line to a server: each function is compiled, proven and told of."""

import asyncio
import json
import math

import httpx
import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.cli import main
from collage.errors import InputError
from collage.runtime.manifest import read_manifest
from containers import serve
from containers.serving.app import Server
from containers.serving.watchdog import Watchdog
from tests.support.models import small_model

pytestmark = pytest.mark.full

SIDES = (16, 20, 24)
NAMES = ("main", "main_1", "main_2")


def compiled(folder, sides, *arguments):
    """Compile a small model for these sides of its input; return the model and the summary."""
    model = small_model(folder / "small.onnx", dynamic=True)
    shapes = [word for side in sides for word in ("--shape", f"x=1,3,{side},{side}")]
    words = ["compile", str(model), "-o", str(folder / "bundle"), *shapes, "--threads", "1", "--json",
             "--quiet", "--effort", "quick", "--budget", "2s", "--verify", "0.1s", "--exact-only",
             "--backends", "onnxruntime,openvino",
             "--cache-dir", str(folder / "store")]  # fmt: skip
    assert main([*words, *arguments]) == 0
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    compiled(folder, SIDES)
    return folder


def feed(side):
    random = np.random.default_rng(side)
    return {"x": random.standard_normal((1, 3, side, side)).astype(np.float32)}


@pytest.mark.parametrize("side", SIDES)
def test_the_function_of_the_shape_runs(folder, side):
    outputs = collage.load(folder / "bundle").run(feed(side))
    session = onnxruntime.InferenceSession(
        str(folder / "small.onnx"), providers=["CPUExecutionProvider"]
    )
    for name, expected in zip(outputs, session.run(list(outputs), feed(side)), strict=True):
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-3, atol=1e-4)


def test_a_shape_that_no_function_has_is_refused(folder):
    with pytest.raises(InputError, match=r"expected \(x: float32\[1, 3, 16, 16\]\) or "):
        collage.load(folder / "bundle").run(feed(32))


def test_documents_tell_latency_and_verdict_of_every_function(folder, capsys):
    bundle = folder / "bundle"
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert main(["report", str(bundle), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    report = json.loads((bundle / "report.json").read_text())
    assert tuple(function["function"] for function in manifest["functions"]) == NAMES
    assert tuple(function["name"] for function in report["functions"]) == NAMES
    for functions in (manifest["gate"], summary["functions"]):
        assert tuple(function["function"] for function in functions) == NAMES
        assert all(function["verdict"] == "not slower" for function in functions)
        assert all(
            function["ratios"].keys() == {"onnxruntime", "openvino"} for function in functions
        )
    for saved, shown in zip(manifest["gate"], summary["functions"], strict=True):
        latency = saved["latency"]
        assert latency["collage"]["seconds"] == shown["latency"]["collage_s"] > 0
        assert latency["openvino"]["seconds"] == shown["latency"]["baselines"]["openvino"] > 0
    page = (bundle / "report.html").read_text()
    assert all(f"median latency, {name}" in page for name in NAMES)


def test_bench_times_every_function(folder, capsys):
    bundle, model = folder / "bundle", folder / "small.onnx"
    assert main(["run", str(bundle)]) == 0
    capsys.readouterr()
    assert main(["bench", str(bundle), "--seconds", "0.05", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["functions"]
    assert main(["bench", str(bundle), "--seconds", "0.1", "--model", str(model), "--json"]) == 0
    beside = json.loads(capsys.readouterr().out)["functions"]
    assert tuple(alone) == tuple(beside) == NAMES
    for name in NAMES:
        assert alone[name]["seconds"] > 0
        assert set(beside[name]) == {"collage", "onnxruntime", "openvino"}
        assert all(latency["seconds"] > 0 for latency in beside[name].values())
    assert main(["bench", str(bundle), "--seconds", "0.05"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["function", *NAMES]
    assert all(float(row[1]) <= float(row[3]) <= float(row[5]) for row in rows[1:])


def test_a_server_answers_every_shape(folder):
    parsed = serve._parser().parse_args(["--bundle", str(folder / "bundle")])
    engine = serve._engine(folder / "bundle", parsed)
    watchdog = Watchdog(engine, math.inf, lambda: None)
    limits = serve._limits(engine, parsed)
    application = Server("small", "1", engine, limits, watchdog=watchdog).application()

    async def asked():
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return [await client.post("/v2/models/small/infer", json=body(side)) for side in SIDES]

    def body(side):
        array = feed(side)["x"]
        tensor = {"name": "x", "shape": list(array.shape), "datatype": "FP32",
                  "data": array.ravel().tolist()}  # fmt: skip
        return {"inputs": [tensor]}

    for side, answer in zip(SIDES, asyncio.run(asked()), strict=True):
        assert answer.status_code == 200, answer.text
        shapes = {output["name"]: output["shape"] for output in answer.json()["outputs"]}
        assert shapes == {"y": [1, 10], "m": [1, 16, side, side]}


def test_two_functions_of_the_original_file_share_its_weights(tmp_path):
    """Nothing but the file can ship here; both functions call one kernel, made of one blob."""
    model = small_model(tmp_path / "small.onnx", dynamic=True)
    proto = onnx.load(model)
    noise = onnx.helper.make_node("RandomNormalLike", ["m"], ["noise"])
    proto.graph.node.append(noise)
    proto.graph.node.append(onnx.helper.make_node("Add", ["m", "noise"], ["n"]))
    proto.graph.output[1].name = "n"
    onnx.save(proto, model)
    shapes = ({"x": (1, 3, 16, 16)}, {"x": (1, 3, 20, 20)})
    options = collage.Options(
        backends=("onnxruntime",), threads=1, shapes=shapes, verify_s=0.1, measure_budget_s=2,
        cache_dir=tmp_path / "store", allow_slower=True,
    )  # fmt: skip
    summary = collage.compile(model, options, output=tmp_path / "bundle")
    assert [function.original for function in summary.functions] == ["onnxruntime"] * 2
    assert [function.deterministic for function in summary.functions] == [False] * 2
    manifest = read_manifest(tmp_path / "bundle")
    assert len({function.kernel for function in manifest.functions}) == 1
    content = (tmp_path / "bundle" / "model.so").read_bytes()
    assert content.count(onnx.numpy_helper.to_array(proto.graph.initializer[2]).tobytes()) == 1
    bundle = collage.load(tmp_path / "bundle")
    bundle.check()
    for side in (16, 20):
        first, second = (bundle.run(feed(side)) for _ in range(2))
        assert first["n"].shape == (1, 16, side, side)
        np.testing.assert_array_equal(first["y"], second["y"])
        assert not np.array_equal(first["n"], second["n"])
