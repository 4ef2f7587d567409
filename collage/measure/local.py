"""Measure on this machine: a few worker processes that are reused, watched and replaced.

Costs that the table knows are not measured again; equal candidates of a batch are measured once.
A worker that dies, hangs or runs out of memory costs its candidate (after a second try for a death
that may have come from outside) and is replaced; the batch goes on. Workers build side by side,
but only one of them times at any moment.
"""

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil

from collage.backends.base import Backend
from collage.cost import Cost, CostKey, CostTable, Environment
from collage.cost.cost import cost_key
from collage.errors import CollageError, MeasureError
from collage.frontend import Function
from collage.frontend.region import region_digest
from collage.measure.messages import (
    Answer,
    AnswerReader,
    Built,
    Go,
    Outcome,
    Ready,
    Refused,
    Request,
    Setup,
    Task,
    pack_frame,
)
from collage.measure.timing import sweep_bytes
from collage.measure.work import OnCost, Work

START_TIMEOUT_S = 120.0
LOADER = "collage.measure.workshop:FunctionWorkshop"
WATCH_EVERY_S = 0.2


@dataclass
class _Job:
    key: CostKey
    works: list[tuple[int, Work]]
    deaths: int = 0


@dataclass
class _Batch:
    """What the threads of one batch share."""

    jobs: "SimpleQueue[_Job]"
    costs: list[Cost]
    on_cost: OnCost | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    error: BaseException | None = None


