"""Timing of a kernel as inside a model: with cold caches.

In a hot loop a kernel finds its weights in the caches. Inside a model the other kernels have evicted them,
and sums of hot timings came out 30 % too low. So before every timed call
  1. a buffer is read to flush the caches as far as one run of the model would: a model with weights and
     activations below the last-level cache finds them there again (`CacheFlush`);
  2. the inputs are rewritten in place, as by their producer in the model;
  3. the threads of the shared pool are woken, the state after the kernel before;
  4. an empty native function is called twice with the same arguments: once as a warm-up, once timed. The
     median of the latter, the call overhead, is subtracted.
Calls repeat until the interval of the median is below `relative_width`, or below a thousandth of one run of
the model, or another kernel of the same region is faster for certain (`beaten`), or the time is up; the
interval is wider then. A control kernel with fixed work runs before and after. If the machine's speed
changed, the kernel is measured once more; if it changed again, the interval is widened.

The dispatch overhead inside the executable, `dispatch_overhead_s`, is added (`call_overhead`). Samples are in
seconds, from the monotonic clock, with the garbage collector off.
"""

import gc
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collage.cost.cost import SHORTEST_S, Cost
from collage.measure.median import median_interval

Call = Callable[..., object]
MIN_INTERVAL_SAMPLES = 6
"""Smallest number of samples with a range that holds the median with 95 %."""
GIVE_UP_RATIO = 3.0
"""Ratio to the fastest kernel of the region from which a kernel is not measured further."""


@dataclass(frozen=True)
class TimingLimits:
    """TimingLimits of repetition.

    Attributes:
        repeats: smallest and largest number of samples of an ordinary kernel.
        slow_repeats: number of samples of a kernel slower than `slow_s`.
        slow_s: latency of a slow kernel, in seconds.
        time_s: time limit of one kernel, in seconds; the interval is wider after it.
        relative_width: sufficient width of the interval, relative to the median.
        resolution_s: sufficient width of the interval in any model, in seconds.
        drift: tolerated relative change of the control kernel.
    """

    repeats: tuple[int, int] = (5, 99)
    slow_repeats: int = 3
    slow_s: float = 0.1
    time_s: float = 0.25
    relative_width: float = 0.03
    resolution_s: float = 5e-8
    drift: float = 0.05


@dataclass(frozen=True, slots=True)
class Timing:
    """A cost, and whether the machine's speed changed during its measurement."""

    cost: Cost
    drifted: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    """One kernel to time; `inputs` are views of its inputs as integers."""

    call: Call
    arguments: Sequence[object]
    inputs: Sequence[np.ndarray]
    best_s: float
    resolution_s: float


