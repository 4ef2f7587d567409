"""ErrorCalibration of expected errors by plans that ran whole.

Expected errors are sums over regions (`collage.search.reduced_precision`); the gate measures the true error
of each tried plan. Both together give the highest expected error that is probably within the tolerance.
"""

import math
from dataclasses import dataclass, field

SAFE = 0.9
"""Share of the tolerance that a calibrated plan aims at."""


@dataclass
class ErrorCalibration:
    """Expected and measured errors of the tried plans.

    Attributes:
        tolerance: largest relative error of the outputs.
        tried: pairs of expected and measured error, +inf for different integers.
    """

    tolerance: float
    tried: list[tuple[float, float]] = field(default_factory=list)

    def add(self, expected: float, error: float) -> None:
        """Add one tried plan."""
        self.tried.append((expected, error))

    def limit(self) -> float | None:
        """Return the highest expected error that may be within the tolerance.

        None while no plan was beyond the tolerance: expected errors then limit nothing. The limit is the
        geometric mean between a plan beyond the tolerance and the closest plan within it; without such a plan
        it is in proportion to the tolerance.
        """
        beyond = self._beyond()
        if not beyond:
            return None
        expected, error = min(beyond, key=lambda pair: (pair[1], pair[0]))
        lower = [
            lower_expected
            for lower_expected, lower_error in self.tried
            if lower_error <= self.tolerance and 0 < lower_expected < expected
        ]
        if lower:
            return math.sqrt(max(lower) * expected)
        share = 0.5 if math.isinf(error) else SAFE * self.tolerance / error
        return share * expected

    def next_below(self) -> float:
        """Return an expected error just below those of all plans beyond the tolerance.

        Where plans are few, the next plan may lie above `limit` and still be within the tolerance.
        """
        return (1 - 1e-6) * min((expected for expected, _ in self._beyond()), default=0.0)

    def _beyond(self) -> list[tuple[float, float]]:
        return [
            (expected, error)
            for expected, error in self.tried
            if error > self.tolerance and expected > 0
        ]
