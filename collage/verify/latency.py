"""Interleaved comparison of contenders: rounds of A B C, A B C, ..., so that drift hits all alike.

Every contender lives in a process of its own (`contender`). A round gives each a slice of calls; the
first call of a slice, which refills the caches that the others took, is dropped. The statistic is the
median over all slices; its interval comes from the medians of the rounds (order statistics). Ratios
are taken round by round, which cancels what the machine does to both.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.errors import MeasureError

SLICE_S = 0.06
PROFILE_S = 1.0


@dataclass(frozen=True)
class Contender:
    """Something to run: `kind` is executable, onnxruntime or openvino; `path` its file."""

    name: str
    kind: str
    path: Path
    function: str = "main"


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


def compare_latency(
    contenders: Sequence[Contender],
    inputs: dict[str, np.ndarray],
    threads: int,
    seconds_each: float,
    work_dir: Path,
    on_round: Callable[[int, int], None] | None = None,
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
    feed = work_dir / "contender-inputs.npz"
    np.savez(feed, **inputs)  # type: ignore[arg-type]
    processes: dict[str, _Process] = {}
    failed: dict[str, Latency] = {}
    try:
        for contender in contenders:
            process = _Process(contender, feed, list(inputs), threads)
            if process.reason:
                process.close()
                failed[contender.name] = Latency(math.nan, reason=process.reason)
            else:
                processes[contender.name] = process
        if not processes:
            reasons = "; ".join(f"{name}: {latency.reason}" for name, latency in failed.items())
            raise MeasureError(f"none of the executables runs: {reasons}")
        samples = _rounds(processes, seconds_each, on_round)
    finally:
        for process in processes.values():
            process.close()
    found = {name: _summary(rounds) for name, rounds in samples.items()}
    return {c.name: failed.get(c.name) or found[c.name] for c in contenders}


def run_once(
    contender: Contender, inputs: dict[str, np.ndarray], threads: int, work_dir: Path
) -> list[np.ndarray]:
    """Run an executable once in a process of its own and return its outputs in order.

    Raises:
        MeasureError: it does not load, or dies.
    """
    feed, result = work_dir / "run-inputs.npz", work_dir / "run-outputs.npz"
    np.savez(feed, **inputs)  # type: ignore[arg-type]
    process = _Process(contender, feed, list(inputs), threads)
    try:
        if process.reason:
            raise MeasureError(f"{contender.name} does not run: {process.reason}")
        process.save(result)
    finally:
        process.close()
    with np.load(result) as stored:
        return [stored[f"arr_{position}"] for position in range(len(stored.files))]


def profile_kernels(
    contender: Contender, inputs: dict[str, np.ndarray], threads: int, work_dir: Path
) -> dict[str, float]:
    """Time every kernel inside a running executable; return median seconds by the kernel's symbol.

    Raises:
        MeasureError: it does not load, or dies.
    """
    feed = work_dir / "profile-inputs.npz"
    np.savez(feed, **inputs)  # type: ignore[arg-type]
    process = _Process(contender, feed, list(inputs), threads)
    try:
        if process.reason:
            raise MeasureError(f"{contender.name} does not run: {process.reason}")
        whole_s = statistics.median(process.run(4)[1:])
        return process.profile(min(200, max(5, math.ceil(PROFILE_S / max(whole_s, 1e-7)))))
    finally:
        process.close()


def _rounds(
    processes: dict[str, "_Process"],
    seconds_each: float,
    on_round: Callable[[int, int], None] | None,
) -> dict[str, list[list[float]]]:
    calls = {}
    for name, process in processes.items():
        first = statistics.median(process.run(4)[1:])
        calls[name] = max(3, math.ceil(SLICE_S / max(first, 1e-7))) + 1
    slice_s = max(calls[name] * statistics.median(p.run(2)) for name, p in processes.items())
    total = max(5, round(seconds_each / max(slice_s, SLICE_S)))
    samples: dict[str, list[list[float]]] = {name: [] for name in processes}
    order = list(processes)
    for done in range(total):
        for name in order:
            samples[name].append(processes[name].run(calls[name])[1:])
        order = order[1:] + order[:1]
        if on_round:
            on_round(done + 1, total)
    return samples


def ratio(numerator: Latency, denominator: Latency) -> float:
    """Median over the rounds of numerator / denominator (both from one comparison)."""
    pairs = zip(numerator.rounds, denominator.rounds, strict=True)
    return statistics.median(above / below for above, below in pairs)


def _summary(rounds: list[list[float]]) -> Latency:
    medians = sorted(statistics.median(samples) for samples in rounds)
    spread = 0.98 * math.sqrt(len(medians))
    middle = (len(medians) - 1) / 2
    low = medians[max(0, math.floor(middle - spread))]
    high = medians[min(len(medians) - 1, math.ceil(middle + spread))]
    in_order = tuple(statistics.median(samples) for samples in rounds)
    return Latency(statistics.median(in_order), low, high, in_order)


class _Process:
    """One running contender; `reason` says why it did not start ("" when it did)."""

    def __init__(self, contender: Contender, feed: Path, order: list[str], threads: int) -> None:
        environment = os.environ | {
            "OMP_WAIT_POLICY": "PASSIVE",
            "OMP_NUM_THREADS": str(threads),
            "TVM_NUM_THREADS": str(threads),
            "ORT_DISABLE_TELEMETRY": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "collage.verify.contender"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        request = {
            "kind": contender.kind,
            "path": str(contender.path.resolve()),
            "function": contender.function,
            "inputs": str(feed.resolve()),
            "order": order,
            "threads": threads,
        }
        self.reason = ""
        answer = self._ask(json.dumps(request))
        if not isinstance(answer, dict) or "error" in answer:
            self.reason = answer["error"] if isinstance(answer, dict) else "no answer"

    def run(self, calls: int) -> list[float]:
        answer = self._ask(str(calls))
        if not isinstance(answer, list):
            raise MeasureError(f"a contender died while it was measured: {answer}")
        return answer

    def profile(self, calls: int) -> dict[str, float]:
        answer = self._ask(f"profile {calls}")
        if not isinstance(answer, dict) or "error" in answer:
            raise MeasureError(f"an executable died while its kernels were timed: {answer}")
        return answer

    def save(self, file: Path) -> None:
        answer = self._ask(f"save {file.resolve()}")
        if not isinstance(answer, int):
            raise MeasureError(f"an executable died while it ran: {answer}")

    def _ask(self, line: str) -> object:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise MeasureError("a contender has no pipes")
        try:
            stdin.write(line + "\n")
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._wait()
            return {"error": f"the process ended with code {code}"}
        return json.loads(answer)

    def _wait(self) -> int:
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._process.returncode if self._process.returncode is not None else -1

    def close(self) -> None:
        """End the process; a contender that does not obey is killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
