"""Tuning in a supervised worker process: each trial is recorded before the next one.

A crash, a hang or too much memory ends the trials of the workload, and the reason is recorded, so that no
later run repeats it. A worker killed from outside says nothing about the workload. A kernel that loses a
GPU's context is a failed trial: a new worker continues with other schedules. At the deadline the worker is
ended, and its current trial is lost. The parent writes the records, so a corrupted worker cannot.
"""

import hashlib
import math
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collage.backends.base import BuildContext
from collage.backends.registry import class_path
from collage.errors import MeasureError
from collage.frontend.model import Function
from collage.frontend.region import region_digest
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import KernelRefused, Ready, Setup, Trial, TuneTask, TuningEnded
from collage.measure.worker_handle import START_TIMEOUT_S
from collage.measure.worker_process import WorkerProcess
from collage.runtime.target import Target
from collage.tuning.records import TuningRecord, TuningRecords, WorkloadDigest, workload_digest
from collage.tuning.targets import toolchain, tunable

TUNING_WORKER = "collage.tuning.tuning_worker"
TUNING_POLL_S = 0.05
MAX_SEED_SCHEDULES = 8
"""Largest number of schedules at the start of a search; they must fit the pipe's buffer."""
MAX_LOST_CONTEXTS = 4
"""Lost GPU contexts of a workload in one call of `tune`: each needs a new worker."""


@dataclass(frozen=True)
class TuningLimits:
    """TuningLimits of the worker.

    Attributes:
        silence_s: longest time between two answers, in seconds.
        memory_bytes: limit of resident memory, in bytes.
    """

    silence_s: float = 30.0
    memory_bytes: int = 4 << 30


