"""Numerical check of a kernel's outputs against the reference.

The tolerances are those of `collage.runtime.tolerances`. NaN and infinities must be in the same places.

A kernel in reduced precision has other outputs by design. Their distance from the reference is its error
(`collage.runtime.precision`), weighed against the budget by the search. Here such a kernel is refused only
if its outputs cannot be compared, or if the error is too large for rounding.
"""

import math
from collections.abc import Mapping, Sequence, Set

import numpy as np

from collage.runtime.precision import output_error
from collage.runtime.tolerances import MAX_STEP_SHARE, float_tolerance, integer_step

HIGHEST_ERROR = 0.5
"""Largest error of rounding, as a share of the output's scale; above it a reduced kernel is wrong."""

ROUNDING_STEPS = 0.1
"""Largest error of floats between two steps, in steps: less is no other rounding."""


def reduced_difference(
    expected: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    probabilities: Set[int] = frozenset(),
) -> tuple[str, float]:
    """Return the defect of a reduced kernel's outputs in words, or "", and the largest error.

    Args:
        probabilities: positions of outputs with a scale of 1.
    """
    largest = 0.0
    for position, (reference, output) in enumerate(zip(expected, actual, strict=True)):
        error = output_error(reference, output, probability=position in probabilities)
        if math.isinf(error):
            return f"output {position} has other integers, NaN, infinities or another shape", 0.0
        largest = max(largest, error)
    if largest > HIGHEST_ERROR:
        return f"wrong numbers: the error is {largest:.3g} of the output's scale", 0.0
    return "", largest


def difference(
    expected: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    *,
    quantised: bool = False,
    steps: Mapping[int, np.ndarray] = {},
) -> str:
    """Return the defect of `actual` in words, or "".

    Args:
        expected: outputs of the reference.
        actual: outputs of the kernel.
        quantised: whether the region rounds to small integers; default False.
        steps: quantisation steps by position of the output, in the shape of the output or for all of its
            elements; default none.
    """
    for position, (reference, output) in enumerate(zip(expected, actual, strict=True)):
        reason = (
            _difference(reference, output, quantised)
            if position not in steps or _type_of(reference) != _type_of(output)
            else _difference_in_steps(reference, output, steps[position])
        )
        if reason:
            return f"wrong numbers in output {position}: {reason}"
    return ""


def _type_of(array: np.ndarray) -> tuple[np.dtype, tuple[int, ...]]:
    return array.dtype, array.shape


def _difference_in_steps(expected: np.ndarray, actual: np.ndarray, step: np.ndarray) -> str:
    """Compare in steps: at most one, in at most `MAX_STEP_SHARE` of the elements, or in one of few."""
    wide = np.promote_types(expected.dtype, np.float64)
    if not np.isfinite(actual).all():
        return "NaN or infinity where the reference has none"
    distance = np.abs(actual.astype(wide) - expected.astype(wide)) / step
    count = int(np.count_nonzero(distance > ROUNDING_STEPS))
    if far := int(np.count_nonzero(distance > 1 + ROUNDING_STEPS)):
        return f"{far} of {expected.size} elements are off by more than one step"
    if count > max(1, MAX_STEP_SHARE * expected.size):
        return f"{count} of {expected.size} elements are off by one step"
    return ""


def _difference(expected: np.ndarray, actual: np.ndarray, quantised: bool) -> str:
    if _type_of(expected) != _type_of(actual):
        return f"{actual.dtype}{actual.shape}, expected {expected.dtype}{expected.shape}"
    if tolerance := float_tolerance(expected.dtype, quantised=quantised):
        return _float_difference(expected, actual, tolerance)
    if step := integer_step(expected.dtype, quantised=quantised):
        distance = np.abs(expected.astype(np.int16) - actual.astype(np.int16))
        wrong = int(np.count_nonzero(distance > step))
    else:
        wrong = int(np.count_nonzero(expected != actual))
    return f"{wrong} of {expected.size} elements differ" if wrong else ""


def _float_difference(
    expected: np.ndarray, actual: np.ndarray, tolerance: tuple[float, float]
) -> str:
    finite = np.isfinite(expected)
    if finite.all():
        reference, output = expected, actual
    elif np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
        reference, output = expected[finite], actual[finite]
    else:
        return "its NaN and infinities are not those of the reference"
    if not np.isfinite(output).all():
        return "NaN or infinity where the reference has none"
    if not reference.size:
        return ""
    wide = np.promote_types(reference.dtype, np.float32)
    magnitude = np.abs(reference.astype(wide))
    rtol, atol = tolerance
    allowance = rtol * magnitude + atol * magnitude.max() + 1e-30
    error = float((np.abs(output.astype(wide) - reference) / allowance).max())
    return f"error is {error:.1f} times what is allowed" if error > 1 else ""
