"""`make gpu-check` reports a missing GPU; with CPU backends its measurement works anywhere."""

import time

import pytest

from benchmarks.gpu import NO_GPU, main, measure_model
from benchmarks.gpu_models import KINDS, TF32, in_dtype, singles_of
from collage.backends.nvidia.libraries import driver_reason
from collage.backends.registry import available_backends
from collage.frontend.float16 import file_float_types
from collage.measure.environment import this_environment
from tests.backends.regions import convolutions


@pytest.mark.skipif(driver_reason() == "", reason="this machine has a GPU")
def test_without_a_gpu_nothing_is_written(tmp_path, capsys):
    assert main(["--output", str(tmp_path / "results.md")]) == NO_GPU
    assert "no GPU here: no driver" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_rows_tell_what_a_backend_would_run_alone(tmp_path):
    backends = available_backends(("onnxruntime", "winograd"))
    function = convolutions(tmp_path)
    rows = measure_model(
        "small",
        function,
        backends,
        environment=this_environment(1),
        folder=tmp_path,
        end=time.monotonic() + 60,
    )
    assert [(row.backend, row.regions, row.nodes) for row in rows] == [
        ("onnxruntime", 1, 5), ("winograd", 2, 4),
    ]  # fmt: skip
    assert all(0 < row.seconds < 1 and not row.invalid for row in rows)
    assert rows[0].text.startswith("| small | onnxruntime | 1 | 5 of 5 |")


def test_plans_of_one_toolchain_are_found_by_their_names():
    plans = {
        "whole-tensorrt-3": 3.0, "whole-tensorrt-1": 2.0, "tvm-cuda-only": 4.0, "best-1": 1.0,
        "onnxruntime-cuda": 0.5, "whole-onnxruntime-cuda-0": None,
    }  # fmt: skip
    report = {"plans": [{"name": name, "measured_s": s} for name, s in plans.items()]}
    names = ("tensorrt", "tvm-cuda", "onnxruntime-cuda")
    assert singles_of(report, names) == {"tensorrt": 2.0, "tvm-cuda": 4.0}


def test_tf32_is_float32_that_may_be_rounded(tmp_path):
    convolutions(tmp_path)
    file = in_dtype(tmp_path / "model.onnx", TF32, tmp_path)
    assert file_float_types(file) == {"float32"}
    assert TF32 not in KINDS
