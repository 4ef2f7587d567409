import numpy as np
import pytest

from collage.measure.numerics import difference
from collage.verify import compare_outputs


def check(expected, actual, softmax=False):
    names = frozenset(["y"]) if softmax else frozenset()
    return compare_outputs({"y": np.asarray(expected)}, {"y": np.asarray(actual)}, names)[0]


@pytest.mark.parametrize(
    ("expected", "actual", "passes"),
    [
        (np.float32([1, 100]), np.float32([1.0001, 100]), True),
        (np.float32([1, 100]), np.float32([1.2, 100]), False),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), True),
        (np.float32([1, 2]), np.float32([1, np.nan]), False),
        (np.float32([np.inf]), np.float32([-np.inf]), False),
        (np.float16([1.0]), np.float16([1.01]), True),
        (np.int64([1, 2]), np.int64([1, 3]), False),
        (np.array([True]), np.array([True]), True),
        (np.float32([[1]]), np.float32([1]), False),
        (np.float32([1]), np.float64([1]), False),
        (np.float32([]), np.float32([]), True),
    ],
)
def test_tolerance_by_dtype(expected, actual, passes):
    assert check(expected, actual).passed is passes


def test_a_missing_output_fails():
    assert not compare_outputs({"y": np.zeros(1)}, {})[0].passed


def test_a_saturated_softmax_cannot_hide_wrong_logits():
    logits, wrong = np.float64([40, 10, 0]), np.float64([40, 20, 0])
    softmax = [np.exp(x - 40) / np.exp(x - 40).sum() for x in (logits, wrong)]
    expected, actual = (np.float32(x) for x in softmax)
    assert check(expected, actual).passed
    assert not check(expected, actual, softmax=True).passed


@pytest.mark.parametrize(
    ("expected", "actual", "passes"),
    [
        (np.int8([1, 2]), np.int8([1, 3]), True),
        (np.uint8([0, 255]), np.uint8([0, 253]), False),
        (np.int32([1, 2]), np.int32([1, 3]), False),
        (np.array([True]), np.array([False]), False),
        (np.float32([1, 100]), np.float32([1, 101]), True),
        (np.float32([1, 100]), np.float32([1, 110]), False),
    ],
)
def test_a_quantised_graph_may_differ_by_one_step(expected, actual, passes):
    checks = compare_outputs({"y": expected}, {"y": actual}, quantised=True)
    assert checks[0].passed is passes


def off_by_steps(step, counts, dtype=np.float32, size=300):
    """Compare an array with itself, off by N steps in as many elements as `counts` says."""
    expected = (np.arange(size) % 50 * step).astype(dtype)
    actual = expected.copy()
    for distance, count in counts.items():
        actual[:count] += np.asarray(distance * step, dtype)
    return difference([expected], [actual], quantised=True, steps={0: np.asarray(step)})


@pytest.mark.parametrize(("step", "dtype"), [(0.25, np.float32), (1, np.int8), (0.5, np.float16)])
@pytest.mark.parametrize(
    ("counts", "defect"),
    [
        ({}, ""),
        ({1: 3}, ""),
        ({1: 4}, "4 of 300 elements are off by one step"),
        ({2: 1}, "1 of 300 elements are off by more than one step"),
    ],
)
def test_few_elements_of_a_kernel_may_be_off_by_one_step(step, dtype, counts, defect):
    assert off_by_steps(step, counts, dtype).removeprefix("wrong numbers in output 0: ") == defect


def test_one_element_of_few_may_be_off_by_one_step():
    assert not off_by_steps(0.5, {1: 1}, size=10)
    assert off_by_steps(0.5, {1: 2}, size=10)


def test_rounding_of_floats_is_no_step():
    assert not off_by_steps(0.5, {0.01: 300})
    assert off_by_steps(0.5, {0.2: 300})


def test_steps_cannot_hide_nan_or_another_shape():
    ones = np.ones(4, np.float32)
    steps = {0: np.ones(())}
    assert "NaN" in difference([ones], [ones * np.nan], quantised=True, steps=steps)
    assert "expected" in difference([ones], [ones[:1]], quantised=True, steps=steps)
    assert "expected" in difference([ones], [ones.astype(np.float64)], quantised=True, steps=steps)
