"""Verdict on a plan's speed against a baseline, from the rounds of a comparison.

The burden of proof lies with the plan. Each round gives one ratio of the plan's time to the baseline's. The
interval of their median decides: *not slower* if its upper end is within the allowance, *slower* if its
lower end is beyond, else *unproven*, and more rounds are run. Three effects make a naive interval too narrow:

* few rounds: the ends are order statistics, without an assumption on the noise. With too few rounds for the
  level the ends are those of Chebyshev's inequality, which decides only ratios far from 1; below
  `MIN_INTERVAL_ROUNDS` rounds the interval is unbounded (0 to infinity);
* correlated rounds (another guest comes and goes): the effective number of independent rounds is estimated
  from the signs around the median, with the first positive autocorrelations summed as in Geyer's initial
  sequence;
* repeated looks: the comparison is judged only at `LOOKS`, and each interval is wide enough that all looks
  together are right in 95 % of comparisons (Bonferroni).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist, fmean, median

NOISE = 0.02
"""Allowance where nothing else can ship, as a share: no user notices such a difference."""
LOOKS = (1, 2, 4, 10)
"""Looks at a comparison, in multiples of `--verify` per benchmark target."""
LEVEL = 0.95
"""Confidence of the intervals at all looks together."""
MIN_INTERVAL_ROUNDS = 10
"""Number of rounds below which an interval is unbounded."""
_QUANTILE = NormalDist().inv_cdf(1 - (1 - LEVEL) / (2 * len(LOOKS)))
_CHEBYSHEV = math.sqrt(len(LOOKS) / (1 - LEVEL))
"""Standard errors on both sides of a mean within which it is in all looks, whatever its distribution."""


class Verdict(StrEnum):
    """Verdict of a comparison with a baseline."""

    NOT_SLOWER = "not slower"
    SLOWER = "slower"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class RatioInterval:
    """Median ratio of a plan's time to a baseline's, round by round, with its interval."""

    ratio: float
    low: float
    high: float

    def verdict(self, allowance: float) -> Verdict:
        """Return the verdict; `allowance` is the share by which the plan may be slower.

        >>> RatioInterval(0.9, 0.88, 0.93).verdict(0.0)
        <Verdict.NOT_SLOWER: 'not slower'>
        >>> RatioInterval(0.99, 0.9, 1.1).verdict(0.02)
        <Verdict.UNPROVEN: 'unproven'>
        """
        if self.high <= 1 + allowance:
            return Verdict.NOT_SLOWER
        return Verdict.SLOWER if self.low > 1 + allowance else Verdict.UNPROVEN


def ratio_interval(plan: Sequence[float], baseline: Sequence[float]) -> RatioInterval:
    """Return the median of the round-by-round ratio and its interval.

    Args:
        plan: seconds of the plan, one per round, in the order of time.
        baseline: seconds of the baseline in the same rounds.
    """
    ratios = [above / below for above, below in zip(plan, baseline, strict=True)]
    if not ratios:
        return RatioInterval(math.nan, 0.0, math.inf)
    middle = median(ratios)
    count = len(ratios)
    signs = [
        0.0 if math.isclose(ratio, middle) else math.copysign(1, ratio - middle) for ratio in ratios
    ]
    inflation = _inflation(signs)
    spread = _QUANTILE * math.sqrt(count * inflation) / 2 + 0.5
    first = math.floor((count - 1) / 2 - spread)
    if count < MIN_INTERVAL_ROUNDS:
        return RatioInterval(middle, 0.0, math.inf)
    if first < 0:
        return _chebyshev_interval(ratios, middle, count / inflation)
    ordered = sorted(ratios)
    return RatioInterval(middle, ordered[first], ordered[count - 1 - first])


def _chebyshev_interval(
    ratios: Sequence[float], middle: float, independent: float
) -> RatioInterval:
    """Return the interval of Chebyshev's inequality for the geometric mean, widened to the median.

    Args:
        ratios: ratios of the rounds.
        middle: their median.
        independent: effective number of independent rounds. It counts as 2 at least: however alike the
            rounds are, a ratio nine standard deviations away from all of them is not theirs.
    """
    if min(ratios) <= 0:
        return RatioInterval(middle, 0.0, math.inf)
    logarithms = [math.log(ratio) for ratio in ratios]
    centre = fmean(logarithms)
    variance = fmean((value - centre) ** 2 for value in logarithms)
    # Of n independent rounds the variance around their own mean is low by (n - 1) / n.
    half = _CHEBYSHEV * math.sqrt(variance / (max(independent, 2.0) - 1))
    low, high = math.exp(centre - half), math.exp(centre + half)
    return RatioInterval(middle, min(low, middle), max(high, middle))


def _inflation(signs: Sequence[float]) -> float:
    """Return the number of rounds per independent round; at least 1."""
    count = len(signs)
    variance = sum(sign * sign for sign in signs)
    if not variance:
        return 1.0

    def correlation(lag: int) -> float:
        products = sum(a * b for a, b in zip(signs, signs[lag:], strict=False))
        return (
            products / variance + lag / count
        )  # an estimate around the sample's own median is low

    total = 0.0
    for lag in range(1, count - 1, 2):
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= 0:
            break
        total += pair
    return max(1.0, 1 + 2 * total)
