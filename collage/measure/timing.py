"""Time a kernel as the model will meet it: cold weights, inputs just written, median with interval.

Hot loops flatter: sums of hot isolated timings were 30 % too low and led to slower plans. So before
every timed call a buffer as large as what the model touches between two calls is swept, and the
inputs are written anew, as their producers would have done.
"""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from collage.cost import Cost

MIN_REPEATS, MAX_REPEATS = 5, 60
GOOD_INTERVAL = 0.03
TIME_LIMIT_S = 0.25


class ColdTimer:
    """Times calls after sweeping `sweep_bytes` of memory."""

    def __init__(self, sweep_bytes: int) -> None:
        self._junk = np.zeros(sweep_bytes // 4, np.float32)

    def measure(self, call: Callable[[], object], refresh: Callable[[], None]) -> Cost:
        """Return the cost of `call`; `refresh` writes its inputs.

        Repeats until the 95 % interval of the median is within 3 %, or for a quarter of a second
        (at least five times); unstable means a wide interval.
        """
        samples: list[float] = []
        start = time.monotonic()
        while len(samples) < MAX_REPEATS:
            self._junk += 1.0
            refresh()
            began = time.perf_counter_ns()
            call()
            samples.append((time.perf_counter_ns() - began) * 1e-9)
            if len(samples) < MIN_REPEATS:
                continue
            low, middle, high = median_interval(samples)
            if high - low <= GOOD_INTERVAL * middle or time.monotonic() - start > TIME_LIMIT_S:
                break
        low, middle, high = median_interval(samples)
        return Cost(middle, low, high, tuple(round(sample, 9) for sample in samples))


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return (low, median, high): the 95 % interval by order statistics."""
    ordered = sorted(samples)
    count = len(ordered)
    spread = 0.98 * math.sqrt(count)
    middle = (count - 1) / 2
    low = ordered[max(0, math.floor(middle - spread))]
    high = ordered[min(count - 1, math.ceil(middle + spread))]
    return low, float(np.median(ordered)), high
