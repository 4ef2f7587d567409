"""Everything of a compile for a GPU, from measuring to a bundle that runs, on the simulated GPU."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from collage.backends.nvidia.libraries import driver_reason
from collage.frontend.inputs import random_inputs
from tests.backends.regions import convolutions

CASES = [Path(__file__).parent / name for name in ("simulated_cases.py", "simulated_cudnn.py")]
pytestmark = pytest.mark.skipif(driver_reason() == "", reason="this machine has a real one")


@pytest.mark.slow
@pytest.mark.parametrize("cases", CASES, ids=lambda file: file.stem)
def test_kernels_and_executables_compute_the_models_numbers(on_gpu, cases):
    assert " passed" in on_gpu("pytest", "-p", "no:cacheprovider", str(cases))


@pytest.mark.slow
def test_the_tests_that_need_a_gpu_pass(on_gpu):
    """Without bfloat16 where the simulation computes with ONNX Runtime on the CPU, which has no such kernels.

    Of TVM's kernels those in float32: the simulated compiler has no 16-bit types.
    """
    lacking = ("tvm-cuda and float16", "tvm-cuda and bfloat16", "onnxruntime-cuda and bfloat16")
    lacking += ("tensorrt and bfloat16", "TestCudaDevice")
    chosen = " and ".join(f"not ({one})" for one in lacking)
    arguments = ("-m", "gpu", "-k", chosen, "tests/backends/nvidia", "tests/measure")
    assert " passed" in on_gpu("pytest", "-p", "no:cacheprovider", *arguments)


@pytest.mark.slow
def test_a_model_is_compiled_for_a_gpu_and_its_bundle_runs(on_gpu, tmp_path):
    function = convolutions(tmp_path)
    model, bundle = tmp_path / "model.onnx", tmp_path / "bundle"
    said = on_gpu(
        "collage", "compile", str(model), "--device", "cuda", "--backends", "cudnn,tvm-cuda",
        "--effort", "quick", "--refine", "0s", "--cache-dir", str(tmp_path / "cache"),
        "--output", str(bundle), "--json",
    )  # fmt: skip
    assert '"plan"' in said
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert (manifest["device"], manifest["compute_capability"]) == ("cuda", "90")
    assert manifest["libraries"]["cudart"]["version"] == "13"
    (inputs,) = random_inputs(function, 5).values()
    np.save(tmp_path / "x.npy", inputs)
    on_gpu("collage", "run", str(bundle), "--input", f"x={tmp_path / 'x.npy'}",
           "--save", str(tmp_path / "out.npz"))  # fmt: skip
    (expected,) = onnxruntime.InferenceSession(str(model)).run(None, {"x": inputs})
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-5)
    log = (tmp_path / "log").read_text()
    assert "launch graph" in log
    assert "spoiled" not in log


def test_a_bundle_for_a_gpu_says_what_a_machine_lacks():
    from collage.runtime.gpu import gpu_problem

    assert gpu_problem("90").startswith("the bundle needs a GPU of NVIDIA, and there is no NVIDIA")
