"""Which plans and baselines have right numbers."""

from dataclasses import replace
from pathlib import Path

from collage.errors import MeasureError
from collage.verify.plan_executable import PlanExecutable
from tests.verify.fake_benchmarks import BenchmarkWithErrors, checker


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
