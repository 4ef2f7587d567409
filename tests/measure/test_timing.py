"""How long a kernel is repeated: until its median is known as well as it needs to be.

The clock is simulated: a call takes what it says, however busy the machine is that runs the tests.
"""

import itertools

import numpy as np
import pytest

from collage.measure.timing import Timer, TimingLimits

TURNS = (1, 3, 2, 4, 1, 5)
UNIT_NS = 60_000
READING_NS = 40


class Clock:
    """Stands for the module `time`; every reading takes a moment."""

    now_ns = 0

    def perf_counter_ns(self):
        self.now_ns += READING_NS
        return self.now_ns

    def perf_counter(self):
        return self.perf_counter_ns() * 1e-9


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("collage.measure.timing.time", clock)
    return clock


@pytest.fixture
def timed(clock):
    """Time calls of 1, 3, 2, 4, 1, 5 units; return their cost."""
    timer = Timer(1 << 20, lambda *_: None, TimingLimits(time_s=5.0))

    def run(**limits):
        turns, array = itertools.cycle(TURNS), np.zeros(16, np.float32)

        def call(*_):
            clock.now_ns += next(turns) * UNIT_NS

        return timer.time(call, (array,), [array], **limits).cost

    return run


def test_a_coarse_resolution_ends_early_and_a_fine_one_repeats(timed):
    coarse, fine = timed(resolution_s=1.0), timed()
    assert len(coarse.samples) == 5
    assert len(fine.samples) > 20
    assert fine.low <= fine.seconds <= fine.high


def test_the_call_overhead_is_subtracted(timed):
    assert timed().samples[:6] == pytest.approx([turn * UNIT_NS * 1e-9 for turn in TURNS])


def test_a_much_slower_kernel_is_timed_twice(timed):
    assert len(timed(best_s=1e-9).samples) == 2


def test_a_certainly_slower_kernel_is_timed_six_times(timed):
    """Every call takes at least a unit; a kernel that is as fast as the best is timed on."""
    assert len(timed(best_s=0.6 * UNIT_NS * 1e-9).samples) == 6
    assert len(timed(best_s=2.5 * UNIT_NS * 1e-9).samples) > 20


def test_the_dispatch_overhead_is_added_to_every_sample(timed):
    cost = timed(resolution_s=1.0, dispatch_overhead_s=10.0)
    assert min(cost.samples) > 10
    assert cost.low > 10
