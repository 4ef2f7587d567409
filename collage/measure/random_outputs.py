"""Judgement of random outputs: shape, dtype, finite numbers, and moments.

Two draws differ, so no element is compared with the reference's. The elements of one draw are samples of one
distribution: their mean and spread must be those of the reference, within `MAX_MOMENT_DEVIATION` standard
errors.
"""

from collections.abc import Sequence

import numpy as np

MAX_MOMENT_DEVIATION = 8.0
"""Largest difference of two means in standard errors."""
MIN_ELEMENTS = 64
"""Smallest number of elements whose moments say something."""
MAX_SPREAD_RATIO = 2.0
"""Largest ratio of two spreads."""


def random_difference(
    expected: Sequence[np.ndarray], actual: Sequence[np.ndarray], *, is_one_draw: bool
) -> str:
    """Return the defect of a drawing kernel's outputs in words, or "".

    Args:
        expected: outputs of the reference.
        actual: outputs of the kernel.
        is_one_draw: whether the kernel does nothing but draw; else values depend on other nodes too, and
            even shapes may differ from draw to draw.
    """
    for position, (reference, output) in enumerate(zip(expected, actual, strict=True)):
        compare = _draws_differ if is_one_draw else _kinds_differ
        if reason := compare(reference, output):
            return f"wrong numbers in output {position}: {reason}"
    return ""


def _kinds_differ(expected: np.ndarray, actual: np.ndarray) -> str:
    if expected.dtype != actual.dtype or expected.ndim != actual.ndim:
        return f"{actual.dtype}{actual.shape}, expected {expected.dtype}{expected.shape}"
    if np.isfinite(_wide(expected)).all() and not np.isfinite(_wide(actual)).all():
        return "NaN or infinity where the reference has none"
    return ""


def _draws_differ(expected: np.ndarray, actual: np.ndarray) -> str:
    if expected.shape != actual.shape:
        return f"{actual.dtype}{actual.shape}, expected {expected.dtype}{expected.shape}"
    if (reason := _kinds_differ(expected, actual)) or expected.size < MIN_ELEMENTS:
        return reason
    reference, output = _wide(expected), _wide(actual)
    spreads = float(reference.std()), float(output.std())
    if min(spreads) * MAX_SPREAD_RATIO < max(spreads):
        return f"standard deviation {spreads[1]:.3g}, expected about {spreads[0]:.3g}"
    allowed = MAX_MOMENT_DEVIATION * max(spreads) * float(np.sqrt(2 / expected.size))
    means = float(reference.mean()), float(output.mean())
    if abs(means[0] - means[1]) > allowed:
        return f"mean {means[1]:.3g}, expected about {means[0]:.3g}"
    return ""


def _wide(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64)
