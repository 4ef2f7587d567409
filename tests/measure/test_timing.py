"""How long a kernel is repeated: until its median is known as well as it needs to be."""

import itertools

import numpy as np
import pytest

from collage.measure.timing import Limits, Timer, median_interval, sweep_bytes


def busy(loops):
    """Calls that take a varying time."""
    turns = itertools.cycle([1, 3, 2, 4, 1, 5])

    def call(*_):
        for _ in range(loops * next(turns)):
            pass

    return call


@pytest.fixture
def timer():
    return Timer(1 << 20, lambda *_: None, Limits(time_s=5.0, drift=1e9))


def timed(timer, **limits):
    array = np.zeros(16, np.float32)
    return timer.time(busy(2000), (array,), [array], **limits).cost


def test_a_coarse_resolution_ends_early_and_a_fine_one_repeats(timer):
    coarse, fine = timed(timer, resolution_s=1.0), timed(timer)
    assert len(coarse.samples) == 5
    assert len(fine.samples) > 20
    assert fine.low <= fine.seconds <= fine.high


def test_a_hopeless_kernel_is_timed_twice(timer):
    assert len(timed(timer, best_s=1e-9).samples) == 2


def test_a_kernel_that_is_slower_for_sure_is_timed_six_times(timer):
    """Every call takes at least a loop of 2000; a kernel that is as fast as the best is timed on."""
    fastest = min(timed(timer).samples)
    assert len(timed(timer, best_s=fastest * 0.6).samples) == 6
    assert len(timed(timer, best_s=fastest * 2.5).samples) > 20


def test_the_boundary_is_added_to_every_sample(timer):
    cost = timed(timer, resolution_s=1.0, boundary_s=10.0)
    assert min(cost.samples) > 10
    assert cost.low > 10


def test_intervals_come_from_order_statistics():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([float(n) for n in range(10)]) == (1.0, 8.0)


def test_a_sweep_is_a_power_of_two_that_holds_the_model():
    assert sweep_bytes(1) == 4 << 20
    assert sweep_bytes(5 << 20) == 8 << 20
