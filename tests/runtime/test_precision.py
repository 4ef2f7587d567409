"""The one definition of an output's error, and what the processor is asked."""

import math

import numpy as np
import pytest

from collage.runtime.cpu import bf16_reason, cpu_flags
from collage.runtime.precision import output_error

NAN, INF, MASK = math.nan, math.inf, float(np.finfo(np.float32).min)


@pytest.mark.parametrize(
    ("expected", "actual", "error"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.2, -4.0], 0.05),  # of the output's scale, not of the element
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 1e-9], INF),
        ([1.0, NAN, INF], [1.0, NAN, INF], 0.0),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([2.0, MASK], [2.2, -INF], 0.1),  # a mask that rounds to infinity hides no other error
        ([2.0, MASK], [2.0, 0.0], INF),
        ([], [], 0.0),
    ],
)
def test_the_error_is_the_largest_deviation_in_the_output_scale(expected, actual, error):
    arrays = np.float32(expected), np.float32(actual)
    assert output_error(*arrays) == pytest.approx(error, rel=1e-3)


def test_probabilities_have_a_scale_of_one():
    pair = np.float32([1e-5, 2e-5]), np.float32([1e-5, 4e-5])
    assert output_error(*pair) == pytest.approx(1.0, rel=1e-3)
    assert output_error(*pair, probability=True) == pytest.approx(2e-5, rel=1e-3)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_must_be_equal(dtype):
    reference, actual = np.array([0, 1, 1]).astype(dtype), np.array([0, 1, 0]).astype(dtype)
    assert output_error(reference, reference.copy()) == 0.0
    assert output_error(reference, actual) == INF


def test_another_shape_or_type_cannot_be_compared():
    reference = np.zeros(4, np.float32)
    assert output_error(reference, np.zeros(5, np.float32)) == INF
    assert output_error(reference, np.zeros(4, np.float64)) == INF


@pytest.mark.parametrize(
    ("flags", "offered"),
    [("fpu avx512f avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx512f avx512_fp16", False)],
)
def test_bf16_needs_instructions_for_it(flags, offered, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr("collage.runtime.cpu.CPUINFO", tmp_path / "cpuinfo")
    assert cpu_flags() == set(flags.split())
    assert (bf16_reason() == "") is offered
    assert offered or "avx512_bf16" in bf16_reason()


def test_a_kernel_that_names_no_flags_has_none(tmp_path):
    assert cpu_flags(tmp_path / "missing") == set()
