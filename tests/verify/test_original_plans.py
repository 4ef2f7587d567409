"""The original file as a plan: when it ships, and which frameworks count."""

from dataclasses import replace

import numpy as np
import pytest

from collage.verify.decision import OriginalPlans
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import Verdict
from tests.verify.fake_benchmarks import (
    RELU,
    BenchmarkWithOutputs,
    BusyBenchmark,
    checker,
    make_gate,
)

PASSED, SLOWER = Verdict.NOT_SLOWER, Verdict.SLOWER


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
