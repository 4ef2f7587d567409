import numpy as np
import pytest

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
