"""The gate's decision: plans that return, fall back and fail."""

import numpy as np
import pytest

from collage.errors import GateError
from collage.verify.plan_executable import PlanExecutable
from tests.verify.fake_benchmarks import BusyBenchmark, FailingBenchmark, checker, make_gate


@pytest.mark.parametrize("reserve", [False, True])
def test_eliminated_plans_return_before_a_slow_plan_ships(tmp_path, monkeypatch, reserve):
    seconds = {"mix-1": 2.0, "mix-2": 2.1, "alone": 2.2, "fast": 0.9}
    frameworks = {"onnxruntime": 1.0, "openvino": 3.0}
    benchmark = BusyBenchmark(seconds | frameworks, "fast")
    monkeypatch.setattr("collage.verify.gate.InterleavedBenchmark", benchmark)
    plans = []
    for name in seconds:
        (tmp_path / name).write_bytes(b"")
        single = {"alone": "tvm", "fast": "openvino"}.get(name, "")
        plans.append(PlanExecutable(name, tmp_path / name, 1.0, single))
    function = checker(tmp_path, {}).function
    gate = make_gate(tmp_path)
    raced, late = (plans[:3], plans[3:]) if reserve else (plans, [])
    if reserve:
        benchmark._unlucky.clear()
    decision = gate.decide(
        function, raced, {}, {"y": np.float32([1.0, 2.0])}, fallback_plans=lambda: late
    )
    assert (decision.chosen.name, decision.passed) == ("fast", True)
    assert "fast" in decision.finalists
    assert set(decision.latencies) == set(seconds)


def test_fallback_plans_are_unused_where_the_gate_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "collage.verify.gate.InterleavedBenchmark",
        BusyBenchmark({"mix": 0.9, "onnxruntime": 1.0, "openvino": 1.0}, ""),
    )
    (tmp_path / "mix").write_bytes(b"")
    function = checker(tmp_path, {}).function

    def fallback_plans():
        raise AssertionError("nothing is slower than a framework")

    gate = make_gate(tmp_path)
    mix = PlanExecutable("mix", tmp_path / "mix", 1.0)
    decision = gate.decide(
        function, [mix], {}, {"y": np.float32([1, 2])}, fallback_plans=fallback_plans
    )
    assert decision.passed


def decided(benchmark, tmp_path, monkeypatch, singles):
    monkeypatch.setattr("collage.verify.gate.InterleavedBenchmark", benchmark)
    plans = []
    for name, single in singles.items():
        (tmp_path / name).write_bytes(b"")
        plans.append(PlanExecutable(name, tmp_path / name, 1.0, single))
    function = checker(tmp_path, {}).function
    gate = make_gate(tmp_path)
    return gate.decide(function, plans, {}, {"y": np.float32([1.0, 2.0])})


PLANS = {"mix-1": "", "mix-2": "", "alone": "tvm"}


SECONDS = {"mix-1": 0.5, "mix-2": 0.8, "alone": 0.9, "onnxruntime": 1.0, "openvino": 1.0}


@pytest.mark.parametrize("stage", ["in_rounds", "in_final_round"])
def test_a_failed_plan_is_rejected_and_others_continue(tmp_path, monkeypatch, stage):
    benchmark = FailingBenchmark(SECONDS, **{stage: ["mix-1"]})
    decision = decided(benchmark, tmp_path, monkeypatch, PLANS)
    assert (decision.chosen.name, decision.passed) == ("mix-2", True)
    assert decision.rejected == {"mix-1": "mix-1 died while it ran"}
    assert set(decision.latencies) == {"mix-2", "alone"}


def test_a_framework_that_dies_refuses_nothing(tmp_path, monkeypatch):
    benchmark = FailingBenchmark(SECONDS | {"openvino": 0.1}, in_final_round=["openvino"])
    decision = decided(benchmark, tmp_path, monkeypatch, PLANS)
    assert (decision.chosen.name, decision.passed) == ("mix-1", True)
    assert decision.baselines["openvino"].reason == "openvino died while it ran"


@pytest.mark.parametrize("stage", ["in_rounds", "in_final_round"])
def test_when_all_plans_die_the_gate_says_of_what(tmp_path, monkeypatch, stage):
    with pytest.raises(GateError, match="mix-1: mix-1 died while it ran"):
        decided(FailingBenchmark(SECONDS, **{stage: PLANS}), tmp_path, monkeypatch, PLANS)
