"""The parent's side of a contender: a child process that holds one thing to run (`contender`)."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from collage.errors import MeasureError
from collage.runtime.arrays import load_arrays
from collage.runtime.manifest import Signature
from collage.runtime.plugin import library_environment, thread_environment

PATIENCE_S = 120.0
"""A contender that is silent for so long hangs and is killed."""
ON_HOST = frozenset({"executable", "onnxruntime", "openvino", "openvino-bf16"})
"""Kinds that compute on the host, an executable unless its device is another."""


@dataclass(frozen=True)
class Contender:
    """Something to run: `kind` is a key of `contender.KINDS`; `path` its file."""

    name: str
    kind: str
    path: Path
    signature: Signature | None = None
    """Of the executable's function that runs; None for a framework."""
    device: str = "cpu"
    """What an executable was assembled for."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of ONNX Runtime's provider, for the kinds that have one."""
    patience_s: float = PATIENCE_S


@dataclass(frozen=True)
class KernelProfile:
    """Median seconds of a whole call, and of every kernel inside such calls by its symbol."""

    call_s: float
    kernels_s: Mapping[str, float]


class ContenderProcess:
    """A started contender. Starting takes about a second; `reason` waits for its end."""

    def __init__(
        self, contender: Contender, feed: Path, order: Sequence[str], threads: int
    ) -> None:
        """Start it.

        Args:
            contender: what it holds.
            feed: .npz file of the inputs.
            order: the inputs' names in the function's order.
            threads: of the contender.
        """
        self.contender = contender
        environment = {
            **os.environ,
            **library_environment(),
            **thread_environment(threads),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "collage.verify.contender", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        request = {
            "kind": contender.kind,
            "path": str(contender.path.resolve()),
            "device": contender.device,
            "inputs": str(feed.resolve()),
            "order": list(order),
            "signature": asdict(contender.signature) if contender.signature else None,
            "options": dict(contender.options),
            "threads": threads,
            "cpus": _cpus(contender, threads),
        }
        self._reason: str | None = None
        self._tell(json.dumps(request))

    @property
    def reason(self) -> str:
        """Why it cannot run, "" when it can; waits until the contender knows."""
        if self._reason is None:
            answer = self._hear()
            right = isinstance(answer, dict) and "error" not in answer
            self._reason = "" if right else _error_of(answer)
        return self._reason

    def run(self, calls: int) -> list[float]:
        """Return the seconds of each of `calls` calls."""
        self._tell(str(calls))
        answer = self._hear()
        if not isinstance(answer, list):
            raise MeasureError(f"{self.contender.name} died while it ran: {_error_of(answer)}")
        return answer

    def profile(self, calls: int) -> KernelProfile:
        """Time `calls` calls whole, and the kernels inside as many."""
        self._tell(f"profile {calls}")
        answer = self._hear()
        if not isinstance(answer, dict) or "error" in answer:
            raise MeasureError(f"{self.contender.name} cannot be profiled: {_error_of(answer)}")
        return KernelProfile(**answer)

    def answer(self, trials: Path) -> None:
        """Write what it makes of every trial in the folder."""
        self._tell(f"answer {trials.resolve()}")
        answer = self._hear()
        if not isinstance(answer, int):
            raise MeasureError(f"{self.contender.name} cannot be asked: {_error_of(answer)}")

    def check(self, trials: Path) -> dict[str, float]:
        """Return the largest error of every output over the trials in the folder."""
        self._tell(f"check {trials.resolve()}")
        answer = self._hear()
        if not isinstance(answer, dict) or "error" in answer:
            raise MeasureError(f"{self.contender.name} cannot be checked: {_error_of(answer)}")
        return answer

    def outputs(self, file: Path) -> list[np.ndarray]:
        """Run once and return the outputs in order; they travel through `file` (.npz)."""
        self._tell(f"save {file.resolve()}")
        answer = self._hear()
        if not isinstance(answer, int):
            raise MeasureError(f"{self.contender.name} died while it ran: {_error_of(answer)}")
        stored = load_arrays(file)
        return [stored[f"arr_{position}"] for position in range(answer)]

    def close(self) -> None:
        """End the process; one that does not obey is killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # it died with unread bytes
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process.stdin is None:
            raise MeasureError("a contender has no pipe")
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer will say that it ended

    def _hear(self) -> object:
        stdout = self._process.stdout
        if stdout is None:
            raise MeasureError("a contender has no pipe")
        # One answer to one request: nothing is left in the reader's buffer, so the pipe says it all.
        ready, _, _ = select.select([stdout], [], [], self.contender.patience_s)
        if not ready:
            self._process.kill()
            return {"error": f"no answer within {self.contender.patience_s:.0f} s"}
        answer = stdout.readline()
        if answer:
            return json.loads(answer)
        return {"error": f"the process ended with code {self._exit_code()}"}

    def _exit_code(self) -> int:
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._process.returncode if self._process.returncode is not None else -1


def _cpus(contender: Contender, threads: int) -> list[int]:
    """Return the processors that a contender may use.

    With one thread all have the same one: another guest on a core slows it down by 15 % for seconds,
    and contenders that the scheduler keeps on different cores would differ by that.
    """
    allowed = sorted(os.sched_getaffinity(0))
    on_host = contender.kind in ON_HOST and contender.device == "cpu"
    return allowed[-1:] if threads == 1 and on_host else allowed


def _error_of(answer: object) -> str:
    return str(answer["error"]) if isinstance(answer, dict) and "error" in answer else "no answer"
