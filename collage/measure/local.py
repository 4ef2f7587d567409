"""Measure on this machine: a few worker processes that are reused, watched and replaced.

Costs that the table knows are not measured again; equal candidates of a batch are measured once.
A worker that dies, hangs or runs out of memory costs its candidate (after a second try for a death
that may have come from outside) and is replaced; the batch goes on. Workers build side by side,
but only one of them times at any moment.
"""

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

from collage.backends.base import Backend
from collage.cost import Cost, CostKey, CostTable, Environment
from collage.cost.cost import cost_key
from collage.errors import CollageError, MeasureError
from collage.frontend import Function
from collage.frontend.region import region_digest
from collage.measure.environment import sweep_bytes
from collage.measure.work import OnCost, Work
from collage.measure.worker import WorkerSetup, receive, send

START_TIMEOUT_S = 120.0
FACTORY = "collage.backends.registry:available_backends"


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
        factory: `module:function` that makes backends by name inside a worker.
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
        factory: str = FACTORY,
    ) -> None:
        self._functions = {function.name: function for function in functions}
        self._identities = {backend.name: backend.identity for backend in backends}
        self._table = table
        self._environment = environment
        self._timeout_s = timeout_s
        self._count = workers
        self._sweep = sweep_bytes(footprint_bytes)
        self._lock = tempfile.NamedTemporaryFile(prefix="collage-timing-")
        self._setup = WorkerSetup(
            tuple((f.name, str(f.simplified), str(reference_dir)) for f in functions),
            tuple(self._identities),
            factory,
            environment.threads,
            memory_bytes,
            self._sweep,
            self._lock.name,
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
        self._lock.close()

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
                cost = self._measure_one(slot, job)
                if cost is None:
                    state.jobs.put(job)
                else:
                    self._keep(state, job, cost)
        except CollageError as error:
            state.error = error

    def _measure_one(self, slot: int, job: _Job) -> Cost | None:
        """Measure in the slot's worker; None asks for another try."""
        worker = self._workers[slot]
        if worker is None:
            worker = self._workers[slot] = _Worker(self._setup)
        cost = worker.ask(job.works[0][1], self._timeout_s)
        if isinstance(cost, Cost):
            return cost
        worker.kill()
        self._workers[slot] = None
        if worker.timed_out:
            return Cost.invalid(f"timed out after {self._timeout_s:.0f} s")
        job.deaths += 1
        if job.deaths == 1:
            return None
        return Cost.invalid(f"the worker died twice: {worker.epitaph()}")

    def _keep(self, state: _Batch, job: _Job, cost: Cost) -> None:
        with state.lock:
            self._table.put(job.key, cost)
            self.measured += 1
            self.invalid += cost.is_invalid
            for position, work in job.works:
                state.costs[position] = cost
                if state.on_cost:
                    state.on_cost(work, cost, False)


class _Worker:
    """One worker process."""

    def __init__(self, setup: WorkerSetup) -> None:
        environment = os.environ | {
            "OMP_WAIT_POLICY": "PASSIVE",
            "OMP_NUM_THREADS": str(setup.threads),
            "TVM_NUM_THREADS": str(setup.threads),
            "ORT_DISABLE_TELEMETRY": "1",
        }
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "collage.measure.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self.timed_out = False
        if self.ask(setup, START_TIMEOUT_S) != "ready":
            self.kill()
            raise MeasureError(f"a measuring process does not start: {self.epitaph()}")

    def ask(self, question: object, timeout_s: float) -> object:
        """Send a frame and wait for the answer; None when the worker died or was killed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return None
        timer = threading.Timer(timeout_s, self._time_out)
        timer.start()
        try:
            send(stdin, question)  # type: ignore[arg-type]
            return receive(stdout)  # type: ignore[arg-type]
        except (EOFError, OSError):
            return None
        finally:
            timer.cancel()

    def _time_out(self) -> None:
        self.timed_out = True
        self._process.kill()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def epitaph(self) -> str:
        """Say how the process ended: its signal or code, and its last words."""
        code = self._process.returncode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"{how}; {words[-1][:300]}" if words else how
