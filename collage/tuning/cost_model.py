"""Cost model of schedules: ridge regression with a Gaussian kernel on TVM's features.

TVM's features of a scheduled function are 164 numbers for each store (vector length, bytes touched at each
loop, unrolling, ...). The features of a schedule are their sum and maximum over its stores. With some
dozens of trials a kernel method is as good as boosted trees, needs NumPy only, and is fitted in
milliseconds (cubic in the number of trials).
"""

from collections.abc import Sequence

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

MIN_TRIALS = 4
"""Smallest number of trials for a prediction; with fewer, scores are random."""
RIDGE = 0.05
FAILED = 2.0
"""Latency of a failed schedule, relative to the slowest measured one."""


def fit_and_predict(measured: np.ndarray, seconds: np.ndarray, untried: np.ndarray) -> np.ndarray:
    """Predict a score (runs a second) for each row of `untried`; +inf seconds are failures.

    >>> import numpy as np
    >>> measured = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> latencies = np.array([1.0, 2.0, 4.0, 8.0])
    >>> low, high = fit_and_predict(measured, latencies, np.array([[0.2], [2.8]]))
    >>> low > high
    True
    """
    finite = seconds[np.isfinite(seconds)]
    slowest = finite.max() * FAILED if len(finite) else 1.0
    score = -np.log(np.where(np.isfinite(seconds), seconds, slowest))
    centre, spread = score.mean(), score.std() + 1e-9
    features = np.concatenate([measured, untried])
    varies = features.std(0) > 1e-6
    scaled = ((features - features.mean(0)) / (features.std(0) + 1e-12))[:, varies]
    measured_rows, untried_rows = scaled[: len(measured)], scaled[len(measured) :]
    between = _squares(measured_rows, measured_rows)
    width = np.median(between[between > 0]) if (between > 0).any() else 1.0
    gram = np.exp(-between / width) + RIDGE * np.eye(len(measured_rows))
    weights = np.linalg.solve(gram, (score - centre) / spread)
    predicted: np.ndarray = np.exp(
        spread * (np.exp(-_squares(untried_rows, measured_rows) / width) @ weights) + centre
    )
    return predicted


def _squares(left_rows: np.ndarray, right_rows: np.ndarray) -> np.ndarray:
    squares: np.ndarray = ((left_rows[:, None] - right_rows[None]) ** 2).sum(-1)
    return squares


@derived_object
class KernelRidge(ms.cost_model.PyCostModel):
    """MetaSchedule's interface to `fit_and_predict`; scores are random from `seed` at first."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._features = ms.feature_extractor.PerStoreFeature()
        self._random = np.random.default_rng(seed)
        self._measured: list[np.ndarray] = []
        self._seconds: list[float] = []

    def load(self, path: str) -> None:
        """Load nothing: the model is fitted to the stored trials again."""

    def save(self, path: str) -> None:
        """Save nothing."""

    def update(
        self,
        context: ms.TuneContext,
        candidates: Sequence[ms.MeasureCandidate],
        results: Sequence[ms.runner.RunnerResult],
    ) -> None:
        self._measured += list(self._described(context, candidates))
        self._seconds += [
            float(result.run_secs[0]) if result.run_secs else np.inf for result in results
        ]

    def predict(
        self, context: ms.TuneContext, candidates: Sequence[ms.MeasureCandidate]
    ) -> np.ndarray:
        if len(self._measured) < MIN_TRIALS:
            return self._random.random(len(candidates))
        untried = self._described(context, candidates)
        return fit_and_predict(np.array(self._measured), np.array(self._seconds), untried)

    def _described(
        self, context: ms.TuneContext, candidates: Sequence[ms.MeasureCandidate]
    ) -> np.ndarray:
        rows = [features.numpy() for features in self._features.extract_from(context, candidates)]
        return np.array([np.concatenate([row.sum(0), row.max(0)]) for row in rows], np.float64)
