"""Random outputs are compared by their moments over many runs."""

import numpy as np
import pytest

from collage.measure.random_outputs import random_difference
from collage.verify.drawn_outputs import compare_moments, measure_moments

SHAPE = (8, 32)


def sampler(seed, mean=0.0, spread=1.0, shape=lambda random: SHAPE, dtype=np.float32):
    random = np.random.default_rng(seed)
    offsets = np.linspace(-3, 3, 256).reshape(SHAPE)

    def run():
        size = shape(random)
        drawn = random.standard_normal(size) * spread + mean
        return [(drawn + (offsets if size == SHAPE else 0)).astype(dtype)]

    return run


def moments(*arguments, **words):
    return measure_moments(sampler(*arguments, **words), ["y"])


@pytest.mark.parametrize("seed", range(1, 6))
def test_draws_of_one_distribution_agree(seed):
    assert compare_moments(moments(0), moments(seed)) == ""


def test_one_number_for_all_elements_agrees_with_itself():
    def run(seed):
        random = np.random.default_rng(seed)
        return lambda: [np.full(SHAPE, random.standard_normal(), np.float32)]

    for seed in range(5):
        first, second = (measure_moments(run(s), ["y"]) for s in (100 + seed, 200 + seed))
        assert compare_moments(first, second) == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"mean": 2.0}, "means over 32 runs differ"),
        ({"spread": 4.0}, "variance over 32 runs"),
        ({"spread": 0.1}, "variance over 32 runs"),
        ({"dtype": np.float64}, "float64 of rank 2, not float32"),
        ({"shape": lambda random: (8, int(random.integers(1, 9)))}, "its shape is drawn in one"),
        ({"shape": lambda random: (8, 16)}, "shape"),
    ],
)
def test_other_distributions_are_told_apart(words, reason):
    assert reason in compare_moments(moments(0), moments(1, **words))


def test_drawn_shapes_are_compared_by_rank():
    def shape(random):
        return (8, int(random.integers(1, 9)))

    assert compare_moments(moments(0, shape=shape), moments(1, shape=shape)) == ""


def test_a_constant_output_must_be_equal():
    def constant(value):
        return measure_moments(lambda: [np.full(SHAPE, value, np.float32)], ["y"])

    assert compare_moments(constant(1.0), constant(1.0)) == ""
    assert "standard errors" in compare_moments(constant(1.0), constant(1.1))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda draw: draw, ""),
        (lambda draw: draw + 4, "mean"),
        (lambda draw: draw * 3, "standard deviation"),
        (lambda draw: draw * np.nan, "NaN"),
        (lambda draw: draw[:4], "expected float32"),
    ],
)
def test_a_kernel_of_one_draw_is_judged_by_its_elements(change, reason):
    (reference,), (draw,) = sampler(0)(), sampler(1)()
    result = random_difference([reference], [change(draw)], is_one_draw=True)
    assert (reason in result) if reason else result == ""


def test_only_outputs_that_differ_between_runs_vary():
    rng = np.random.default_rng(3)
    fixed = np.float32([1.0, 2.0])
    runs = {
        "drawn": lambda: [rng.standard_normal(4)],
        "rounded": lambda: [fixed + np.float32(1e-6) * rng.integers(0, 2, 2)],
        "fixed": lambda: [fixed],
    }
    varying = {name: measure_moments(run, ["y"])["y"].varies for name, run in runs.items()}
    assert varying == {"drawn": True, "rounded": False, "fixed": False}
