import math
import os
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.errors import MeasureError
from collage.runtime.manifest import Signature, Tensor
from collage.verify import (
    BenchmarkTarget,
    InterleavedBenchmark,
    compare_latency,
    profile_kernels,
    ratio,
)
from collage.verify.benchmark_worker import without_hook
from collage.verify.interleaved_benchmark import Latency, fastest_first, normalised_latencies
from tests.runtime import executables


@pytest.fixture
def model(tmp_path):
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    file = tmp_path / "relu.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), file
    )
    return file


FEED = {"x": np.ones((1, 64), np.float32)}
RELU = Signature("main", (Tensor("x", (1, 64), "float32"),), (Tensor("y", (1, 64), "float32"),))


def test_original_frameworks_are_compared_round_by_round(model, tmp_path):
    targets = [
        BenchmarkTarget("ort", "onnxruntime", model),
        BenchmarkTarget("ov", "openvino", model),
    ]
    rounds = []
    latencies = compare_latency(
        targets, FEED, 1, 0.5, work_dir=tmp_path, on_round=lambda *at: rounds.append(at)
    )
    assert rounds[-1][0] == rounds[-1][1] >= 5
    for latency in latencies.values():
        assert not latency.reason
        assert 0 < latency.low <= latency.seconds <= latency.high < 1
        assert len(latency.rounds) == rounds[-1][1]


@pytest.mark.parametrize("threads", [1, 2])
def test_targets_with_one_thread_share_one_processor(threads, model, tmp_path):
    targets = [
        BenchmarkTarget("ort", "onnxruntime", model),
        BenchmarkTarget("ov", "openvino", model),
    ]
    allowed = os.sched_getaffinity(0)
    with InterleavedBenchmark(FEED, threads, tmp_path) as benchmark:
        assert benchmark.enter(targets) == {}
        used = [
            os.sched_getaffinity(int(thread.name))
            for process in benchmark._processes.values()
            for thread in Path(f"/proc/{process._process.pid}/task").iterdir()
        ]
    assert len(used) >= 2
    assert all(cpus == ({max(allowed)} if threads == 1 else allowed) for cpus in used)


@pytest.mark.parametrize("busy", [1.0, 7.0])
def test_a_ratio_is_taken_round_by_round(busy):
    """What the machine does to a whole round touches neither; one bad slice of one does not count."""
    first = Latency(2.0, rounds=(2.0, 2.0 * busy, 2.2, 9.0, 2.0))
    second = Latency(1.0, rounds=(1.0, 1.0 * busy, 1.1, 1.0, 1.0))
    assert ratio(first, second) == pytest.approx(2.0)
    assert ratio(second, first) == pytest.approx(0.5)


def test_a_busy_moment_does_not_change_the_order():
    """Four of seven rounds were busy; the slower one's median is by chance the lower one."""
    fast, slow = (1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0), (1.1, 1.1, 1.1, 4.9, 5.5, 5.5, 5.5)
    latencies = {
        "early": Latency(0.5, rounds=(0.5,)),
        "slow": Latency(4.9, rounds=slow),
        "fast": Latency(5.0, rounds=fast),
        "refused": Latency(float("nan"), reason="no such operator"),
    }
    assert fastest_first(latencies) == ["fast", "slow", "early", "refused"]


def test_latencies_are_normalised_to_the_last_round():
    own_s = {"a": 1e-3, "b": 1.1e-3, "c": 0.9e-3, "d": 2e-3}
    paces, names_by_round = [1.0, 1.3, 0.8, 1.2], ["ab", "abd", "bc", "acb"]
    comparison_rounds = [
        {name: pace * own_s[name] for name in ran}
        for pace, ran in zip(paces, names_by_round, strict=True)
    ]
    assert normalised_latencies(comparison_rounds) == pytest.approx(
        {name: 1.2 * s for name, s in own_s.items()}
    )
    assert normalised_latencies(comparison_rounds[:1]) == pytest.approx(comparison_rounds[0])
    # Of those that met often, one odd time does little.
    comparison_rounds[1]["d"] *= 1.5
    comparison_rounds += [comparison_rounds[3]] * 4
    assert normalised_latencies(comparison_rounds)["c"] == pytest.approx(1.2 * own_s["c"], rel=0.02)


