"""Interleaved comparison of contenders: rounds of A B C, B C A, ..., so that drift hits all alike.

Every contender lives in a process of its own, started once and kept until it leaves the arena. A
round gives each a slice of calls; the first call of a slice, which refills the caches that the others
took, is dropped. The statistic is the median over all slices; its interval comes from the medians of
the rounds (order statistics). Ratios are taken round by round, which cancels what the machine does
to both. A race drops those that are surely slower than the leader, so that many contenders cost
little more than the few that are close.
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
from collage.verify.benchmark_target import Contender, ContenderProcess, KernelProfile

SLICE_S = 0.06
LEAST_ROUNDS = 5
PROFILE_S = 1.5

OnRound = Callable[[int, int], None]


@dataclass(frozen=True)
class Latency:
    """Median seconds of a call with its 95 % interval; `rounds` are the medians of the slices.

    A contender that could not run has NaN seconds and the reason.
    """

    seconds: float
    low: float = math.nan
    high: float = math.nan
    rounds: tuple[float, ...] = ()
    reason: str = ""


class Arena:
    """Contenders that are alive, with one set of inputs; closes them all at the end of `with`."""

    def __init__(self, inputs: dict[str, np.ndarray], threads: int, work_dir: Path) -> None:
        """Write the inputs (in the function's order) for the children under `work_dir`."""
        self._feed = work_dir / "contender-inputs.npz"
        self._outputs = work_dir / "contender-outputs.npz"
        save_arrays(self._feed, inputs)
        self._order = list(inputs)
        self._threads = threads
        self._processes: dict[str, ContenderProcess] = {}
        self._calls: dict[str, int] = {}

    def __enter__(self) -> "Arena":
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
        """Who is in the arena, in the order of entering."""
        return list(self._processes)

    def enter(self, contenders: Sequence[Contender]) -> dict[str, str]:
        """Start contenders side by side; return the reasons of those that do not run."""
        started = {
            c.name: ContenderProcess(c, self._feed, self._order, self._threads) for c in contenders
        }
        self._processes |= started
        failed = {name: process.reason for name, process in started.items() if process.reason}
        for name in failed:
            self.leave(name)
        return failed

    def leave(self, name: str) -> None:
        """End a contender."""
        self._calls.pop(name, None)
        self._processes.pop(name).close()

    def outputs(self, name: str) -> list[np.ndarray]:
        """Run a contender once and return its outputs in order. Raises MeasureError if it dies."""
        return self._processes[name].outputs(self._outputs)

    def ask(self, original: Contender, trials: Path) -> None:
        """Have the original answer the trials, in a process that ends then.

        Raises:
            MeasureError: it does not run, or dies.
        """
        process = ContenderProcess(original, self._feed, self._order, self._threads)
        try:
            if process.reason:
                raise MeasureError(f"{original.name} does not run: {process.reason}")
            process.answer(trials)
        finally:
            process.close()

    def check(self, name: str, trials: Path) -> dict[str, float]:
        """Return a contender's largest error of every output. Raises MeasureError if it dies."""
        return self._processes[name].check(trials)

    def profile(self, name: str) -> KernelProfile:
        """Time an executable and its kernels. Raises MeasureError if it dies, or runs on a GPU."""
        process = self._processes[name]
        call_s = statistics.median(process.run(4)[1:])
        return process.profile(min(200, max(5, math.ceil(PROFILE_S / 2 / max(call_s, 1e-7)))))

    def compare(
        self, names: Sequence[str], seconds_each: float, on_round: OnRound | None = None
    ) -> dict[str, Latency]:
        """Run contenders interleaved, each for `seconds_each` in all, and return their latencies.

        One that dies leaves the arena; its latency says why.
        """
        return self._latencies(names, seconds_each, on_round, race=False)

    def race(
        self, names: Sequence[str], seconds_each: float, on_round: OnRound | None = None
    ) -> dict[str, Latency]:
        """Like `compare`, but a contender that is surely slower than the leader stops early."""
        return self._latencies(names, seconds_each, on_round, race=True)

    def _latencies(
        self, names: Sequence[str], seconds_each: float, on_round: OnRound | None, race: bool
    ) -> dict[str, Latency]:
        died: dict[str, str] = {}
        rounds = self._rounds_in(seconds_each, names, died)
        samples = self._run(names, rounds, on_round, race, died)
        for name in died:
            self.leave(name)
        return {
            name: Latency(math.nan, reason=died[name]) if name in died else _summary(samples[name])
            for name in names
        }

    def _try(self, name: str, calls: int, died: dict[str, str]) -> list[float]:
        """Run a contender; one that does not survive it is noted, and has no samples."""
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
        return max(LEAST_ROUNDS, round(seconds_each / max([SLICE_S, *slices])))

    def _run(
        self,
        names: Sequence[str],
        total: int,
        on_round: OnRound | None,
        race: bool,
        died: dict[str, str],
    ) -> dict[str, list[list[float]]]:
        order = [name for name in names if name not in died]
        samples: dict[str, list[list[float]]] = {name: [] for name in order}
        for done in range(total):
            for name in order:
                samples[name].append(self._try(name, self._calls[name], died)[1:])
            order = [name for name in order if name not in died]
            if race and order and done + 1 >= LEAST_ROUNDS:
                order = _still_running(order, samples)
            order = order[1:] + order[:1]
            if on_round:
                on_round(done + 1, total)
            if not order or (race and len(order) == 1):
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
    contenders: Sequence[Contender],
    inputs: dict[str, np.ndarray],
    threads: int,
    seconds_each: float,
    work_dir: Path,
    on_round: OnRound | None = None,
) -> dict[str, Latency]:
    """Run the contenders interleaved and return their latencies by name.

    Args:
        contenders: two or more; names are unique.
        inputs: input name to array, in the function's order.
        threads: of every contender.
        seconds_each: time that each contender gets in all.
        work_dir: where the inputs are written for the children.
        on_round: called with (rounds done, rounds in all).

    Raises:
        MeasureError: none of the contenders runs.
    """
    with Arena(inputs, threads, work_dir) as arena:
        reasons = arena.enter(contenders)
        failed = {name: Latency(math.nan, reason=reason) for name, reason in reasons.items()}
        names = [contender.name for contender in contenders if contender.name not in failed]
        if not names:
            text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise MeasureError(f"none of the executables runs: {text}")
        found = arena.compare(names, seconds_each, on_round)
    return {c.name: failed.get(c.name) or found[c.name] for c in contenders}


