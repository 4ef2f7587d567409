"""What ships when speed fails: the best plan of one toolchain, and the gate says so."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from collage.errors import GateError, MeasureError
from collage.verify.accuracy_checker import AccuracyBudget, AccuracyChecker
from collage.verify.decision import OriginalPlans
from collage.verify.final_round import Judgement, judge_until_proven, plans_to_judge, reason_of
from collage.verify.gate import Gate
from collage.verify.interleaved_benchmark import Latency, latency_of
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import NOISE, RatioInterval, Verdict
from tests.frontend.build import imported, model
from tests.verify.rounds import compared

PASSED, SLOWER = Verdict.NOT_SLOWER, Verdict.SLOWER

MIX = PlanExecutable("best-1", Path("best-1.so"), 1.0)
ALONE = PlanExecutable("ort-only", Path("ort.so"), 1.0, "onnxruntime")
SLOW_ALONE = PlanExecutable("tvm-only", Path("tvm.so"), 1.0, "tvm")


def latency(seconds):
    rounds = tuple(seconds * factor for factor in (0.999, 1.0, 1.001, 1.0, 0.998, 1.002, 1.0))
    return Latency(seconds, min(rounds), max(rounds), rounds)


def chosen(plans, seconds, noise=None):
    """Return what ships where nothing but these plans can, and whether it is proven."""
    comparison = compared(seconds, noise, seconds_each=0.6)
    order = plans_to_judge(plans, comparison.latencies)
    baselines = [name for name in seconds if name not in {plan.name for plan in plans}]
    for plan in order:
        judgement = judge_until_proven(comparison, plan.name, baselines, allowance=NOISE)
        if judgement.verdict is Verdict.NOT_SLOWER:
            break
    return plan.name, judgement.verdict


@pytest.mark.parametrize(
    ("seconds", "ships", "verdict"),
    [
        ({"best-1": 0.9, "ort-only": 1.0, "tvm-only": 2.0, "onnxruntime": 1.0}, "best-1", PASSED),
        ({"best-1": 1.01, "ort-only": 1.1, "tvm-only": 2.0, "onnxruntime": 1.0}, "best-1", PASSED),
        (
            {"best-1": 1.03, "ort-only": 1.04, "tvm-only": 2.0, "onnxruntime": 1.0},
            "ort-only",
            SLOWER,
        ),
        ({"best-1": 1.5, "ort-only": 1.6, "tvm-only": 2.0, "onnxruntime": 1.0}, "ort-only", SLOWER),
        ({"best-1": 1.5, "ort-only": 1.4, "tvm-only": 2.0, "onnxruntime": 1.0}, "ort-only", SLOWER),
    ],
)
def test_a_mix_slower_than_a_baseline_gives_way_to_one_toolchain(seconds, ships, verdict):
    assert chosen([MIX, SLOW_ALONE, ALONE], seconds) == (ships, verdict)


@pytest.mark.parametrize(
    ("mix", "ships"),
    [
        ((0.995, 1.002, 0.994, 1.001, 0.995, 1.003, 0.995), "ort-only"),  # not in all rounds
        ((0.995,) * 7, "best-1"),  # as little, but surely
        ((0.98, 1.01, 0.97, 1.02, 0.98, 0.98, 0.98), "best-1"),
    ],
)
def test_a_mix_that_is_hardly_faster_gives_way_to_one_toolchain(mix, ships):
    latencies = {"best-1": latency_of(mix), "ort-only": latency_of((1.0,) * 7)}
    assert plans_to_judge([MIX, ALONE], latencies)[0].name == ships


class BenchmarkWithErrors:
    """A benchmark of targets with known errors; outputs are the reference's, times a factor."""

    def __init__(self, errors):
        self._errors = errors

    def check(self, name, samples):
        if name not in self._errors:
            raise MeasureError(f"{name} cannot be checked: the process ended with code -11")
        return self._errors[name]

    def outputs(self, name, names):
        return [np.float32([1.0, 2.0]) * np.float32(1.005 if name == "sloppy" else 1.0)]


def checker(tmp_path, errors):
    node = helper.make_node("Relu", ["x"], ["y"])
    function = imported(model([node], {"x": ("float32", (2,))}, ["y"]), tmp_path)
    expected = {"y": np.float32([1.0, 2.0])}
    return AccuracyChecker(
        BenchmarkWithErrors(errors), function, expected, AccuracyBudget(0.01, tmp_path), {}
    )