def test_a_target_that_does_not_load_has_a_reason(model, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    targets = [
        BenchmarkTarget("ort", "onnxruntime", model),
        BenchmarkTarget("bad", "openvino", broken),
    ]
    latencies = compare_latency(targets, FEED, 1, 0.3, work_dir=tmp_path)
    assert latencies["bad"].reason
    assert not latencies["ort"].reason


def test_nothing_that_runs_is_an_error(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"")
    with pytest.raises(MeasureError, match="none of the executables runs"):
        compare_latency(
            [BenchmarkTarget("bad", "onnxruntime", broken)], FEED, 1, 0.3, work_dir=tmp_path
        )


def test_certainly_slower_targets_are_eliminated(model, tmp_path):
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64]) for n in ("x", "y")]
    names = ["x", *(f"t{n}" for n in range(200)), "y"]
    nodes = [helper.make_node("Sin", [a], [b]) for a, b in pairwise(names)]
    slow = tmp_path / "slow.onnx"
    graph = helper.make_graph(nodes, "g", value[:1], value[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), slow
    )
    targets = [
        BenchmarkTarget("fast", "onnxruntime", model),
        BenchmarkTarget("slow", "onnxruntime", slow),
    ]
    with InterleavedBenchmark(FEED, 1, tmp_path) as benchmark:
        assert benchmark.enter(targets) == {}
        latencies = benchmark.eliminate_slow(["fast", "slow"], 2.0)
        assert latencies["fast"].seconds < latencies["slow"].seconds
        assert len(latencies["slow"].rounds) < 20
        benchmark.leave("slow")
        assert benchmark.names == ["fast"]


@pytest.mark.parametrize("how", ["compare", "eliminate_slow"])
def test_a_killed_target_leaves_and_others_continue(model, tmp_path, how):
    names = ["lives", "dies", "too"]
    with InterleavedBenchmark(FEED, 1, tmp_path) as benchmark:
        benchmark.enter([BenchmarkTarget(name, "onnxruntime", model) for name in names])
        rounds = []

        def kill(done, total):
            rounds.append(done)
            if done == 2:
                os.kill(benchmark._processes["dies"]._process.pid, signal.SIGKILL)

        latencies = getattr(benchmark, how)(names, 0.5, kill)
        assert benchmark.names == ["lives", "too"]
        assert math.isnan(latencies["dies"].seconds)
        assert "died while it ran: the process ended with code -9" in latencies["dies"].reason
        assert len(rounds) > 2
        assert latencies["lives"].seconds > 0
        assert not latencies["lives"].reason
        assert len(latencies["lives"].rounds) == len(rounds) or how == "eliminate_slow"
        again = benchmark.compare(benchmark.names, 0.2)
        assert set(again) == {"lives", "too"}


def test_kernels_are_timed_inside_the_executable(tmp_path):
    shape = {"x": (1, 1 << 18)}
    light = executables.relu_model(shape["x"])
    names = ["x", *(f"v{i}" for i in range(8)), "y"]
    nodes = [helper.make_node("Sin", [a], [b]) for a, b in pairwise(names)]
    heavy = executables.model(nodes, shape, {"y": shape["x"]})
    kernels = [("onnxruntime", executables.onnx_blob(node)) for node in (light, heavy)]
    kind = (shape["x"], "float32")
    file = executables.export(
        executables.chain(kernels, [kind], [kind], name="collage"), tmp_path / "two.so"
    )
    feed = {"x": np.ones(shape["x"], np.float32)}
    signature = Signature(
        "collage",
        (Tensor("x", shape["x"], "float32"),),
        (Tensor("y", shape["x"], "float32"),),
    )
    target = BenchmarkTarget("two", "executable", file, signature)
    profile = profile_kernels(target, feed, 1, tmp_path)
    kernels_s = profile.kernels_s
    assert set(kernels_s) == {"collage_kernel_0", "collage_kernel_1"}
    assert 0 < kernels_s["collage_kernel_0"] * 2 < kernels_s["collage_kernel_1"]
    with InterleavedBenchmark(
        feed, 1, tmp_path
    ) as benchmark:  # a busy machine only adds: the least of several counts
        benchmark.enter([target])
        pairs = [
            (benchmark.profile("two"), benchmark.compare(["two"], 0.3)["two"].seconds)
            for _ in range(3)
        ]
    parts = min(sum(one.kernels_s.values()) for one, _ in pairs)
    for whole in (min(one.call_s for one, _ in pairs), min(seconds for _, seconds in pairs)):
        assert 0.3 * whole < parts < 3 * whole


def test_the_time_of_the_hook_is_subtracted():
    medians = {"vm.builtin.reshape": 2e-6, "vm.builtin.alloc_tensor": 3e-6,
               "collage_main_0_tvm": 9e-6, "collage_main_1_tvm": 1e-6}  # fmt: skip
    kernels = without_hook(medians)
    assert kernels == pytest.approx({"collage_main_0_tvm": 7e-6, "collage_main_1_tvm": 0.0})


def test_an_executable_that_does_not_load_is_not_profiled(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(MeasureError, match="does not run"):
        profile_kernels(BenchmarkTarget("bad", "executable", broken, RELU), FEED, 1, tmp_path)
