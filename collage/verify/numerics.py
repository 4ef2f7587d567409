"""Are two sets of outputs the same numbers? Tolerances by dtype, scaled by each output's magnitude.

A float output passes when |error| <= RTOL * |expected| + ATOL * max|expected|: rounding grows with
the magnitude of the values that were summed, not with the one element that cancelled. Integers and
booleans must be equal. A saturated softmax hides errors (everything is 0 or 1), so its outputs are
compared once more as logarithms, which are the logits up to a constant.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

TOLERANCE: Mapping[str, tuple[float, float]] = {
    "float64": (1e-3, 1e-4),
    "float32": (1e-3, 1e-4),
    "float16": (1e-2, 5e-3),
    "bfloat16": (5e-2, 2e-2),
}
LOG_TOLERANCE = 2e-2
LOG_FLOOR = 1e-30


@dataclass(frozen=True)
class OutputCheck:
    """Result for one output: `error` is the largest |error| over its allowance (at most 1 passes)."""

    name: str
    error: float
    reason: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason


def compare_outputs(
    expected: Mapping[str, np.ndarray],
    actual: Mapping[str, np.ndarray],
    softmax_outputs: frozenset[str] = frozenset(),
) -> list[OutputCheck]:
    """Compare every expected output; a missing one fails."""
    checks = []
    for name, reference in expected.items():
        if name not in actual:
            checks.append(OutputCheck(name, np.inf, "missing"))
            continue
        check = compare_tensor(name, reference, actual[name])
        if check.passed and name in softmax_outputs:
            check = _compare_logarithms(name, reference, actual[name])
        checks.append(check)
    return checks


def compare_tensor(name: str, expected: np.ndarray, actual: np.ndarray) -> OutputCheck:
    """Compare two tensors of one name."""
    if expected.shape != actual.shape:
        return OutputCheck(name, np.inf, f"shape {actual.shape}, expected {expected.shape}")
    if expected.dtype != actual.dtype:
        return OutputCheck(name, np.inf, f"dtype {actual.dtype}, expected {expected.dtype}")
    if str(expected.dtype) not in TOLERANCE:
        differing = int(np.count_nonzero(expected != actual))
        reason = f"{differing} of {expected.size} elements differ" if differing else ""
        return OutputCheck(name, float(differing), reason)
    tolerance = TOLERANCE[str(expected.dtype)]
    return _compare_floats(name, expected.astype(np.float64), actual.astype(np.float64), tolerance)


def _compare_floats(
    name: str, expected: np.ndarray, actual: np.ndarray, tolerance: tuple[float, float]
) -> OutputCheck:
    rtol, atol = tolerance
    finite = np.isfinite(expected)
    same = np.array_equal(
        np.nan_to_num(expected[~finite], nan=7.0), np.nan_to_num(actual[~finite], nan=7.0)
    )
    if not same or not np.isfinite(actual[finite]).all():
        return OutputCheck(name, np.inf, "NaN or infinity where the reference has none")
    if not finite.any():
        return OutputCheck(name, 0.0)
    reference = np.abs(expected[finite])
    allowance = rtol * reference + atol * reference.max() + 1e-30
    error = float((np.abs(actual[finite] - expected[finite]) / allowance).max())
    return OutputCheck(name, error, _too_large(error, 1.0))


def _compare_logarithms(name: str, expected: np.ndarray, actual: np.ndarray) -> OutputCheck:
    seen = expected > LOG_FLOOR
    if not seen.any():
        return OutputCheck(name, 0.0)
    difference = np.log(np.maximum(actual[seen], LOG_FLOOR)) - np.log(expected[seen])
    error = float(np.abs(difference).max() / LOG_TOLERANCE)
    return OutputCheck(name, error, _too_large(error, 1.0))


def _too_large(error: float, limit: float) -> str:
    return f"error is {error:.1f} times what is allowed" if error > limit else ""
