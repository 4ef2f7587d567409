"""Simulated rounds: a benchmark whose targets take the seconds of a test."""

import math

import numpy as np

from collage.verify.final_round import Comparison
from collage.verify.interleaved_benchmark import Latency, latency_of

ROUND_S = 0.06
"""Time of one target's round, in seconds, as in a real comparison."""


class SimulatedBenchmark:
    """Runs each target for its own seconds times `noise(name, first, count)`, of rounds from `first` on."""

    def __init__(self, seconds, noise=lambda name, first, count: np.ones(count), dying=None):
        self.seconds, self.noise = seconds, noise
        self.dying = dying or {}
        self.calls = []
        self._count = 0

    def compare(self, names, seconds_each, on_round=None):
        """Run as many rounds as fit into the time, at least 5."""
        self.calls.append((tuple(names), seconds_each))
        count = max(5, round(seconds_each / ROUND_S))
        latencies = {}
        for name in names:
            if len(self.calls) >= self.dying.get(name, math.inf):
                latencies[name] = Latency(math.nan, reason=f"{name} died while it ran")
                continue
            times = self.seconds[name] * self.noise(name, self._count, count)
            latencies[name] = latency_of([float(seconds) for seconds in times])
        self._count += count
        return latencies


def compared(seconds, noise=None, seconds_each=2.0, dying=None):
    """Return a comparison in which all targets have run once."""
    benchmark = SimulatedBenchmark(seconds, dying=dying, **({"noise": noise} if noise else {}))
    comparison = Comparison(benchmark, seconds_each)
    comparison.run(list(seconds))
    return comparison


class Independent:
    """Independent noise of one target in every round."""

    def __init__(self, seed, spread, target="plan"):
        self._random, self._spread, self._who = np.random.default_rng(seed), spread, target

    def __call__(self, name, first, count):
        if name != self._who:
            return np.ones(count)
        return np.exp(self._random.normal(0.0, self._spread, count))


class Persistent(Independent):
    """Correlated noise of one target: another guest comes and goes."""

    def __init__(self, seed, spread, memory, target="plan"):
        super().__init__(seed, spread, target)
        self._memory, self._state = memory, None

    def __call__(self, name, first, count):
        if name != self._who:
            return np.ones(count)
        fresh = self._spread * math.sqrt(1 - self._memory**2)
        values = []
        for _ in range(count):
            if self._state is None:
                self._state = self._random.normal(0.0, self._spread)
            else:
                self._state = self._memory * self._state + self._random.normal(0.0, fresh)
            values.append(math.exp(self._state))
        return np.array(values)
