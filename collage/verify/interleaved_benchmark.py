"""Interleaved benchmark: rounds of A B C, B C A, ..., so that drift of the machine affects all targets alike.

Every target runs in a process of its own, started once and kept until it leaves the benchmark. A round gives
each target a slice of calls. The first call of a slice is dropped: it refills caches that other targets
evicted. The statistic is the median over all slices, its interval comes from the medians of the rounds
(order statistics). Ratios are taken round by round, so interference that affects both targets cancels.
`eliminate_slow` stops targets that are certainly slower than the leading one, so many targets cost little
more than the few close ones.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from collage.errors import MeasureError
from collage.measure.median import median_interval
from collage.runtime.arrays import save_arrays
from collage.verify.benchmark_target import BenchmarkTarget, KernelProfile, TargetProcess

SLICE_S = 0.06
"""Time of one slice of calls, in seconds; at least three calls."""
MIN_ROUNDS = 5
PROFILE_S = 1.5
"""Time of one profile, in seconds."""

OnRound = Callable[[int, int], None]


@dataclass(frozen=True)
class Latency:
    """Latency of one call.

    Attributes:
        seconds: median in seconds; NaN where the target did not run.
        low: lower end of the 95 % interval of the median, in seconds.
        high: upper end of this interval, in seconds.
        rounds: medians of the slices in the order of time, in seconds.
        reason: reason why the target did not run, "" where it ran.
    """

    seconds: float
    low: float = math.nan
    high: float = math.nan
    rounds: tuple[float, ...] = ()
    reason: str = ""


class InterleavedBenchmark:
    """Running benchmark targets with one set of inputs; the end of `with` ends them all."""

    def __init__(self, inputs: dict[str, np.ndarray], threads: int, work_dir: Path) -> None:
        """Write the inputs (in the function's order) for the children under `work_dir`."""
        self._feed = work_dir / "target-inputs.npz"
        self._outputs = work_dir / "target-outputs.npz"
        save_arrays(self._feed, inputs)
        self._order = list(inputs)
        self._threads = threads
        self._processes: dict[str, TargetProcess] = {}
        self._calls: dict[str, int] = {}

    def __enter__(self) -> "InterleavedBenchmark":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for name in list(self._processes):
            self.leave(name)

    @property
    def names(self) -> list[str]:
        """Names of the running targets, in the order of their start."""
        return list(self._processes)

    def enter(self, targets: Sequence[BenchmarkTarget]) -> dict[str, str]:
        """Start targets side by side; return the reasons of those that do not run, by name."""
        started = {
            c.name: TargetProcess(c, self._feed, self._order, self._threads) for c in targets
        }
        self._processes |= started
        failed = {name: process.reason for name, process in started.items() if process.reason}
        for name in failed:
            self.leave(name)
        return failed

    def leave(self, name: str) -> None:
        """End a target."""
        self._calls.pop(name, None)
        self._processes.pop(name).close()

    def outputs(self, name: str, output_names: Sequence[str]) -> list[np.ndarray]:
        """Run a target once and return its outputs in the order of `output_names`.

        Raises:
            MeasureError: its process ends.
        """
        return self._processes[name].outputs(self._outputs, output_names)

    def write_expected(self, original: BenchmarkTarget, samples: Path) -> None:
        """Write the original's outputs of the accuracy samples, in a process that ends then.

        Raises:
            MeasureError: the original does not run, or its process ends.
        """
        process = TargetProcess(original, self._feed, self._order, self._threads)
        try:
            if process.reason:
                raise MeasureError(f"{original.name} does not run: {process.reason}")
            process.write_expected(samples)
        finally:
            process.close()

    def check(self, name: str, samples: Path) -> dict[str, float]:
        """Return a target's largest error of every output. Raises MeasureError if its process ends."""
        return self._processes[name].check(samples)

    def differences(self, name: str, samples: Path) -> str:
        """Return a target's difference from the original on the samples, "" where they agree.

        Raises:
            MeasureError: its process ends.
        """
        return self._processes[name].compare(samples)

    def profile(self, name: str) -> KernelProfile:
        """Time an executable and its kernels. Raises MeasureError if it fails, or runs on a GPU."""
        process = self._processes[name]
        call_s = statistics.median(process.run(4)[1:])
        return process.profile(min(200, max(5, math.ceil(PROFILE_S / 2 / max(call_s, 1e-7)))))

    def compare(
        self, names: Sequence[str], seconds_each: float, on_round: OnRound | None = None
    ) -> dict[str, Latency]:
        """Run targets interleaved, each for `seconds_each` in all, and return their latencies.

        A target that fails leaves the benchmark; its latency has the reason.
        """
        return self._latencies(names, seconds_each, on_round, eliminate=False)

    def eliminate_slow(
        self, names: Sequence[str], seconds_each: float, on_round: OnRound | None = None
    ) -> dict[str, Latency]:
        """Like `compare`, but a target that is certainly slower than the leading one stops early."""
        return self._latencies(names, seconds_each, on_round, eliminate=True)

    def _latencies(
        self,
        names: Sequence[str],
        seconds_each: float,
        on_round: OnRound | None,
        *,
        eliminate: bool,
    ) -> dict[str, Latency]:
        died: dict[str, str] = {}
        rounds = self._rounds_in(seconds_each, names, died)
        samples = self._run(names, rounds, on_round, eliminate=eliminate, died=died)
        for name in died:
            self.leave(name)
        return {
            name: Latency(math.nan, reason=died[name]) if name in died else _summary(samples[name])
            for name in names
        }

    def _try(self, name: str, calls: int, died: dict[str, str]) -> list[float]:
        """Run a target; one that fails is noted in `died` and has no samples."""
        try:
            return self._processes[name].run(calls)
        except MeasureError as error:
            died[name] = str(error)
            return []

    def _rounds_in(self, seconds_each: float, names: Sequence[str], died: dict[str, str]) -> int:
        slices = []
        for name in names:
            if name not in self._calls and (first := self._try(name, 4, died)):
                call_s = statistics.median(first[1:])
                self._calls[name] = max(3, math.ceil(SLICE_S / max(call_s, 1e-7))) + 1
            if name not in died and (pair := self._try(name, 2, died)):
                slices.append(self._calls[name] * statistics.median(pair))
        return max(MIN_ROUNDS, round(seconds_each / max([SLICE_S, *slices])))

    def _run(
        self,
        names: Sequence[str],
        total: int,
        on_round: OnRound | None,
        *,
        eliminate: bool,
        died: dict[str, str],
    ) -> dict[str, list[list[float]]]:
        order = [name for name in names if name not in died]
        samples: dict[str, list[list[float]]] = {name: [] for name in order}
        for done in range(total):
            for name in order:
                samples[name].append(self._try(name, self._calls[name], died)[1:])
            order = [name for name in order if name not in died]
            if eliminate and order and done + 1 >= MIN_ROUNDS:
                order = _still_running(order, samples)
            order = order[1:] + order[:1]
            if on_round:
                on_round(done + 1, total)
            if not order or (eliminate and len(order) == 1):
                break
        return samples


def _still_running(order: list[str], samples: dict[str, list[list[float]]]) -> list[str]:
    medians = {name: [statistics.median(s) for s in samples[name]] for name in order}
    leader = min(order, key=lambda name: statistics.median(medians[name]))
    return [
        name
        for name in order
        if name == leader or interval_of_ratio(medians[name], medians[leader])[0] <= 1
    ]


def compare_latency(
    targets: Sequence[BenchmarkTarget],
    inputs: dict[str, np.ndarray],
    threads: int,
    seconds_each: float,
    *,
    work_dir: Path,
    on_round: OnRound | None = None,
) -> dict[str, Latency]:
    """Run the targets interleaved and return their latencies by name.

    Args:
        targets: two or more targets with unique names.
        inputs: arrays by input name, in the function's order.
        threads: threads of every target.
        seconds_each: time of each target in all, in seconds.
        work_dir: folder for the inputs of the child processes.
        on_round: progress callback with (finished rounds, all rounds); default None.

    Raises:
        MeasureError: none of the targets runs.
    """
    with InterleavedBenchmark(inputs, threads, work_dir) as benchmark:
        reasons = benchmark.enter(targets)
        failed = {name: Latency(math.nan, reason=reason) for name, reason in reasons.items()}
        names = [target.name for target in targets if target.name not in failed]
        if not names:
            text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise MeasureError(f"none of the executables runs: {text}")
        latencies = benchmark.compare(names, seconds_each, on_round)
    return {c.name: failed.get(c.name) or latencies[c.name] for c in targets}


def profile_kernels(
    target: BenchmarkTarget, inputs: dict[str, np.ndarray], threads: int, work_dir: Path
) -> KernelProfile:
    """Time an executable and every kernel inside it.

    Raises:
        MeasureError: the executable does not load, fails, or runs on a GPU.
    """
    with InterleavedBenchmark(inputs, threads, work_dir) as benchmark:
        for reason in benchmark.enter([target]).values():
            raise MeasureError(f"{target.name} does not run: {reason}")
        return benchmark.profile(target.name)


def ratio(numerator: Latency, denominator: Latency) -> float:
    """Median over the rounds of numerator / denominator (both from one comparison)."""
    pairs = zip(numerator.rounds, denominator.rounds, strict=True)
    return statistics.median(above / below for above, below in pairs)


def fastest_first(latencies: Mapping[str, Latency]) -> list[str]:
    """Order the targets of one comparison by speed.

    Targets with more rounds precede those that were eliminated early. Among targets with as many rounds the
    median share of the round's time decides: interference during one round does not change it.
    """
    order: list[str] = []
    for count in sorted({len(latency.rounds) for latency in latencies.values()}, reverse=True):
        peers = {
            name: latency.rounds
            for name, latency in latencies.items()
            if len(latency.rounds) == count
        }
        rounds = [math.fsum(times) for times in zip(*peers.values(), strict=True)]
        shares = {
            name: statistics.median(t / total for t, total in zip(times, rounds, strict=True))
            if times
            else math.inf
            for name, times in peers.items()
        }
        order += sorted(peers, key=lambda name: (shares[name], name))
    return order


def normalised_latencies(comparison_rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the latencies of all targets, scaled to the machine speed of the last comparison round.

    The speed of a machine with other guests varies between rounds. A measured latency is modelled as the
    target's own latency times the speed factor of the round, fitted by least squares of the logarithms.

    Args:
        comparison_rounds: latencies in seconds by name, one mapping per round; rounds share names.
    """
    names = sorted({name for heat in comparison_rounds for name in heat})
    columns = {name: column for column, name in enumerate(names)}
    took = [
        (name, place, seconds)
        for place, heat in enumerate(comparison_rounds)
        for name, seconds in heat.items()
    ]
    design = np.zeros((len(took), len(names) + len(comparison_rounds)))
    for row, (name, place, _) in enumerate(took):
        design[row, [columns[name], len(names) + place]] = 1.0
    logarithms = np.log([seconds for _, _, seconds in took])
    fitted = np.linalg.lstsq(design, logarithms, rcond=None)[0]
    return {name: float(np.exp(fitted[columns[name]] + fitted[-1])) for name in names}


def interval_of_ratio(
    numerator: Sequence[float], denominator: Sequence[float]
) -> tuple[float, float]:
    """Return the 95 % interval of the median of the round-by-round ratio."""
    ratios = [above / below for above, below in zip(numerator, denominator, strict=True)]
    return median_interval(ratios)


def latency_of(rounds: Sequence[float]) -> Latency:
    """Return the latency of a target from the medians of its slices, in the order of time."""
    return Latency(statistics.median(rounds), *median_interval(rounds), tuple(rounds))


def _summary(rounds: list[list[float]]) -> Latency:
    return latency_of([statistics.median(samples) for samples in rounds])