def profile_kernels(
    contender: Contender, inputs: dict[str, np.ndarray], threads: int, work_dir: Path
) -> KernelProfile:
    """Time an executable and every kernel inside it.

    Raises:
        MeasureError: it does not load, dies, or runs on a GPU.
    """
    with Arena(inputs, threads, work_dir) as arena:
        for reason in arena.enter([contender]).values():
            raise MeasureError(f"{contender.name} does not run: {reason}")
        return arena.profile(contender.name)


def ratio(numerator: Latency, denominator: Latency) -> float:
    """Median over the rounds of numerator / denominator (both from one comparison)."""
    pairs = zip(numerator.rounds, denominator.rounds, strict=True)
    return statistics.median(above / below for above, below in pairs)


def fastest_first(found: Mapping[str, Latency]) -> list[str]:
    """Order who ran in one comparison or race.

    Those that ran more rounds come before those that were sent home early. Among equals the median of the
    share of its round counts: a busy moment, which falls on one round, does not change it.
    """
    order: list[str] = []
    for count in sorted({len(one.rounds) for one in found.values()}, reverse=True):
        peers = {name: one.rounds for name, one in found.items() if len(one.rounds) == count}
        rounds = [math.fsum(times) for times in zip(*peers.values(), strict=True)]
        shares = {
            name: statistics.median(t / whole for t, whole in zip(times, rounds, strict=True))
            if times
            else math.inf
            for name, times in peers.items()
        }
        order += sorted(peers, key=lambda name: (shares[name], name))
    return order


def at_one_pace(heats: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what everybody who ran in some heats would have taken in the last of them, in seconds.

    A machine with other guests is faster in one heat than in another. What one took is modelled as its own
    time multiplied by the pace of the heat, fitted by least squares of the logarithms.

    Args:
        heats: seconds by name, a mapping a heat; each shares names with others.
    """
    names = sorted({name for heat in heats for name in heat})
    columns = {name: column for column, name in enumerate(names)}
    took = [
        (name, place, seconds) for place, heat in enumerate(heats) for name, seconds in heat.items()
    ]
    design = np.zeros((len(took), len(names) + len(heats)))
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
    """Return the latency of a target whose slices had these medians, in the order of time."""
    return Latency(statistics.median(rounds), *median_interval(rounds), tuple(rounds))


def _summary(rounds: list[list[float]]) -> Latency:
    return latency_of([statistics.median(samples) for samples in rounds])
