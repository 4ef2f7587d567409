"""A complete compile for a GPU, from measurement to a running bundle, on the simulated GPU."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from benchmarks.gpu_models import in_dtype
from collage.backends.nvidia.libraries import driver_reason
from collage.cost.lines import decode_entries
from collage.frontend.inputs import random_inputs
from collage.measure.numerics import difference
from collage.runtime.arrays import load_arrays, numpy_dtype
from collage.verify.original_model import Original
from tests.backends.regions import _function, _weight, convolutions
from tests.simulated_gpu import cutlass_home

PARTS = ("cases", "cudnn", "cutlass", "tf32", "tuning")
CASES = [Path(__file__).with_name(f"simulated_{part}.py") for part in PARTS]
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(driver_reason() == "", reason="this machine has a real one"),
]


@pytest.mark.slow
@pytest.mark.parametrize("cases", CASES, ids=lambda file: file.stem)
def test_kernels_and_executables_compute_the_models_numbers(on_gpu, toolkit, cases):
    environment_extra = (
        {"CUTLASS_HOME": str(cutlass_home(toolkit))} if "cutlass" in cases.stem else {}
    )
    assert " passed" in on_gpu("pytest", "-p", "no:cacheprovider", str(cases), **environment_extra)


@pytest.mark.slow
def test_the_tests_that_need_a_gpu_pass(on_gpu):
    """Without bfloat16 in ONNX Runtime: the simulation runs it on the CPU, without bfloat16."""
    lacking = ("onnxruntime-cuda and bfloat16", "tensorrt and bfloat16", "TestCudaDevice")
    chosen = " and ".join(f"not ({test})" for test in lacking)
    arguments = ("-m", "gpu", "-k", chosen, "tests/backends/nvidia", "tests/measure")
    assert " passed" in on_gpu("pytest", "-p", "no:cacheprovider", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "capability"), [("float32", "90"), ("bfloat16", "86")])
def test_a_model_is_compiled_for_a_gpu_and_its_bundle_runs(on_gpu, tmp_path, dtype, capability):
    """Inputs and outputs have the model's own type; the reference of bfloat16 is computed in float32."""
    function = convolutions(tmp_path)
    bundle = tmp_path / "bundle"
    model = in_dtype(tmp_path / "model.onnx", dtype, tmp_path)
    said = on_gpu(
        "collage", "compile", str(model), "--device", "cuda", "--backends", "cudnn,tvm-cuda",
        "--allow-slower", "--effort", "quick",
        "--refine", "0s", "--verify", "0.2s", "--cache-dir", str(tmp_path / "cache"),
        "--output", str(bundle), "--json", SIMULATED_GPU_CAPABILITY=capability,
    )  # fmt: skip
    assert '"plan"' in said
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert (manifest["device"], manifest["compute_capability"]) == ("cuda", capability)
    assert manifest["libraries"]["cudart"]["version"].startswith("13")
    (inputs,) = (array.astype(numpy_dtype(dtype)) for array in random_inputs(function, 5).values())
    np.save(tmp_path / "x.npy", inputs)
    on_gpu("collage", "run", str(bundle), "--input", f"x={tmp_path / 'x.npy'}",
           "--save", str(tmp_path / "out.npz"), SIMULATED_GPU_CAPABILITY=capability)  # fmt: skip
    (expected,) = Original(model, {dtype}).run((), {"x": inputs})
    output = load_arrays(tmp_path / "out.npz")["y"]
    assert output.dtype.name == expected.dtype.name == dtype
    assert not difference([expected], [output])
    log = (tmp_path / "log").read_text()
    assert "launch graph" in log
    assert "spoiled" not in log
    if capability != "90":
        refused = on_gpu("collage", "run", str(bundle), fails=True)
        assert "made for a GPU of compute capability 86, and this one has 90" in refused