def test_only_reduced_plans_are_held_to_the_error_budget(tmp_path):
    errors = {"near": {"y": 0.009}, "far": {"y": 0.011}, "exact": {"y": 0.5}, "sloppy": {"y": 1e-3}}
    found = checker(tmp_path, errors)

    def wrong(name, reduced):
        return found.wrong(PlanExecutable(name, Path(f"{name}.so"), 1.0, reduced=reduced))

    assert wrong("near", True) == ""
    assert wrong("far", True) == "y: error 0.011, tolerance 0.01"
    assert wrong("exact", False) == ""  # the budget is not for plans in float32: their numbers are
    assert "times what is allowed" in wrong("sloppy", False)
    assert "code -11" in wrong("crashing", True)
    assert found.errors == errors


def test_plans_are_judged_by_further_samples(tmp_path):
    class BenchmarkWithSamples(BenchmarkWithErrors):
        def differences(self, name, samples):
            assert samples == tmp_path / "further"
            if name == "crashing":
                raise MeasureError("crashing cannot run the samples: the process ended")
            return "sample set 2, y: wrong numbers" if name == "lucky" else ""

    judge = replace(
        checker(tmp_path, {}),
        benchmark=BenchmarkWithSamples({}),
        budget=None,
        samples=tmp_path / "further",
    )
    reasons = {
        name: judge.wrong(PlanExecutable(name, Path(f"{name}.so"), 1.0))
        for name in ("right", "lucky", "crashing")
    }
    assert reasons == {
        "right": "",
        "lucky": "sample set 2, y: wrong numbers",
        "crashing": "crashing cannot run the samples: the process ended",
    }


def test_a_reduced_baseline_beyond_the_budget_does_not_count(tmp_path):
    budget_checker = checker(tmp_path, {"openvino-bf16": {"y": 0.02}})
    assert budget_checker.find_exempt({"openvino-bf16"}) == {
        "openvino-bf16": "y: error 0.02, tolerance 0.01"
    }
    assert checker(tmp_path, {"openvino-bf16": {"y": 0.005}}).find_exempt({"openvino-bf16"}) == {}
    assert "code -11" in checker(tmp_path, {}).find_exempt({"openvino-bf16"})["openvino-bf16"]


def test_the_reason_says_equal_or_within_the_tolerance():
    judgement = Judgement(PASSED, {}, 0.0)
    assert "equal to" in reason_of(MIX, judgement)
    assert "within the tolerance of" in reason_of(replace(MIX, reduced=True), judgement)
    slower = Judgement(SLOWER, {"onnxruntime": RatioInterval(1.03, 1.025, 1.04)}, NOISE)
    words = reason_of(ALONE, judgement, slower.text())
    assert words.startswith("the mix is 3.0 % slower than onnxruntime on the original file, so ")
    unproven = Judgement(Verdict.UNPROVEN, {"openvino": RatioInterval(1.01, 0.9, 1.2)}, NOISE)
    assert "not proven to be as fast as openvino" in unproven.text()


class BusyBenchmark:
    """A benchmark in which one plan looks slow in its first comparison round."""

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

    def enter(self, targets):
        self.names += [target.name for target in targets]
        return {}

    def leave(self, name):
        self.names.remove(name)

    def outputs(self, name, names):
        return [np.float32([1.0, 2.0])]

    def profile(self, name):
        raise MeasureError("nothing runs here")

    def eliminate_slow(self, names, seconds_each, on_round=None):
        latencies = {name: latency(self._seconds[name] * self._burden(name)) for name in names}
        self._unlucky -= set(names)
        return latencies

    def compare(self, names, seconds_each, on_round=None):
        return {name: latency(self._seconds[name]) for name in names}

    def _burden(self, name):
        return 100.0 if name in self._unlucky else 1.0


def make_gate(tmp_path):
    return Gate(model=tmp_path / "model.onnx", threads=1, seconds_each=0.1, work_dir=tmp_path)


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


class FailingBenchmark(BusyBenchmark):
    """A benchmark with failing targets: some in comparison rounds, some in the final round."""

    def __init__(self, seconds, in_rounds=(), in_final_round=()):
        super().__init__(seconds, "")
        self._in_rounds, self._in_final_round = in_rounds, in_final_round

    def eliminate_slow(self, names, seconds_each, on_round=None):
        return self._without(super().eliminate_slow(names, seconds_each), self._in_rounds)

    def compare(self, names, seconds_each, on_round=None):
        return self._without(super().compare(names, seconds_each), self._in_final_round)

    def _without(self, latencies, dying):
        for name in set(dying) & set(latencies):
            self.leave(name)
            latencies[name] = Latency(math.nan, reason=f"{name} died while it ran")
        return latencies


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


