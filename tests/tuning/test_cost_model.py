"""The model that ranks untried schedules: it learns an order from few trials."""

import numpy as np

from collage.tuning.cost_model import fit_and_predict


def test_predictions_have_the_order_of_a_smooth_function():
    random = np.random.default_rng(0)
    measured, untried = random.uniform(-1, 1, (24, 6)), random.uniform(-1, 1, (40, 6))

    def seconds(rows):
        return np.exp(rows[:, 0] + 0.5 * rows[:, 1])

    scores = fit_and_predict(measured, seconds(measured), untried)
    ranks = [np.argsort(np.argsort(values)) for values in (scores, -seconds(untried))]
    assert np.corrcoef(*ranks)[0, 1] > 0.8


def test_failures_are_slow_and_constant_features_ignored():
    measured = np.array([[0.0, 7.0], [1.0, 7.0], [2.0, 7.0], [3.0, 7.0]])
    seconds = np.array([1.0, 1.0, np.inf, np.inf])
    good, bad = fit_and_predict(measured, seconds, np.array([[0.5, 7.0], [2.5, 7.0]]))
    assert good > bad


def test_nothing_but_failures_gives_finite_scores():
    measured = np.array([[0.0], [1.0], [2.0], [3.0]])
    scores = fit_and_predict(measured, np.full(4, np.inf), np.array([[0.5], [2.5]]))
    assert np.isfinite(scores).all()
