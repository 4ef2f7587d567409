"""What ships when speed fails: the best plan of one toolchain, and the gate says so."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from collage.errors import GateError, MeasureError
from collage.verify.gate import Budget, Examiner, Gate, PlanExecutable, choose
from collage.verify.latency import Latency
from tests.frontend.build import imported, model

MIX = PlanExecutable("best-1", Path("best-1.so"), 1.0)
ALONE = PlanExecutable("ort-only", Path("ort.so"), 1.0, "onnxruntime")
SLOW_ALONE = PlanExecutable("tvm-only", Path("tvm.so"), 1.0, "tvm")


def latency(seconds):
    rounds = tuple(seconds * factor for factor in (0.999, 1.0, 1.001, 1.0, 0.998, 1.002, 1.0))
    return Latency(seconds, min(rounds), max(rounds), rounds)


@pytest.mark.parametrize(
    ("seconds", "ships", "passed"),
    [
        ({"best-1": 0.9, "ort-only": 1.0, "tvm-only": 2.0, "onnxruntime": 1.0}, "best-1", True),
        ({"best-1": 1.01, "ort-only": 1.02, "tvm-only": 2.0, "onnxruntime": 1.0}, "best-1", True),
        (
            {"best-1": 1.03, "ort-only": 1.031, "tvm-only": 2.0, "onnxruntime": 1.0},
            "ort-only",
            False,
        ),
        ({"best-1": 1.5, "ort-only": 1.6, "tvm-only": 2.0, "onnxruntime": 1.0}, "ort-only", False),
        ({"best-1": 1.5, "ort-only": 1.4, "tvm-only": 2.0, "onnxruntime": 1.0}, "ort-only", False),
    ],
)
def test_a_mix_slower_than_a_baseline_gives_way_to_one_toolchain(seconds, ships, passed):
    final = {name: latency(value) for name, value in seconds.items()}
    chosen, found, reason = choose([MIX, SLOW_ALONE, ALONE], final, ["onnxruntime"])
    assert (chosen.name, found) == (ships, passed)
    assert ("slower than onnxruntime" in reason) is not passed


def test_the_single_plan_that_ships_is_judged_itself():
    # The mix is faster than the single one in most rounds; that one is faster than the baseline in some.
    final = {
        "onnxruntime": Latency(1.0, 1.0, 1.0, (1.0,) * 7),
        "best-1": Latency(1.03, 1.03, 1.03, (1.03,) * 7),
        "ort-only": Latency(1.05, 0.99, 1.05, (1.05, 0.99, 1.05, 0.99, 1.05, 0.99, 1.05)),
    }
    chosen, passed, reason = choose([MIX, ALONE], final, ["onnxruntime"])
    assert (chosen.name, passed) == ("ort-only", True)
    assert reason.startswith("the mix is 3.0 % slower than onnxruntime")


@pytest.mark.parametrize(
    ("mix", "ships"),
    [
        (
            (0.995, 1.002, 0.994, 1.001, 0.995, 1.003, 0.995),
            "ort-only",
        ),  # 0.5 %, and not in all rounds
        ((0.995,) * 7, "best-1"),  # as little, but surely
        ((0.98, 1.01, 0.97, 1.02, 0.98, 0.98, 0.98), "best-1"),
    ],
)
def test_a_mix_that_is_hardly_faster_gives_way_to_one_toolchain(mix, ships):
    final = {
        "onnxruntime": Latency(1.1, 1.1, 1.1, (1.1,) * 7),
        "best-1": Latency(min(mix), min(mix), max(mix), mix),
        "ort-only": Latency(1.0, 1.0, 1.0, (1.0,) * 7),
    }
    chosen, passed, reason = choose([MIX, ALONE], final, ["onnxruntime"])
    assert (chosen.name, passed) == (ships, True)
    assert ("no mix is faster than onnxruntime alone" in reason) == (ships == "ort-only")


def test_a_baseline_that_did_not_run_refuses_nothing():
    final = {"best-1": latency(1.0), "openvino": Latency(math.nan, reason="no such operator")}
    assert choose([MIX], final, ["openvino"])[1]


class Tried:
    """An arena whose contenders have known errors; outputs are the reference's, times a factor."""

    def __init__(self, errors):
        self._errors = errors

    def check(self, name, trials):
        if name not in self._errors:
            raise MeasureError(f"{name} cannot be checked: the process ended with code -11")
        return self._errors[name]

    def outputs(self, name):
        return [np.float32([1.0, 2.0]) * np.float32(1.005 if name == "sloppy" else 1.0)]