class Timer:
    """Times kernels in this process; holds the flush buffer and the control kernel's history."""

    def __init__(
        self,
        sweep: int,
        empty: Call,
        limits: TimingLimits | None = None,
        wake: Callable[[], object] | None = None,
    ) -> None:
        """Make a timer.

        Args:
            sweep: size of the cache flush before every call, in bytes.
            empty: native function with any arguments and no effect.
            limits: limits of repetition; None is the default.
            wake: function waking the kernels' thread pool; None with one thread.
        """
        self._buffer = np.ones(max(1, sweep // 8), np.uint64)
        self._empty = empty
        self._wake = wake
        self._limits = limits or TimingLimits()
        self._control = Control()

    def time(
        self,
        call: Call,
        arguments: Sequence[object],
        inputs: Sequence[np.ndarray],
        *,
        best_s: float = math.inf,
        dispatch_overhead_s: float = 0.0,
        resolution_s: float = 0.0,
    ) -> Timing:
        """Time `call(*arguments)`.

        Args:
            call: the kernel.
            arguments: tensors of the call.
            inputs: contiguous arrays, aliases of the kernel's input tensors.
            best_s: lowest cost of the same region, in seconds; a slower kernel needs no precision.
            dispatch_overhead_s: dispatch overhead, added to every sample, in seconds.
            resolution_s: sufficient width of the interval in this model, in seconds.
        """
        run = _Run(
            call,
            arguments,
            [_words(array) for array in inputs],
            best_s - dispatch_overhead_s,
            resolution_s=resolution_s,
        )
        gc.collect(0)
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            cost, change = self._attempt(run)
            if change > self._limits.drift:
                cost, change = self._attempt(run)
        finally:
            if was_enabled:
                gc.enable()
        if change > self._limits.drift:
            return Timing(_shifted(_widened(cost, 1 + change), dispatch_overhead_s), drifted=True)
        return Timing(_shifted(cost, dispatch_overhead_s))

    def _attempt(self, run: _Run) -> tuple[Cost, float]:
        before = self._control.change()
        cost = self._sample(run)
        return cost, max(before, self._control.change())

    def _sample(self, run: _Run) -> Cost:
        start = time.perf_counter()
        samples: list[float] = []
        empties: list[float] = []
        call_overhead_s = 0.0
        while not self._enough(samples, time.perf_counter() - start, run, call_overhead_s):
            empty_s, call_s = self._once(run)
            samples.append(call_s)
            empties.append(empty_s)
            call_overhead_s = statistics.median(empties)
        return summary([max(sample - call_overhead_s, SHORTEST_S) for sample in samples])

    def _once(self, run: _Run) -> tuple[float, float]:
        clock, empty, call, arguments = time.perf_counter_ns, self._empty, run.call, run.arguments
        self._buffer.max()
        for words in run.inputs:
            np.bitwise_or(words, 0, out=words)
        if self._wake:
            self._wake()
        empty(*arguments)
        first = clock()
        empty(*arguments)
        second = clock()
        call(*arguments)
        third = clock()
        return (second - first) * 1e-9, (third - second) * 1e-9

    def _enough(
        self, samples: list[float], elapsed_s: float, run: _Run, call_overhead_s: float
    ) -> bool:
        limits = self._limits
        min_repeats, max_repeats = limits.repeats
        count = len(samples)
        if count < 2:
            return False
        if beaten(samples, run.best_s + call_overhead_s):
            return True
        if count < min_repeats:
            slow = min(samples) > limits.slow_s
            return slow and count >= limits.slow_repeats
        if count >= max_repeats or elapsed_s > limits.time_s:
            return True
        low, high = median_interval(samples)
        relative_s = limits.relative_width * statistics.median(samples)
        tolerance = max(relative_s, limits.resolution_s, run.resolution_s)
        return high - low < tolerance


class Control:
    """A kernel with fixed work; its latency shows changes of the machine's speed."""

    def __init__(self, size: int = 128) -> None:
        """Make a product of two square matrices with `size` rows; 64 rows are too few for threads."""
        random = np.random.default_rng(0)
        self._matrix = random.standard_normal((size, size)).astype(np.float32)
        self._result = np.empty_like(self._matrix)
        self._history: deque[float] = deque(maxlen=64)
        for _ in range(3):
            self._history.append(self.seconds())

    def change(self) -> float:
        """Return the relative deviation from the usual speed, e.g. 0.02."""
        usual_s = statistics.median(self._history)
        current_s = self.seconds()
        self._history.append(current_s)
        return max(current_s / usual_s, usual_s / current_s) - 1

    def seconds(self) -> float:
        """Return the current latency: the lowest of several, since interruptions only add."""
        best = math.inf
        for _ in range(9):
            start = time.perf_counter_ns()
            np.dot(self._matrix, self._matrix, out=self._result)
            best = min(best, (time.perf_counter_ns() - start) * 1e-9)
        return best


def beaten(samples: Sequence[float], best_s: float) -> bool:
    """Tell whether the samples' kernel is certainly slower than `best_s`."""
    if min(samples) > GIVE_UP_RATIO * best_s:
        return True
    return len(samples) >= MIN_INTERVAL_SAMPLES and median_interval(samples)[0] > best_s


def summary(samples: Sequence[float]) -> Cost:
    """Return the samples' cost: their median with its interval."""
    low, high = median_interval(samples)
    return Cost(statistics.median(samples), low, high, tuple(samples))


def _shifted(cost: Cost, seconds: float) -> Cost:
    samples = tuple(sample + seconds for sample in cost.samples)
    return Cost(cost.seconds + seconds, cost.low + seconds, cost.high + seconds, samples)


def _widened(cost: Cost, factor: float) -> Cost:
    low, high = min(cost.low, cost.seconds / factor), max(cost.high, cost.seconds * factor)
    return Cost(cost.seconds, low, high, cost.samples)


def _words(array: np.ndarray) -> np.ndarray:
    """View as bytes, or as 64-bit words where the size allows: rewriting is then fastest."""
    flat = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
    return flat.view(np.uint64) if flat.nbytes % 8 == 0 else flat
