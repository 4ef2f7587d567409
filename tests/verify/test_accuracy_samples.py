"""Trials: targets in processes of their own tell how far off they are."""

import math

import numpy as np
import pytest

from collage.errors import MeasureError
from collage.frontend import import_model
from collage.frontend.inputs import random_inputs
from collage.runtime.cpu import bf16_reason
from collage.verify.accuracy_samples import (
    beyond,
    differences,
    largest_errors,
    write_expected,
    write_outputs,
    write_samples,
)
from collage.verify.baselines import original_frameworks
from collage.verify.benchmark_target import BenchmarkTarget, TargetProcess
from collage.verify.interleaved_benchmark import InterleavedBenchmark
from tests.frontend.build import floats
from tests.support.models import small_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="module")
def function(model, tmp_path_factory):
    return import_model(model, work_dir=tmp_path_factory.mktemp("work")).functions[0]


@pytest.fixture
def samples(function, tmp_path):
    write_samples(
        function, [random_inputs(function, seed) for seed in range(3)], tmp_path / "samples"
    )
    return tmp_path / "samples"


def test_targets_compare_themselves_with_the_original(model, function, samples, tmp_path):
    kinds = ["onnxruntime", "openvino", *([] if bf16_reason() else ["openvino-bf16"])]
    with InterleavedBenchmark(random_inputs(function, 0), 1, tmp_path) as benchmark:
        benchmark.write_expected(BenchmarkTarget("original", "original", model), samples)
        assert sorted(file.name for file in samples.glob("expected-*")) == [
            "expected-0.npz", "expected-1.npz", "expected-2.npz"
        ]  # fmt: skip
        assert benchmark.enter([BenchmarkTarget(kind, kind, model) for kind in kinds]) == {}
        errors = {kind: benchmark.check(kind, samples) for kind in kinds}
        timed = benchmark.compare(kinds, 0.1)
    for kind, largest in errors.items():
        assert set(largest) == {"y", "m"}
        rounded = kind == "openvino-bf16"
        assert (1e-4 if rounded else 0.0) <= max(largest.values()) < (3e-2 if rounded else 1e-5)
        assert timed[kind].seconds > 0


def test_inputs_are_restored_after_a_sample(model, function, samples, tmp_path):
    feed = random_inputs(function, 7)
    np.savez(tmp_path / "feed.npz", **feed)
    process = TargetProcess(
        BenchmarkTarget("ort", "onnxruntime", model), tmp_path / "feed.npz", list(feed), 1
    )
    try:
        assert process.reason == ""
        process.write_expected(samples)
        write_samples(function, [feed], tmp_path / "one")
        before = np.load(samples / "expected-0.npz")["arr_0"]
        process.write_expected(tmp_path / "one")
        process.write_expected(samples)
        np.testing.assert_array_equal(before, np.load(samples / "expected-0.npz")["arr_0"])
    finally:
        process.close()


def test_samples_without_expected_outputs_are_an_error(model, function, samples, tmp_path):
    with InterleavedBenchmark(random_inputs(function, 0), 1, tmp_path) as benchmark:
        benchmark.enter([BenchmarkTarget("ort", "onnxruntime", model)])
        with pytest.raises(MeasureError, match="no samples with expected outputs"):
            benchmark.check("ort", samples)
        assert benchmark.compare(["ort"], 0.1)["ort"].seconds > 0  # it lives on


def test_an_original_that_does_not_load_is_an_error(function, samples, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    broken = BenchmarkTarget("original", "original", tmp_path / "broken.onnx")
    with (
        InterleavedBenchmark(random_inputs(function, 0), 1, tmp_path) as benchmark,
        pytest.raises(MeasureError, match="original does not run"),
    ):
        benchmark.write_expected(broken, samples)


def test_the_worst_sample_counts(samples):
    write_expected(samples, lambda values: [values[0].mean((1, 2, 3)), values[0]])
    calls = iter(range(3))

    def wrong_once(values):
        off = 0.5 if next(calls) == 1 else 0.0
        return [values[0].mean((1, 2, 3)), values[0] + np.float32(off * np.abs(values[0]).max())]

    errors = largest_errors(samples, wrong_once)
    assert errors["y"] == 0.0
    assert errors["m"] == pytest.approx(0.5, rel=1e-3)


def test_what_is_beyond_the_tolerance_is_said():
    assert beyond({"y": 0.009}, 0.01) == ""
    assert beyond({"y": 0.02, "z": 0.001}, 0.01) == "y: error 0.02, tolerance 0.01"
    assert beyond({"ids": math.inf}, 0.01).startswith("ids: other integers, NaN or shape")


def test_frameworks_get_the_same_permission(tmp_path, monkeypatch):
    def kinds(may_reduce):
        frameworks = original_frameworks(tmp_path / "m.onnx", may_reduce=may_reduce)
        return [target.kind for target in frameworks]

    (tmp_path / "cpuinfo").write_text("flags : fpu avx512_bf16\n")
    monkeypatch.setattr("collage.runtime.cpu.CPUINFO", tmp_path / "cpuinfo")
    assert kinds(False) == ["onnxruntime", "openvino"]
    assert kinds(True) == ["onnxruntime", "openvino", "openvino-bf16"]
    (tmp_path / "cpuinfo").write_text("flags : fpu avx512f\n")
    assert kinds(True) == ["onnxruntime", "openvino"]


def test_a_plan_that_is_wrong_on_one_sample_set_differs(function, samples):
    outputs = [{"y": floats(1, 10, seed=n), "m": floats(1, 16, 24, 24, seed=n)} for n in range(3)]
    write_outputs(function, outputs, samples)

    def run_with(wrong_set):
        calls = iter(range(3))

        def run(values):
            number = next(calls)
            return [outputs[number]["y"] + (number == wrong_set), outputs[number]["m"]]

        return run

    assert differences(samples, run_with(None)) == ""
    assert differences(samples, run_with(2)).startswith("sample set 4, y: wrong numbers")


def test_processes_compare_themselves_on_samples(model, function, samples, tmp_path):
    with InterleavedBenchmark(random_inputs(function, 0), 1, tmp_path) as benchmark:
        benchmark.write_expected(BenchmarkTarget("original", "original", model), samples)
        assert benchmark.enter([BenchmarkTarget("ort", "onnxruntime", model)]) == {}
        assert benchmark.differences("ort", samples) == ""
        wrong = dict(np.load(samples / "expected-1.npz"))
        np.savez(samples / "expected-1.npz", **{**wrong, "arr_1": wrong["arr_1"] * 2})
        assert benchmark.differences("ort", samples).startswith("sample set 3, m: wrong numbers")