@pytest.mark.slow
def test_a_compile_tunes_what_could_change_the_plan(on_gpu, tmp_path):
    """The rules' schedules stay candidates; a later run finds the records and tries nothing."""
    convolutions(tmp_path)
    cache = tmp_path / "cache"

    def compiled(name, tune):
        said = on_gpu(
            "collage", "compile", str(tmp_path / "model.onnx"), "--device", "cuda", "--backends",
            "tvm-cuda", "--allow-slower", "--effort", "quick",
            "--refine", "0s", "--verify", "0.2s", "--tune", tune,
            "--cache-dir", str(cache), "--output", str(tmp_path / name), "--timeout", "300s", "--json",
            json=True,
        )  # fmt: skip
        return json.loads(said)["tuning"]

    first = compiled("first", "20s")
    assert first["trials"] > first["failed"], first
    assert first["kernels"] >= 1
    (file,) = (cache / "tuning").iterdir()
    records = [
        record for record in decode_entries(file.read_bytes()) if record and "workload" in record
    ]
    assert len([record for record in records if record["trace"]]) == first["trials"]
    assert all(
        "tvm-cuda" in record["toolchain"] and "sm_90" in record["toolchain"] for record in records
    )
    again = compiled("again", "0s")
    assert (again["trials"], again["tuned"]) == (0, first["tuned"])
    on_gpu("collage", "run", str(tmp_path / "again"))
    assert "spoiled" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_with_permission_faster_tf32_kernels_ship(on_gpu, tmp_path):
    """The simulated ordinary cores take three times as long; frameworks get the same permission."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    sizes, weights = (
        ({"x": (32, 64)}, {"y": (32, 64)}),
        [_weight("w", 64, 64), _weight("v", 64, 64)],
    )
    _function(tmp_path, nodes, *sizes, weights)
    bundle = tmp_path / "bundle"
    said = on_gpu(
        "collage", "compile", str(tmp_path / "model.onnx"), "--device", "cuda", "--backends", "cublas",
        "--precision", "auto", "--tolerance", "0.005", "--allow-slower", "--effort", "quick",
        "--refine", "0s",
        "--tune", "0s", "--cache-dir", str(tmp_path / "cache"), "--output", str(bundle), "--json", "--quiet",
        json=True,
    )  # fmt: skip
    summary = json.loads(said)
    assert {region["precision"] for region in summary["plan"]} == {"tf32"}
    precision = summary["precision"]
    assert 1e-5 < precision["errors"]["y"] < 0.005
    assert {"onnxruntime-cuda-tf32", "tensorrt-tf32"} <= set(precision["baselines"])
    assert {"onnxruntime-cuda", "tensorrt"} <= set(summary["functions"][0]["latency"]["baselines"])
    manifest = json.loads((bundle / "manifest.json").read_text())["precision"]
    assert [region["precision"] for region in manifest["regions"]] == ["tf32"] * len(
        summary["plan"]
    )
    assert all(1e-5 < region["error"] < 0.005 for region in manifest["regions"])
    assert "cublas tf32" in on_gpu("collage", "explain", str(bundle))
    log = (tmp_path / "log").read_text()
    (tmp_path / "log").write_text("")
    assert "equal" in on_gpu("collage", "run", str(bundle))
    assert "in TF32" in (tmp_path / "log").read_text()
    assert "framework CUDAExecutionProvider" in log
    assert "use_tf32=1" in log


def test_a_bundle_for_a_gpu_says_what_a_machine_lacks():
    from collage.runtime.gpu import gpu_problem

    assert gpu_problem("90").startswith("the bundle needs a GPU of NVIDIA: no driver")


@pytest.mark.slow
def test_kernels_that_kill_cost_their_candidates_and_not_the_run(on_gpu, tmp_path):
    """One writes to an invalid address, one takes all memory: new workers measure the other kernels."""
    convolutions(tmp_path)
    bundle = tmp_path / "bundle"
    faults = ",".join(
        f"tests.backends.nvidia.faulty:{name}Backend" for name in ("Crashing", "Hungry")
    )
    said = on_gpu(
        "collage", "compile", str(tmp_path / "model.onnx"), "--device", "cuda",
        "--backends", f"{faults},tvm-cuda", "--allow-slower", "--effort", "quick",
        "--refine", "0s", "--verify", "0.2s",
        "--budget", "60s", "--memory", "2GiB", "--cache-dir", str(tmp_path / "cache"), "--output",
        str(bundle), "--json",
    )  # fmt: skip
    summary, _ = json.JSONDecoder().raw_decode(said[said.index("{") :])
    assert {region["backend"] for region in summary["plan"]} <= {"tvm-cuda", "host"}
    (table,) = (tmp_path / "cache" / "costs").glob("*.jsonl")
    text = table.read_text()
    assert "an illegal memory access was encountered (700)" in text
    assert "needs more than 2 GiB of memory" in text
    on_gpu("collage", "run", str(bundle))