class LocalMeasurer:
    """Measures works of `functions` on `backends` with `workers` processes.

    Args of the constructor:
        functions: the functions that works name.
        backends: the backends that works name.
        table: where costs are looked up and kept.
        environment: of the costs.
        reference_dir: folder of the reference values (one function), see `frontend.inputs`.
        workers: processes; they start when first needed.
        timeout_s: wall limit of one candidate, build and timing.
        memory_bytes: limit of one worker's data.
        footprint_bytes: what one run of the model touches.
        loader: `module:callable` that makes the workshop inside a worker.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        backends: Sequence[Backend],
        table: CostTable,
        environment: Environment,
        *,
        reference_dir: Path,
        workers: int = 1,
        timeout_s: float = 30.0,
        memory_bytes: int = 4 << 30,
        footprint_bytes: int = 64 << 20,
        loader: str = LOADER,
    ) -> None:
        self._functions = {function.name: function for function in functions}
        self._identities = {backend.name: backend.identity for backend in backends}
        self._table = table
        self._environment = environment
        self._timeout_s = timeout_s
        self._count = workers
        self._sweep = sweep_bytes(footprint_bytes)
        self._timing = threading.Lock()
        self._boundary_s: float | None = None
        self._setup = Setup(
            loader,
            tuple((function.name, function.simplified) for function in functions),
            tuple(self._identities),
            environment.threads,
            reference_dir,
            memory_bytes,
            self._sweep,
            measure_boundary=True,
        )
        self._workers: list[_Worker | None] = [None] * workers
        self.measured = self.cached = self.invalid = 0

    def key(self, work: Work) -> CostKey:
        """Key of a work's cost in the table."""
        digest = region_digest(self._functions[work.function], work.nodes)
        identity = f"{self._identities[work.backend]} {work.variant} sweep={self._sweep}"
        return cost_key(digest, identity, self._environment)

    def measure(self, batch: Sequence[Work], on_cost: OnCost | None = None) -> list[Cost]:
        """Return the cost of each work, in order.

        Raises:
            MeasureError: workers do not start at all.
            StoreError: a cost cannot be kept.
        """
        state = _Batch(SimpleQueue(), [Cost.unknown()] * len(batch), on_cost)
        jobs: dict[CostKey, _Job] = {}
        for position, work in enumerate(batch):
            key = self.key(work)
            known = self._table.get(key)
            if known is not None:
                self.cached += 1
                self.invalid += known.is_invalid
                state.costs[position] = known
                if on_cost:
                    on_cost(work, known, True)
            else:
                jobs.setdefault(key, _Job(key, [])).works.append((position, work))
        for job in jobs.values():
            state.jobs.put(job)
        if jobs:
            self._run(state, min(self._count, len(jobs)))
        return state.costs

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            if worker is not None:
                worker.kill()
        self._workers = [None] * self._count

    def _run(self, state: _Batch, count: int) -> None:
        threads = [
            threading.Thread(target=self._serve, args=(slot, state), daemon=True)
            for slot in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self.close()
            raise
        if state.error is not None:
            raise state.error

    def _serve(self, slot: int, state: _Batch) -> None:
        try:
            while state.error is None:
                try:
                    job = state.jobs.get_nowait()
                except Empty:
                    return
                outcome = self._measure_one(slot, job)
                if outcome is None:
                    state.jobs.put(job)
                else:
                    self._keep(state, job, outcome)
        except CollageError as error:
            state.error = error

    def _measure_one(self, slot: int, job: _Job) -> Outcome | None:
        """Measure in the slot's worker; None asks for another try."""
        worker = self._workers[slot]
        if worker is None:
            worker = self._workers[slot] = _Worker(self._setup)
        if self._boundary_s is None:
            self._boundary_s = worker.boundary_s
        task = Task(job.works[0][1], math.inf, self._boundary_s)
        answer = worker.ask(task, self._timeout_s)
        if isinstance(answer, Built):
            with self._timing:
                answer = worker.ask(Go(), self._timeout_s)
        if isinstance(answer, Outcome):
            return answer
        worker.kill()
        self._workers[slot] = None
        if worker.killed_for:
            return Outcome(Cost.invalid(worker.killed_for))
        job.deaths += 1
        if job.deaths == 1:
            return None
        return Outcome(Cost.invalid(f"the worker died twice: {worker.epitaph()}"))

    def _keep(self, state: _Batch, job: _Job, outcome: Outcome) -> None:
        cost = outcome.cost
        with state.lock:
            if outcome.durable:
                self._table.put(job.key, cost)
            self.measured += 1
            self.invalid += cost.is_invalid
            for position, work in job.works:
                state.costs[position] = cost
                if state.on_cost:
                    state.on_cost(work, cost, False)


class _Worker:
    """One worker process, with limits of time (per question) and of resident memory."""

    def __init__(self, setup: Setup) -> None:
        environment = os.environ | {
            "OMP_WAIT_POLICY": "PASSIVE",
            "OMP_NUM_THREADS": str(setup.threads),
            "TVM_NUM_THREADS": str(setup.threads),
            "ORT_DISABLE_TELEMETRY": "1",
        }
        self.killed_for = ""
        self._memory_bytes = setup.memory_bytes
        self._reader = AnswerReader()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        command = [sys.executable, "-m", "collage.measure.worker", "--parent", str(os.getpid())]
        self._process = subprocess.Popen(
            [*command, "--requests", str(requests), "--answers", str(answers)],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env=environment,
            pass_fds=(requests, answers),
        )
        os.close(requests)
        os.close(answers)
        ready = self.ask(setup, START_TIMEOUT_S)
        if not isinstance(ready, Ready):
            self.kill()
            reason = ready.reason if isinstance(ready, Refused) else self.epitaph()
            raise MeasureError(f"a measuring process does not start: {reason}")
        self.boundary_s = ready.boundary_s or 0.0

    def ask(self, question: Request, timeout_s: float) -> Answer | None:
        """Send a request and wait for its answer; None when the worker died or was killed."""
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, timeout_s), daemon=True)
        watch.start()
        try:
            data = pack_frame(question)
            while data:
                data = data[os.write(self._requests, data) :]
            while chunk := os.read(self._answers, 1 << 20):
                for answer in self._reader.feed(chunk):
                    return answer
            return None
        except OSError:
            return None
        finally:
            done.set()
            watch.join()

    def _watch(self, done: threading.Event, timeout_s: float) -> None:
        waited = 0.0
        while not done.wait(WATCH_EVERY_S):
            waited += WATCH_EVERY_S
            if waited >= timeout_s:
                self.killed_for = f"timed out after {timeout_s:.0f} s"
            elif self._resident_bytes() > self._memory_bytes:
                self.killed_for = f"needs more than {self._memory_bytes / (1 << 30):.1f} GiB"
            if self.killed_for:
                self._process.kill()
                return

    def _resident_bytes(self) -> int:
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.NoSuchProcess:
            return 0

    def kill(self) -> None:
        """End the process at once; safe to call again."""
        if self._process.returncode is not None:
            return
        self._process.kill()
        self._process.wait()
        os.close(self._requests)
        os.close(self._answers)

    def epitaph(self) -> str:
        """Say how the process ended: its signal or code, and its last words."""
        code = self._process.returncode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"{how}; {words[-1][:300]}" if words else how
