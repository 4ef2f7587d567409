"""The parent's side of a contender: a child process that holds one thing to run (`contender`)."""

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeGuard

import numpy as np

from collage.errors import MeasureError
from collage.runtime.arrays import load_arrays
from collage.runtime.child_environment import child_environment
from collage.runtime.manifest import Signature
from collage.runtime.plugin import library_environment, thread_environment
from collage.runtime.process_group import end_group

MAX_ANSWER_BYTES = 16 << 20
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
            **child_environment(),
            **library_environment(),
            **thread_environment(threads),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "collage.verify.benchmark_worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
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
        if not isinstance(answer, list) or not all(map(_is_time, answer)):
            raise MeasureError(f"{self.contender.name} died while it ran: {_error_of(answer)}")
        return answer

    def profile(self, calls: int) -> KernelProfile:
        """Time `calls` calls whole, and the kernels inside as many."""
        self._tell(f"profile {calls}")
        answer = self._hear()
        if not isinstance(answer, dict) or set(answer) != {"call_s", "kernels_s"}:
            raise MeasureError(f"{self.contender.name} cannot be profiled: {_error_of(answer)}")
        kernels_s = _numbers(answer["kernels_s"])
        if kernels_s is None or not _is_time(answer["call_s"]):
            raise MeasureError(f"{self.contender.name} cannot be profiled: it tells no times")
        return KernelProfile(answer["call_s"], kernels_s)

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
        errors = None if isinstance(answer, dict) and "error" in answer else _numbers(answer)
        if errors is None:
            raise MeasureError(f"{self.contender.name} cannot be checked: {_error_of(answer)}")
        return errors

    def outputs(self, file: Path) -> list[np.ndarray]:
        """Run once and return the outputs in order; they travel through `file` (.npz)."""
        self._tell(f"save {file.resolve()}")
        answer = self._hear()
        if not isinstance(answer, int):
            raise MeasureError(f"{self.contender.name} died while it ran: {_error_of(answer)}")
        stored = load_arrays(file)
        return [stored[f"arr_{position}"] for position in range(answer)]

    def close(self) -> None:
        """End the process and what it started; one that does not obey is killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # it died with unread bytes
        end_group(self._process, patience_s=5.0)

    def _tell(self, line: str) -> None:
        if self._process.stdin is None:
            raise MeasureError("a contender has no pipe")
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer will say that it ended

    def _hear(self) -> object:
        line = self._line()
        if isinstance(line, str):
            return {"error": line}
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            end_group(self._process)
            return {"error": "it sent an answer that is none"}

    def _line(self) -> bytes | str:
        """Return the next line, or why there is none."""
        stdout = self._process.stdout
        if stdout is None:
            raise MeasureError("a contender has no pipe")
        deadline = time.monotonic() + self.contender.patience_s
        data = bytearray()
        # One answer to one request: what follows the line is no answer to anything.
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                end_group(self._process)
                return f"no answer within {self.contender.patience_s:.0f} s"
            part = os.read(stdout.fileno(), 1 << 16)
            if not part:
                return f"the process ended with code {self._exit_code()}"
            data += part
            if len(data) > MAX_ANSWER_BYTES:
                end_group(self._process)
                return f"it sent an answer of more than {MAX_ANSWER_BYTES >> 20} MiB"
        return bytes(data)

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


def _is_time(value: object) -> bool:
    return _is_number(value) and 0 <= value < math.inf


def _numbers(value: object) -> dict[str, float] | None:
    """Return the answer as numbers by name, None where it is something else."""
    if not isinstance(value, dict) or not all(map(_is_number, value.values())):
        return None
    return value


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _error_of(answer: object) -> str:
    return str(answer["error"]) if isinstance(answer, dict) and "error" in answer else "no answer"
