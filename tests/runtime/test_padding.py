"""Padding: which function takes which shapes, and what callers get back."""

import numpy as np
import pytest

from collage.errors import InputError
from collage.runtime.padding import MAX_KEPT_WAYS, Crop, PaddedAxis, Padding, cropped

FUNCTIONS = {
    "main": {"x": (1, 8), "mask": (1, 8)},
    "main_1": {"x": (1, 16), "mask": (1, 16)},
    "main_2": {"x": (2, 16), "mask": (2, 16)},
}
DTYPES = {"x": "float32", "mask": "int64"}
AXES = (
    PaddedAxis("x", 1, 0.5, (Crop("y", 1), Crop("half", 0, divisor=2))),
    PaddedAxis("mask", 1),
)


@pytest.fixture
def padding():
    return Padding(AXES, FUNCTIONS, DTYPES)


def shapes(rows, columns, mask=None):
    return {"x": (rows, columns), "mask": (rows, mask or columns)}


WAYS = [
    (shapes(1, 5), "main"),
    (shapes(1, 8), "main"),
    (shapes(1, 9), "main_1"),
    (shapes(2, 3), "main_2"),
    (shapes(1, 5, mask=12), "main_1"),
    (shapes(1, 17), None),
    (shapes(3, 5), None),
    (shapes(1, 0, mask=5), None),
    ({"x": (1, 5)}, None),
    ({"x": (1, 5, 1), "mask": (1, 5)}, None),
    ({"x": (1, 5), "mask": (1, 5), "z": ()}, None),
]


@pytest.mark.parametrize(("given_shapes", "function"), WAYS)
def test_the_nearest_larger_set_is_taken(padding, given_shapes, function):
    way = padding.find(given_shapes)
    assert (way.function if way else None) == function
    assert padding.find(given_shapes) is way


def test_added_elements_have_the_declared_value(padding):
    for columns in (5, 3, 7):
        feeds = {"x": np.ones((1, columns), np.float32), "mask": np.ones((1, columns), np.int64)}
        way = padding.find({name: array.shape for name, array in feeds.items()})
        padded = padding.padded(feeds, way)
        np.testing.assert_array_equal(padded["x"], [[1] * columns + [0.5] * (8 - columns)])
        np.testing.assert_array_equal(padded["mask"], [[1] * columns + [0] * (8 - columns)])


def test_outputs_are_cropped_and_the_callers_own(padding):
    way = padding.find(shapes(1, 5))
    y, half, other = np.arange(8).reshape(1, 8), np.arange(4), np.arange(3)
    outputs = cropped({"y": y, "half": half, "other": other}, way)
    np.testing.assert_array_equal(outputs["y"], [[0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(outputs["half"], [0, 1, 2])
    assert outputs["other"] is other
    assert outputs["y"].flags.c_contiguous
    assert not np.shares_memory(outputs["y"], y)


def test_other_dtypes_are_not_converted_unnoticed(padding):
    feeds = {"x": np.ones((1, 5), np.float32), "mask": np.ones((1, 5), np.int64)}
    padding.check(feeds)
    with pytest.raises(InputError, match="'x' has dtype float64; expected float32"):
        padding.check(feeds | {"x": np.ones((1, 5))})


def test_kept_ways_are_bounded(padding):
    for columns in range(1, MAX_KEPT_WAYS + 50):
        padding.find(shapes(1, columns))
    assert len(padding._ways) <= MAX_KEPT_WAYS
