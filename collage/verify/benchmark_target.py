"""A benchmark target and the parent's side of its child process (`benchmark_worker`)."""

import json
import math
import os
import select
import subprocess
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
from collage.runtime.process_group import end_group, start_group
from collage.runtime.target import Target

MAX_TARGET_ANSWER_BYTES = 16 << 20
PATIENCE_S = 120.0
"""Time without an answer after which a target counts as hanging and is killed, in seconds."""
ON_HOST = frozenset({"executable", "onnxruntime", "openvino", "openvino-bf16"})
"""Kinds that compute on the host; an executable only where its device is the CPU."""


@dataclass(frozen=True)
class BenchmarkTarget:
    """An executable or a framework with a model, to be timed.

    Attributes:
        name: unique name.
        kind: key of `benchmark_worker.KINDS`.
        path: file of the executable or the model.
        signature: signature of the executable's function; None for a framework.
        device: device of an executable, default the processor.
        options: options of ONNX Runtime's provider, for the kinds with one.
        patience_s: time without an answer before the target is killed, in seconds.
    """

    name: str
    kind: str
    path: Path
    signature: Signature | None = None
    device: Target = Target.CPU
    options: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = PATIENCE_S


@dataclass(frozen=True)
class KernelProfile:
    """Profile of an executable.

    Attributes:
        call_s: latency of one complete call while profiling, median in seconds.
        kernels_s: median seconds of every kernel by its symbol.
    """

    call_s: float
    kernels_s: Mapping[str, float]


class TargetProcess:
    """The process of a target. Its start takes about a second; `reason` waits for the end of the start."""

    def __init__(
        self, target: BenchmarkTarget, feed: Path, order: Sequence[str], threads: int
    ) -> None:
        """Start it.

        Args:
            target: target to run.
            feed: .npz file of the inputs.
            order: names of the inputs in the function's order.
            threads: threads of the target.
        """
        self.target = target
        environment = {
            **child_environment(),
            **library_environment(),
            **thread_environment(threads),
        }
        self._process = start_group(
            "collage.verify.benchmark_worker",
            [str(os.getpid())],
            environment=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        request = {
            "kind": target.kind,
            "path": str(target.path.resolve()),
            "device": target.device,
            "inputs": str(feed.resolve()),
            "order": list(order),
            "signature": asdict(target.signature) if target.signature else None,
            "options": dict(target.options),
            "threads": threads,
            "cpus": _cpus(target, threads),
        }
        self._reason: str | None = None
        self._send(json.dumps(request))

    @property
    def reason(self) -> str:
        """Reason why the target cannot run, "" where it runs; waits for the end of its start."""
        if self._reason is None:
            answer = self._receive()
            right = isinstance(answer, dict) and "error" not in answer
            self._reason = "" if right else _error_of(answer)
        return self._reason

    def run(self, calls: int) -> list[float]:
        """Return the seconds of each of `calls` calls."""
        self._send(str(calls))
        answer = self._receive()
        if not isinstance(answer, list) or not all(map(_is_time, answer)):
            raise MeasureError(f"{self.target.name} died while it ran: {_error_of(answer)}")
        return answer

    def profile(self, calls: int) -> KernelProfile:
        """Time `calls` calls whole, and the kernels inside as many."""
        self._send(f"profile {calls}")
        answer = self._receive()
        if not isinstance(answer, dict) or set(answer) != {"call_s", "kernels_s"}:
            raise MeasureError(f"{self.target.name} cannot be profiled: {_error_of(answer)}")
        kernels_s = _numbers(answer["kernels_s"])
        if kernels_s is None or not _is_time(answer["call_s"]):
            raise MeasureError(f"{self.target.name} cannot be profiled: the answer has no times")
        return KernelProfile(answer["call_s"], kernels_s)

    def write_expected(self, samples: Path) -> None:
        """Write the target's outputs of every accuracy sample in the folder."""
        self._send(f"answer {samples.resolve()}")
        answer = self._receive()
        if not isinstance(answer, int):
            raise MeasureError(
                f"{self.target.name} cannot run the accuracy samples: {_error_of(answer)}"
            )

    def check(self, samples: Path) -> dict[str, float]:
        """Return the largest error of every output over the accuracy samples in the folder."""
        self._send(f"check {samples.resolve()}")
        answer = self._receive()
        errors = None if isinstance(answer, dict) and "error" in answer else _numbers(answer)
        if errors is None:
            raise MeasureError(f"{self.target.name} cannot be checked: {_error_of(answer)}")
        return errors

    def compare(self, samples: Path) -> str:
        """Return the difference from the original's outputs of the samples, "" where they agree."""
        self._send(f"compare {samples.resolve()}")
        answer = self._receive()
        if not isinstance(answer, str):
            raise MeasureError(f"{self.target.name} cannot run the samples: {_error_of(answer)}")
        return answer

    def outputs(self, file: Path, names: Sequence[str]) -> list[np.ndarray]:
        """Run once and return the outputs called `names` in this order, through `file` (.npz)."""
        self._send(f"save {json.dumps({'file': str(file.resolve()), 'names': list(names)})}")
        answer = self._receive()
        if not isinstance(answer, int):
            raise MeasureError(f"{self.target.name} died while it ran: {_error_of(answer)}")
        stored = load_arrays(file)
        return [stored[f"arr_{position}"] for position in range(answer)]

    def close(self) -> None:
        """End the process and its children; a process that does not end is killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # it died with unread bytes
        end_group(self._process, patience_s=5.0)

    def _send(self, line: str) -> None:
        if self._process.stdin is None:
            raise MeasureError("a benchmark target has no pipe")
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the next answer is the end of the process

    def _receive(self) -> object:
        line = self._line()
        if isinstance(line, str):
            return {"error": line}
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            end_group(self._process)
            return {"error": "it sent an answer that is none"}

    def _line(self) -> bytes | str:
        """Return the next line, or the reason for its absence."""
        stdout = self._process.stdout
        if stdout is None:
            raise MeasureError("a benchmark target has no pipe")
        deadline = time.monotonic() + self.target.patience_s
        data = bytearray()
        # One answer to one request: text after the line answers nothing.
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                end_group(self._process)
                return f"no answer within {self.target.patience_s:.0f} s"
            part = os.read(stdout.fileno(), 1 << 16)
            if not part:
                return f"the process ended with code {self._exit_code()}"
            data += part
            if len(data) > MAX_TARGET_ANSWER_BYTES:
                end_group(self._process)
                return f"it sent an answer of more than {MAX_TARGET_ANSWER_BYTES >> 20} MiB"
        return bytes(data)

    def _exit_code(self) -> int:
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._process.returncode if self._process.returncode is not None else -1


def _cpus(target: BenchmarkTarget, threads: int) -> list[int]:
    """Return the processors of a target.

    With one thread all targets share one: another guest on a core slows it down by 15 % for seconds, and
    targets on different cores would differ by that.
    """
    allowed = sorted(os.sched_getaffinity(0))
    on_host = target.kind in ON_HOST and not target.device.is_gpu
    return allowed[-1:] if threads == 1 and on_host else allowed


def _is_time(value: object) -> bool:
    return _is_number(value) and 0 <= value < math.inf


def _numbers(value: object) -> dict[str, float] | None:
    """Return the answer as numbers by name, None where it has another type."""
    if not isinstance(value, dict) or not all(map(_is_number, value.values())):
        return None
    return value


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _error_of(answer: object) -> str:
    return str(answer["error"]) if isinstance(answer, dict) and "error" in answer else "no answer"
