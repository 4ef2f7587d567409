"""Outputs that depend on random numbers: compared by their moments over many runs.

Every element of such an output has a mean and a variance over runs. Those of the plan and of the original are
compared element by element: the difference of the means, in standard errors, is a number of order 1 where
both draw from one distribution, whatever its shape. Its root mean square over all elements is judged, and the
ratio of the mean variances. An output whose shape is drawn too is judged by dtype and rank.

Each region of a plan is also judged exactly, on the original's values inside; only a draw itself is not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RUNS = 32
MAX_DEVIATION = 6.0
"""Largest root mean square of the means' differences, in standard errors."""
MAX_VARIANCE_RATIO = 5.0
"""Largest ratio of two mean variances: 32 runs of one number stay below with a probability of 0.99998."""
ROUNDING = 1e-3
"""Difference that counts as rounding, as a share of the largest mean."""

RunOnce = Callable[[], Sequence[np.ndarray]]
"""One run: the outputs in the function's order."""


@dataclass(frozen=True)
class Moments:
    """Mean and variance of every element of an output over `RUNS` runs.

    Attributes:
        dtype: numpy's name of the element type.
        rank: number of dimensions.
        mean: means in float64; None where the shape is drawn too.
        variance: variances in float64; None where the shape is drawn too.
    """

    dtype: str
    rank: int
    mean: np.ndarray | None = None
    variance: np.ndarray | None = None

    @property
    def varies(self) -> bool:
        """Whether the output differs from run to run by more than rounding; False for a drawn shape."""
        if self.mean is None or self.variance is None:
            return False
        rounding = ROUNDING * float(np.abs(self.mean).max(initial=0.0))
        return float(np.sqrt(self.variance).max(initial=0.0)) > rounding


def measure_moments(run: RunOnce, names: Sequence[str]) -> dict[str, Moments]:
    """Run several times and return the moments of every output by name."""
    sums: list[np.ndarray | None] = []
    squares: list[np.ndarray] = []
    first = run()
    for array in first:
        wide = array.astype(np.float64)
        sums.append(wide)
        squares.append(wide * wide)
    for _ in range(RUNS - 1):
        for place, array in enumerate(run()):
            total = sums[place]
            if total is None or total.shape != array.shape:
                sums[place] = None
                continue
            wide = array.astype(np.float64)
            total += wide
            squares[place] += wide * wide
    return {
        name: _moments(array, total, square)
        for name, array, total, square in zip(names, first, sums, squares, strict=True)
    }


def _moments(array: np.ndarray, total: np.ndarray | None, square: np.ndarray) -> Moments:
    if total is None:
        return Moments(str(array.dtype), array.ndim)
    mean = total / RUNS
    variance = np.maximum(square / RUNS - mean * mean, 0) * RUNS / (RUNS - 1)
    return Moments(str(array.dtype), array.ndim, mean, variance)


def compare_moments(expected: Mapping[str, Moments], actual: Mapping[str, Moments]) -> str:
    """Return the difference of random outputs in words, "" where they agree."""
    reasons = {name: _difference(right, actual[name]) for name, right in expected.items()}
    return ", ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)


def _difference(expected: Moments, actual: Moments) -> str:
    if (expected.dtype, expected.rank) != (actual.dtype, actual.rank):
        return f"{actual.dtype} of rank {actual.rank}, not {expected.dtype} of rank {expected.rank}"
    if expected.mean is None or actual.mean is None:
        return "" if expected.mean is actual.mean else "its shape is drawn in one of both only"
    assert expected.variance is not None  # it comes with the mean
    assert actual.variance is not None
    if expected.mean.shape != actual.mean.shape:
        return f"shape {actual.mean.shape}, not {expected.mean.shape}"
    finite = np.isfinite(expected.mean)
    if not np.array_equal(finite, np.isfinite(actual.mean)):
        return "its NaN and infinities are not those of the original"
    if not finite.any():
        return ""
    means = expected.mean[finite], actual.mean[finite]
    variances = expected.variance[finite], actual.variance[finite]
    rounding = ROUNDING * float(np.abs(means[0]).max()) + 1e-30
    error = np.sqrt((variances[0] + variances[1]) / RUNS) + rounding
    deviation = float(np.sqrt(np.mean(((means[0] - means[1]) / error) ** 2)))
    if deviation > MAX_DEVIATION:
        return f"means over {RUNS} runs differ by {deviation:.1f} standard errors"
    spreads = [float(np.mean(variance)) + rounding**2 for variance in variances]
    if max(spreads) > MAX_VARIANCE_RATIO * min(spreads):
        return f"variance over {RUNS} runs is {spreads[1]:.3g}, not about {spreads[0]:.3g}"
    return ""