class Tuner:
    """Tunes regions of functions, one at a time; close it when done.

    Totals over all calls: `trials`, `failed` trials without correct outputs, and `seconds`.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        records: TuningRecords,
        threads: int,
        *,
        reference_dir: Path,
        cache_flush_bytes: int,
        limits: TuningLimits | None = None,
        child: str = TUNING_WORKER,
        device: Target = Target.CPU,
    ) -> None:
        """Make a tuner; its worker starts when first needed.

        Args:
            functions: functions of the requests; their simplified files exist.
            records: destination of all trials.
            threads: number of threads of the kernels.
            reference_dir: folder of `frontend.inputs.save_reference`.
            cache_flush_bytes: size of the cache flush before every timed call, in bytes.
            limits: limits of the worker; None is the default.
            child: module of the worker process.
            device: device of the kernels.
        """
        self.trials = self.failed = 0
        self.seconds = 0.0
        self.records = records
        self.toolchain = toolchain(threads, device)
        self._functions = {function.name: function for function in functions}
        self._limits = limits or TuningLimits()
        self._child = child
        self._process: WorkerProcess | None = None
        self._setup = Setup(
            loader="",
            functions=tuple((function.name, function.simplified) for function in functions),
            backends=(class_path(tunable(device)),),
            build=BuildContext(threads),
            reference_dir=reference_dir,
            memory_bytes=self._limits.memory_bytes,
            cache_flush_bytes=cache_flush_bytes,
            measure_dispatch_overhead=False,
            device=device,
            has_samples=any(function.has_samples for function in functions),
        )

    def workload(self, work: MeasurementRequest) -> WorkloadDigest:
        """Return the digest of the request's workload."""
        digest = region_digest(self._functions[work.function], work.nodes)
        return workload_digest(digest, self.toolchain)

    def tune(
        self,
        work: MeasurementRequest,
        trials: int,
        deadline: float = math.inf,
        on_trial: Callable[[TuningRecord], None] | None = None,
    ) -> None:
        """Run up to `trials` more trials of the request's region, until `deadline`.

        Args:
            work: region to tune.
            trials: largest number of further trials.
            deadline: end of the search, in monotonic seconds; default none.
            on_trial: callback for each record; None without.

        Raises:
            MeasureError: the worker does not start.
            StoreError: a record cannot be written; those before it are.
        """
        start = time.monotonic()
        workload, last = self.workload(work), self.trials + trials
        try:
            for _ in range(MAX_LOST_CONTEXTS):
                task = TuneTask(
                    work, last - self.trials, self._seed(workload), self._best_known(workload)
                )
                lost = self._run(task, workload, deadline, on_trial)
                if not lost or self.trials >= last:
                    return
            self._end(workload, f"{MAX_LOST_CONTEXTS} schedules crashed, the last: {lost}")
        except BaseException:
            self.close()
            raise
        finally:
            self.seconds += time.monotonic() - start

    def close(self) -> None:
        """End the worker; a later `tune` starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _run(
        self,
        task: TuneTask,
        workload: WorkloadDigest,
        deadline: float,
        on_trial: Callable[[TuningRecord], None] | None,
    ) -> str:
        """Run the task; return the reason of a lost GPU context, or ""."""
        process = self._started(task, deadline)
        heard = time.monotonic()
        while process is not None:
            answers = self._wait(process)
            now_s = time.monotonic()
            if answers is None:
                self._on_exit(process, workload)
                return ""
            for answer in answers:
                heard = now_s
                if isinstance(answer, Trial):
                    self._record(workload, answer, on_trial)
                    if answer.lost:
                        self.close()
                        return answer.reason
                elif isinstance(answer, TuningEnded):
                    self._end(workload, answer.reason)
                    return ""
            if excess := self._excess(process, now_s - heard):
                self.close()
                self._end(workload, excess)
                return ""
            if now_s > deadline:
                self.close()
                return ""
        return ""

    def _started(self, task: TuneTask, deadline: float) -> WorkerProcess | None:
        """Return the worker with the task started; None if it is not ready by the deadline."""
        if self._process is None:
            self._process = WorkerProcess(self._setup, self._child)
            limit = time.monotonic() + START_TIMEOUT_S
            ready = False
            while not ready:
                answers = self._wait(self._process)
                if answers is None or time.monotonic() > limit:
                    reason = self._process.exit_reason() if answers is None else "it is silent"
                    raise MeasureError(f"the tuning process does not start: {reason}")
                for answer in answers:
                    if isinstance(answer, KernelRefused):
                        raise MeasureError(f"the tuning process cannot work: {answer.reason}")
                    ready = isinstance(answer, Ready)
                if time.monotonic() > deadline:
                    self.close()
                    return None
        self._process.send(task)
        return self._process

    def _wait(self, process: WorkerProcess) -> Sequence[object] | None:
        with selectors.DefaultSelector() as selector:
            selector.register(process, selectors.EVENT_READ)
            return process.read() if selector.select(TUNING_POLL_S) else ()

    def _record(
        self,
        workload: WorkloadDigest,
        trial: Trial,
        on_trial: Callable[[TuningRecord], None] | None,
    ) -> None:
        record = TuningRecord(
            workload, trial.trace, trial.latency_s, trial.trial_s, reason=trial.reason
        )
        self.records.add(record, self.toolchain)
        self.trials += 1
        self.failed += not record.worked
        if on_trial:
            on_trial(record)

    def _end(self, workload: WorkloadDigest, reason: str) -> None:
        if reason:
            self.records.add(
                TuningRecord(workload, "", math.inf, 0.0, reason=reason), self.toolchain
            )

    def _on_exit(self, process: WorkerProcess, workload: WorkloadDigest) -> None:
        exit_reason, killed = process.exit_reason(), process.was_killed
        self.close()
        if not killed:
            self._end(workload, f"crashed: {exit_reason}")

    def _excess(self, process: WorkerProcess, silent_s: float) -> str:
        if silent_s > self._limits.silence_s:
            return f"timed out after {self._limits.silence_s:g} s"
        return process.excess(self._limits.memory_bytes)

    def _best_known(self, workload: WorkloadDigest) -> tuple[tuple[str, float], ...]:
        best = [record for record in self.records.of(workload) if record.worked][
            :MAX_SEED_SCHEDULES
        ]
        return tuple((record.trace, record.latency_s) for record in best)

    def _seed(self, workload: WorkloadDigest) -> int:
        """Return a seed with other schedules for each continuation of a search."""
        text = f"{workload} {len(self.records.of(workload))}"
        return 1 + int(hashlib.sha256(text.encode()).hexdigest()[:7], 16)
