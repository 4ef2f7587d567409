"""Is a plan as fast as a baseline? What the rounds of a comparison prove, and what they do not.

The burden of proof lies with the plan. Each round gives one ratio of the plan's time to the baseline's;
the interval of their median decides: *not slower* where its upper end is within the allowance, *slower*
where its lower end is beyond, else *unproven*, and more rounds are run. Three things make an interval
tighter than the truth, and each is paid for here:

* few rounds: the ends are order statistics, so that no shape of the noise is assumed, and where there
  are not rounds enough for the level there are no ends at all (0 and infinity);
* rounds that are alike because they follow each other (another guest comes and goes): the number of
  rounds that are worth as much as independent ones is estimated from the series of signs around the
  median, the first non-negative autocorrelations summed as in Geyer's initial sequence;
* looking until it fits: the comparison is judged at `LOOKS` and never between them, and each interval is
  as wide as makes all of them right together in 95 % of comparisons (Bonferroni).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist, median

NOISE = 0.02
"""Allowance where nothing else can ship: a difference that no user notices."""
LOOKS = (1, 2, 4, 10)
"""When a comparison is judged, in times of `--verify` that every benchmark target has run."""
LEVEL = 0.95
"""Of the intervals at all looks together."""
MIN_INTERVAL_ROUNDS = 10
"""Rounds below which no interval has ends."""
_QUANTILE = NormalDist().inv_cdf(1 - (1 - LEVEL) / (2 * len(LOOKS)))


class Verdict(StrEnum):
    """What a comparison with a baseline has proven."""

    NOT_SLOWER = "not slower"
    SLOWER = "slower"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class RatioInterval:
    """Median of a plan's time over a baseline's, round by round, and its interval."""

    ratio: float
    low: float
    high: float

    def verdict(self, allowance: float) -> Verdict:
        """Judge it; `allowance` is the share by which the plan may be slower.

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
        plan: its seconds, one a round, in the order of time.
        baseline: its seconds in the same rounds.
    """
    ratios = [above / below for above, below in zip(plan, baseline, strict=True)]
    if not ratios:
        return RatioInterval(math.nan, 0.0, math.inf)
    middle = median(ratios)
    count = len(ratios)
    signs = [
        0.0 if math.isclose(ratio, middle) else math.copysign(1, ratio - middle) for ratio in ratios
    ]
    spread = _QUANTILE * math.sqrt(count * _inflation(signs)) / 2 + 0.5
    first = math.floor((count - 1) / 2 - spread)
    if count < MIN_INTERVAL_ROUNDS or first < 0:
        return RatioInterval(middle, 0.0, math.inf)
    ordered = sorted(ratios)
    return RatioInterval(middle, ordered[first], ordered[count - 1 - first])


def _inflation(signs: Sequence[float]) -> float:
    """Return how many rounds are worth one that does not depend on others; at least 1."""
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