def examiner(tmp_path, errors):
    node = helper.make_node("Relu", ["x"], ["y"])
    function = imported(model([node], {"x": ("float32", (2,))}, ["y"]), tmp_path)
    expected = {"y": np.float32([1.0, 2.0])}
    return Examiner(Tried(errors), function, expected, Budget(0.01, tmp_path), {})


def test_reduced_plans_are_held_to_the_budget_and_others_to_the_numbers(tmp_path):
    errors = {"near": {"y": 0.009}, "far": {"y": 0.011}, "exact": {"y": 0.5}, "sloppy": {"y": 1e-3}}
    found = examiner(tmp_path, errors)

    def wrong(name, reduced):
        return found.wrong(PlanExecutable(name, Path(f"{name}.so"), 1.0, reduced=reduced))

    assert wrong("near", True) == ""
    assert wrong("far", True) == "y: error 0.011, tolerance 0.01"
    assert wrong("exact", False) == ""  # the budget is not for plans in float32: their numbers are
    assert "times what is allowed" in wrong("sloppy", False)
    assert "code -11" in wrong("crashing", True)
    assert found.errors == errors


def test_a_reduced_baseline_beyond_the_budget_does_not_count(tmp_path):
    found = examiner(tmp_path, {"openvino-bf16": {"y": 0.02}})
    assert found.excuse({"openvino-bf16"}) == {"openvino-bf16": "y: error 0.02, tolerance 0.01"}
    assert examiner(tmp_path, {"openvino-bf16": {"y": 0.005}}).excuse({"openvino-bf16"}) == {}
    assert "code -11" in examiner(tmp_path, {}).excuse({"openvino-bf16"})["openvino-bf16"]


def test_what_ships_says_whether_it_is_equal_or_within_the_tolerance():
    final = {"best-1": latency(1.0)}
    assert "equal to" in choose([MIX], final, [])[2]
    assert "within the tolerance of" in choose([replace(MIX, reduced=True)], final, [])[2]


class BusyArena:
    """An arena in which a plan looks slow in the first race that it takes part in."""

    def __init__(self, seconds, unlucky):
        self._seconds = seconds
        self._unlucky = {unlucky}
        self.names = []

    def __call__(self, inputs, threads, work_dir):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def enter(self, contenders):
        self.names += [contender.name for contender in contenders]
        return {}

    def leave(self, name):
        self.names.remove(name)

    def outputs(self, name):
        return [np.float32([1.0, 2.0])]

    def profile(self, name):
        raise MeasureError("nothing runs here")

    def race(self, names, seconds_each, on_round=None):
        found = {name: latency(self._seconds[name] * self._burden(name)) for name in names}
        self._unlucky -= set(names)
        return found

    def compare(self, names, seconds_each, on_round=None):
        return {name: latency(self._seconds[name]) for name in names}

    def _burden(self, name):
        return 100.0 if name in self._unlucky else 1.0


@pytest.mark.parametrize("reserve", [False, True])
def test_who_was_sent_home_comes_back_before_something_slow_ships(tmp_path, monkeypatch, reserve):
    seconds = {"mix-1": 2.0, "mix-2": 2.1, "alone": 2.2, "fast": 0.9}
    frameworks = {"onnxruntime": 1.0, "openvino": 3.0}
    arena = BusyArena(seconds | frameworks, "fast")
    monkeypatch.setattr("collage.verify.gate.Arena", arena)
    plans = []
    for name in seconds:
        (tmp_path / name).write_bytes(b"")
        single = {"alone": "tvm", "fast": "openvino"}.get(name, "")
        plans.append(PlanExecutable(name, tmp_path / name, 1.0, single))
    function = examiner(tmp_path, {}).function
    gate = Gate(tmp_path / "model.onnx", 1, 0.1, tmp_path)
    raced, late = (plans[:3], plans[3:]) if reserve else (plans, [])
    if reserve:
        arena._unlucky.clear()
    decision = gate.decide(
        function, raced, {}, {"y": np.float32([1.0, 2.0])}, reserves=lambda: late
    )
    assert (decision.chosen.name, decision.passed) == ("fast", True)
    assert "fast" in decision.finalists
    assert set(decision.latencies) == set(seconds)