RELU = {"y": np.float32([1.0, 2.0])}


class BenchmarkWithOutputs(FailingBenchmark):
    """A benchmark in which each target has outputs of its own, one array per call."""

    def __init__(self, seconds, outputs):
        super().__init__(seconds)
        self._outputs = {name: iter(values) for name, values in outputs.items()}

    def outputs(self, name, names):
        return [np.float32(next(self._outputs[name]) if name in self._outputs else RELU["y"])]


def with_original(benchmark, tmp_path, monkeypatch, plans, frameworks=("onnxruntime", "openvino")):
    """Decide where the original file can ship as one of the frameworks."""
    monkeypatch.setattr("collage.verify.gate.InterleavedBenchmark", benchmark)
    executables = []
    for name in plans:
        (tmp_path / name).write_bytes(b"")
        executables.append(PlanExecutable(name, tmp_path / name, 1.0))

    def assemble(baseline):
        name = f"original-{baseline}"
        return PlanExecutable(name, tmp_path / name, 0.0, baseline, original=baseline)

    function = checker(tmp_path, {}).function
    gate = make_gate(tmp_path)
    originals = OriginalPlans(frozenset(frameworks), assemble)
    return gate.decide(function, executables, {}, RELU, originals=originals)


ORIGINALS = {"original-onnxruntime": 1.0, "original-openvino": 2.0}
FRAMEWORKS = {"onnxruntime": 1.0, "openvino": 2.0}


@pytest.mark.parametrize(
    ("seconds", "ships"),
    [(0.9, "mix"), (0.997, "mix"), (1.0, "original-onnxruntime"), (1.01, "original-onnxruntime")],
)
def test_the_original_file_ships_unless_a_plan_is_proven_faster(
    tmp_path, monkeypatch, seconds, ships
):
    benchmark = BusyBenchmark({"mix": seconds, **FRAMEWORKS, **ORIGINALS}, "")
    decision = with_original(benchmark, tmp_path, monkeypatch, ["mix"])
    assert (decision.chosen.name, decision.verdict) == (ships, PASSED)
    assert set(decision.ratios) == set(FRAMEWORKS)
    assert decision.finalists == ("mix",)


def test_numbers_of_the_original_file_need_no_comparison(tmp_path, monkeypatch):
    outputs = {"mix": [[5, 5]], "original-onnxruntime": [[9, 9], [9, 9]]}
    benchmark = BenchmarkWithOutputs({"mix": 0.5, **FRAMEWORKS, **ORIGINALS}, outputs)
    decision = with_original(benchmark, tmp_path, monkeypatch, ["mix"])
    assert (decision.chosen.name, decision.verdict) == ("original-onnxruntime", PASSED)
    assert "mix" in decision.rejected
    np.testing.assert_array_equal(decision.golden.outputs["y"], [9, 9])
    assert decision.golden.deterministic


def test_random_numbers_of_the_original_file_are_noted(tmp_path, monkeypatch):
    drawn = [[1, 2], [3, 4]]
    outputs = {"original-onnxruntime": drawn, "onnxruntime": drawn, "openvino": [[7, 8], [7, 8]]}
    benchmark = BenchmarkWithOutputs({**FRAMEWORKS, **ORIGINALS}, outputs)
    decision = with_original(benchmark, tmp_path, monkeypatch, [])
    assert decision.passed
    assert not decision.golden.deterministic
    assert decision.exempt == {}


def test_a_framework_with_state_does_not_count(tmp_path, monkeypatch):
    """A plan has the numbers of the reference, so none is drawn."""
    outputs = {"onnxruntime": [[1, 2], [3, 4]]}
    benchmark = BenchmarkWithOutputs({"mix": 1.5, **FRAMEWORKS, **ORIGINALS}, outputs)
    decision = with_original(benchmark, tmp_path, monkeypatch, ["mix"])
    assert (decision.chosen.name, decision.verdict) == ("mix", PASSED)
    assert decision.exempt == {"onnxruntime": "its numbers change from call to call"}
    assert "onnxruntime does not count" in decision.reason


