"""The 95 % confidence interval of a median, for costs and for the rounds of the gate."""

import math
from collections.abc import Sequence
from functools import cache


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, from order statistics.

    Fewer than six samples cannot give 95 %: then it is their range.
    """
    ordered = sorted(samples)
    skip = _skipped(len(ordered))
    return ordered[skip], ordered[-1 - skip]


@cache
def _skipped(count: int) -> int:
    """Return the largest number of samples to skip at each end with both tails within 2.5 %."""
    tail, skip = 0.0, 0
    for position in range(count // 2):
        tail += math.comb(count, position) / 2**count
        if tail > 0.025:
            break
        skip = position
    return skip
