"""What ships when speed fails: the best plan of one toolchain, and the gate says so."""

import math
from pathlib import Path

import pytest

from collage.verify.gate import PlanExecutable, choose
from collage.verify.latency import Latency

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
    # The mix is slower in most rounds; the interleaved rounds of the single one reach the baseline.
    final = {name: latency(1.0) for name in ("onnxruntime", "best-1", "ort-only")}
    slow = tuple(1.03 * value for value in final["onnxruntime"].rounds)
    final["best-1"] = Latency(0.9, 0.9, 0.9, slow)
    chosen, passed, reason = choose([MIX, ALONE], final, ["onnxruntime"])
    assert (chosen.name, passed) == ("ort-only", True)
    assert reason.startswith("the mix is 3.0 % slower than onnxruntime")


def test_a_baseline_that_did_not_run_refuses_nothing():
    final = {"best-1": latency(1.0), "openvino": Latency(math.nan, reason="no such operator")}
    assert choose([MIX], final, ["openvino"])[1]