def test_reserves_are_not_asked_for_where_the_gate_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "collage.verify.gate.Arena",
        BusyArena({"mix": 0.9, "onnxruntime": 1.0, "openvino": 1.0}, ""),
    )
    (tmp_path / "mix").write_bytes(b"")
    function = examiner(tmp_path, {}).function

    def reserves():
        raise AssertionError("nothing is slower than a framework")

    gate = Gate(tmp_path / "model.onnx", 1, 0.1, tmp_path)
    mix = PlanExecutable("mix", tmp_path / "mix", 1.0)
    found = gate.decide(function, [mix], {}, {"y": np.float32([1, 2])}, reserves=reserves)
    assert found.passed


class DeadlyArena(BusyArena):
    """An arena in which contenders die: some in a race, some in a comparison."""

    def __init__(self, seconds, in_races=(), in_comparisons=()):
        super().__init__(seconds, "")
        self._in_races, self._in_comparisons = in_races, in_comparisons

    def race(self, names, seconds_each, on_round=None):
        return self._without(super().race(names, seconds_each), self._in_races)

    def compare(self, names, seconds_each, on_round=None):
        return self._without(super().compare(names, seconds_each), self._in_comparisons)

    def _without(self, found, dying):
        for name in set(dying) & set(found):
            self.leave(name)
            found[name] = Latency(math.nan, reason=f"{name} died while it ran")
        return found


def decided(arena, tmp_path, monkeypatch, singles):
    monkeypatch.setattr("collage.verify.gate.Arena", arena)
    plans = []
    for name, single in singles.items():
        (tmp_path / name).write_bytes(b"")
        plans.append(PlanExecutable(name, tmp_path / name, 1.0, single))
    function = examiner(tmp_path, {}).function
    gate = Gate(tmp_path / "model.onnx", 1, 0.1, tmp_path)
    return gate.decide(function, plans, {}, {"y": np.float32([1.0, 2.0])})


PLANS = {"mix-1": "", "mix-2": "", "alone": "tvm"}
SECONDS = {"mix-1": 0.5, "mix-2": 0.8, "alone": 0.9, "onnxruntime": 1.0, "openvino": 1.0}


@pytest.mark.parametrize("where", ["in_races", "in_comparisons"])
def test_a_plan_that_dies_is_rejected_and_the_others_go_on(tmp_path, monkeypatch, where):
    arena = DeadlyArena(SECONDS, **{where: ["mix-1"]})
    decision = decided(arena, tmp_path, monkeypatch, PLANS)
    assert (decision.chosen.name, decision.passed) == ("mix-2", True)
    assert decision.rejected == {"mix-1": "mix-1 died while it ran"}
    assert set(decision.latencies) == {"mix-2", "alone"}


def test_a_framework_that_dies_refuses_nothing(tmp_path, monkeypatch):
    arena = DeadlyArena(SECONDS | {"openvino": 0.1}, in_comparisons=["openvino"])
    decision = decided(arena, tmp_path, monkeypatch, PLANS)
    assert (decision.chosen.name, decision.passed) == ("mix-1", True)
    assert decision.baselines["openvino"].reason == "openvino died while it ran"


@pytest.mark.parametrize("where", ["in_races", "in_comparisons"])
def test_when_all_plans_die_the_gate_says_of_what(tmp_path, monkeypatch, where):
    with pytest.raises(GateError, match="mix-1: mix-1 died while it ran"):
        decided(DeadlyArena(SECONDS, **{where: PLANS}), tmp_path, monkeypatch, PLANS)
