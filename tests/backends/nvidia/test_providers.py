"""ONNX Runtime's CUDA and TensorRT providers from the command line, on the simulated GPU."""

import json
import shutil

import numpy as np
import onnxruntime
import pytest

from collage.backends.nvidia.libraries import driver_reason
from collage.backends.nvidia.providers import essence
from collage.frontend.inputs import random_inputs
from tests import simulated_gpu
from tests.backends.regions import convolutions

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(driver_reason() == "", reason="this machine has a real one"),
    pytest.mark.slow,
]
BOTH = "onnxruntime-cuda,tensorrt"


@pytest.fixture
def compiled(on_gpu, tmp_path):
    """Compile a model with two convolutions; return the summary and the report."""
    function = convolutions(tmp_path)

    def run(backends, output="bundle", **variables):
        said = on_gpu(
            "collage", "compile", str(tmp_path / "model.onnx"), "--device", "cuda", "--backends",
            backends, "--effort", "quick", "--refine", "0s", "--tune", "0s", "--verify", "0.2s",
            "--cache-dir", str(tmp_path / "cache"), "--output", str(tmp_path / output), "--json", "--quiet",
            "--allow-slower",  # what runs on a simulated GPU says nothing of speed
            json=True, **variables,
        )  # fmt: skip
        report = json.loads((tmp_path / output / "report.json").read_text())
        return json.loads(said), report["functions"][0]

    run.function = function
    return run


def logged(folder, word):
    return [line for line in (folder / "log").read_text().splitlines() if line.startswith(word)]


def invalid(report):
    """Return the invalid candidates: (backend, nodes, reason)."""
    return [
        (candidate["backend"], tuple(candidate["nodes"]), candidate["reason"])
        for candidate in report["invalid"]
    ]


def test_both_providers_compute_a_model_and_reuse_the_engine(compiled, on_gpu, tmp_path):
    summary, _ = compiled(BOTH)
    assert {region["backend"] for region in summary["plan"]} <= set(BOTH.split(","))
    assert summary["candidates"]["invalid"] == 0
    assert set(summary["functions"][0]["latency"]["baselines"]) >= {
        "onnxruntime",
        "onnxruntime-cuda",
        "tensorrt",
    }
    assert not summary["functions"][0]["latency"]["baseline_reasons"]
    engines = tmp_path / "cache" / "engines"
    assert len(logged(tmp_path, "build engine")) > 0
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert set(manifest["libraries"]) >= {"cudart", "onnxruntime"}
    compiled("tensorrt", "again")
    assert len(logged(tmp_path, "build engine")) == len(list(engines.glob("*.onnx"))), "none twice"
    (tmp_path / "log").write_text("")
    shutil.rmtree(engines)
    (inputs,) = random_inputs(compiled.function, 5).values()
    np.save(tmp_path / "x.npy", inputs)
    on_gpu("collage", "run", str(tmp_path / "again"), "--input", f"x={tmp_path / 'x.npy'}",
           "--save", str(tmp_path / "out.npz"))  # fmt: skip
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    (expected,) = session.run(None, {"x": inputs})
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-5)
    assert logged(tmp_path, "load engine")
    assert not logged(tmp_path, "build engine")
    assert not logged(tmp_path, "hidden copy")


def test_frameworks_of_the_gate_get_options_or_report_why_not(compiled, tmp_path):
    summary, _ = compiled(
        "onnxruntime-cuda", SIMULATED_ONNXRUNTIME_BROKEN="TensorrtExecutionProvider"
    )
    assert summary["functions"][0]["latency"]["baselines"]["onnxruntime-cuda"] > 0
    assert summary["functions"][0]["latency"]["baselines"]["tensorrt"] is None
    assert summary["functions"][0]["latency"]["baseline_reasons"]["tensorrt"] == (
        "RuntimeError: TensorrtExecutionProvider does not start here: only CUDAExecutionProvider, "
        "CPUExecutionProvider do"
    )
    (line, *_) = logged(tmp_path, "framework CUDAExecutionProvider arena")
    assert line.split()[2:] == [
        "arena_extend_strategy=kSameAsRequested", "cudnn_conv_algo_search=EXHAUSTIVE", "use_tf32=0",
    ]  # fmt: skip


REASONS = {
    "REFUSES": "nodes that are assigned to the default CPU EP, but fallback to CPU EP",
    "FAILS": "CUDNN failure 3: CUDNN_STATUS_NOT_SUPPORTED",
    "LOSES": "an illegal memory access was encountered",
}


@pytest.mark.parametrize("failure", REASONS)
def test_a_failing_provider_loses_only_its_own_candidates(compiled, failure):
    """No provider has Softmax, or it fails, or it loses the context: the region on the host has it."""
    variables = {f"SIMULATED_ONNXRUNTIME_{failure}": "Softmax"}
    summary, report = compiled(f"{BOTH},onnxruntime-host", **variables)
    softmax = 4
    assert summary["plan"][-1]["nodes"][-1] == softmax
    assert {region["backend"] for region in summary["plan"] if softmax in region["nodes"]} == {
        "onnxruntime-host"
    }
    lost = invalid(report)
    assert lost
    assert all(softmax in nodes and REASONS[failure] in reason for _, nodes, reason in lost), lost
    assert {backend for backend, _, _ in lost} == set(BOTH.split(","))


@pytest.mark.parametrize("provider", simulated_gpu.PROVIDERS)
def test_a_provider_without_its_library_has_a_reason(on_gpu, toolkit, tmp_path, provider):
    part = tmp_path / "part"
    shutil.copytree(toolkit, part)
    simulated_gpu.provider_file(part, provider).unlink()
    said = json.loads(on_gpu("collage", "backends", "--json", toolkit=part, json=True))
    reasons = {backend["name"]: backend["reason"] for backend in said["backends"]}
    names = {"cuda": "onnxruntime-cuda", "tensorrt": "tensorrt"}
    reason = reasons[names.pop(provider)]
    assert f"Failed to load library {simulated_gpu.provider_file(part, provider)}" in reason
    assert "provider_bridge" not in reason
    assert not reasons[names.popitem()[1]]


def test_onnxruntime_messages_are_kept_without_source_locations():
    words = "Failed to load library lib.so with error: libcublasLt.so.13: cannot open"
    error = RuntimeError(f"onnxruntime 1.31.1: /src/bridge.cc:20 Get() [X] : 1 : FAIL : {words}\n")
    assert essence(error) == f"onnxruntime 1.31.1: {words}"
    assert essence(RuntimeError("onnxruntime 1.31.1: short")) == "onnxruntime 1.31.1: short"
    assert essence(RuntimeError("no version here")) == "no version here"
