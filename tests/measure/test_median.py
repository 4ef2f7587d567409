from math import comb

import pytest

from collage.measure.median import median_interval


def test_intervals_come_from_order_statistics():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([float(n) for n in range(10)]) == (1.0, 8.0)


@pytest.mark.parametrize("count", [*range(6, 60), 99, 100, 200, 1001])
def test_an_interval_holds_the_median_with_95_percent(count):
    """Each sample lies below the median with probability 1/2, so ranks are binomial."""

    def coverage(rank: int) -> float:
        return 1 - 2 * sum(comb(count, below) for below in range(rank + 1)) / 2**count

    low, high = median_interval([float(rank) for rank in range(count)])
    assert low + high == count - 1
    assert coverage(int(low)) >= 0.95 > coverage(int(low) + 1)
