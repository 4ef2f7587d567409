"""What ships when speed fails: the best plan of one toolchain."""

from dataclasses import replace
from pathlib import Path

import pytest

from collage.verify.final_round import Judgement, judge_until_proven, plans_to_judge, reason_of
from collage.verify.interleaved_benchmark import latency_of
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import NOISE, RatioInterval, Verdict
from tests.verify.rounds import compared

PASSED, SLOWER = Verdict.NOT_SLOWER, Verdict.SLOWER


MIX = PlanExecutable("best-1", Path("best-1.so"), 1.0)


ALONE = PlanExecutable("ort-only", Path("ort.so"), 1.0, "onnxruntime")


SLOW_ALONE = PlanExecutable("tvm-only", Path("tvm.so"), 1.0, "tvm")


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


def test_the_reason_says_equal_or_within_the_tolerance():
    judgement = Judgement(PASSED, {}, 0.0)
    assert "equal to" in reason_of(MIX, judgement)
    assert "within the tolerance of" in reason_of(replace(MIX, reduced=True), judgement)
    slower = Judgement(SLOWER, {"onnxruntime": RatioInterval(1.03, 1.025, 1.04)}, NOISE)
    words = reason_of(ALONE, judgement, slower.text())
    assert words.startswith("the mix is 3.0 % slower than onnxruntime on the original file, so ")
    unproven = Judgement(Verdict.UNPROVEN, {"openvino": RatioInterval(1.01, 0.9, 1.2)}, NOISE)
    assert "not proven to be as fast as openvino" in unproven.text()