def test_a_framework_with_other_numbers_neither_counts_nor_ships(tmp_path, monkeypatch):
    seconds = {"mix": 1.5, **FRAMEWORKS, **ORIGINALS, "openvino": 0.5, "original-openvino": 0.5}
    benchmark = BenchmarkWithOutputs(seconds, {"openvino": [[1, 2.1]] * 2})
    decision = with_original(benchmark, tmp_path, monkeypatch, ["mix"])
    assert (decision.chosen.name, decision.verdict) == ("original-onnxruntime", PASSED)
    assert "error is 45.5 times what is allowed" in decision.exempt["openvino"]
    assert "openvino does not count: its numbers are not those of" in decision.reason


@pytest.mark.parametrize(("other", "exempt"), [([1, 2.1], set()), ([1, 2.3], {"openvino"})])
def test_two_answers_of_the_original_are_named(tmp_path, monkeypatch, other, exempt):
    """As of a quantised model, whose roundings may fall to either side."""
    outputs = {"onnxruntime": [[1, 2.2]] * 2, "openvino": [other] * 2}
    benchmark = BenchmarkWithOutputs({"mix": 0.5, **FRAMEWORKS, **ORIGINALS}, outputs)
    decision = with_original(benchmark, tmp_path, monkeypatch, ["mix"])
    assert (decision.chosen.name, decision.verdict) == ("mix", PASSED)
    assert "with all and without optimisations differ: y by 0.1 of its scale" in decision.reason
    assert set(decision.exempt) == exempt


class SampledBenchmark(BenchmarkWithOutputs):
    """A benchmark whose frameworks differ from the reference on the user's samples only."""

    errors = {"onnxruntime": 0.0, "openvino": 0.3}

    def differences(self, name, samples):
        return "sample set 2, y: wrong numbers" if self.errors.get(name) else ""

    def check(self, name, samples):
        return {"y": self.errors[name]}


@pytest.mark.parametrize(
    ("own", "exempt", "note"), [(0.0, {"openvino"}, ""), (0.4, set(), "y by 0.4 of its scale")]
)
def test_frameworks_are_compared_on_samples_too(tmp_path, monkeypatch, own, exempt, note):
    benchmark = SampledBenchmark({"mix": 0.5, **FRAMEWORKS}, {})
    benchmark.errors = SampledBenchmark.errors | {"onnxruntime": own}
    monkeypatch.setattr("collage.verify.gate.InterleavedBenchmark", benchmark)
    (tmp_path / "mix").write_bytes(b"")
    gate = replace(make_gate(tmp_path), samples=tmp_path / "samples")
    plan = PlanExecutable("mix", tmp_path / "mix", 1.0)
    decision = gate.decide(checker(tmp_path, {}).function, [plan], {}, RELU)
    assert set(decision.exempt) == exempt
    assert note in decision.reason
    assert ("differ" in decision.reason) is bool(note)


def test_a_framework_that_is_not_allowed_does_not_ship(tmp_path, monkeypatch):
    """OpenVINO is the fastest and not among the backends; ONNX Runtime's own run is slower than it."""
    seconds = {"mix": 1.5, "onnxruntime": 2.0, "openvino": 1.0, "original-onnxruntime": 2.0}
    benchmark = BusyBenchmark(seconds, "")
    decision = with_original(benchmark, tmp_path, monkeypatch, ["mix"], ["onnxruntime"])
    assert (decision.chosen.name, decision.verdict) == ("mix", SLOWER)
    assert "slower than openvino" in decision.reason


def test_an_original_that_costs_callers_more_is_not_passed(tmp_path, monkeypatch):
    benchmark = BusyBenchmark({**FRAMEWORKS, **ORIGINALS, "original-onnxruntime": 1.3}, "")
    decision = with_original(benchmark, tmp_path, monkeypatch, [])
    assert (decision.chosen.original, decision.verdict) == ("onnxruntime", SLOWER)
    assert "30.0 % slower than onnxruntime" in decision.reason


def test_where_the_original_does_not_run_a_plan_may_be_as_fast(tmp_path, monkeypatch):
    """Then the allowance is that of a plan that has to ship."""

    class Refusing(BusyBenchmark):
        def enter(self, targets):
            refused = {
                target.name: "no" for target in targets if target.name.startswith("original-")
            }
            super().enter([target for target in targets if target.name not in refused])
            return refused

    benchmark = Refusing({"mix": 1.01, **FRAMEWORKS}, "")
    decision = with_original(benchmark, tmp_path, monkeypatch, ["mix"])
    assert (decision.chosen.name, decision.verdict) == ("mix", PASSED)
