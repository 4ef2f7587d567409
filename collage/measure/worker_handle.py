"""The handle of one worker: its state, deadline and current request.

    EMPTY -> STARTING -> IDLE -> BUILDING -> WAITING -> TIMING -> IDLE

After its worker's exit a handle is EMPTY. WAITING has no deadline: the worker waits for its turn to time a
kernel, and its remaining time is kept.
"""

import math
import time
from dataclasses import dataclass, field
from enum import Enum

from collage.cost.cost import CostKey
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import Go, Setup, Task
from collage.measure.worker_process import WorkerProcess

START_TIMEOUT_S = 120.0
GROWN = 2.0


class WorkerState(Enum):
    EMPTY = "empty"
    STARTING = "starting"
    IDLE = "idle"
    BUILDING = "building"
    WAITING = "waiting"
    TIMING = "timing"


@dataclass
class PendingMeasurement:
    """A cost key to measure, with the requests of the batch that share it.

    Attributes:
        deaths: number of workers that were killed with it.
        assigned: monotonic time of the last assignment to a worker, in seconds.
    """

    key: CostKey
    requests: list[tuple[int, MeasurementRequest]] = field(default_factory=list)
    deaths: int = 0
    assigned: float = 0.0

    @property
    def work(self) -> MeasurementRequest:
        return self.requests[0][1]


class WorkerHandle:
    """Handle of a worker process; it outlives the process and starts the next one."""

    def __init__(self, setup: Setup, timeout_s: float) -> None:
        self.setup = setup
        self.state = WorkerState.EMPTY
        self.worker: WorkerProcess | None = None
        self.pending: PendingMeasurement | None = None
        self.run_backends: set[str] = set()
        """Names of the backends that have run in the process."""
        self._timeout_s = timeout_s
        self._deadline = math.inf
        self._remaining_s = 0.0
        self._first_bytes = 0

    def start(self) -> None:
        self.worker = WorkerProcess(self.setup)
        self._enter(WorkerState.STARTING, START_TIMEOUT_S)

    def set_idle(self) -> None:
        """Mark the worker as idle; stop it if its memory has grown much since the start."""
        assert self.worker is not None
        self.pending = None
        self._enter(WorkerState.IDLE, math.inf)
        own = self.worker.own_bytes()
        self._first_bytes = self._first_bytes or own
        if own > max(self.setup.memory_bytes / 2, GROWN * self._first_bytes):
            self.stop()

    def assign(self, pending: PendingMeasurement, task: Task) -> None:
        assert self.worker is not None
        self.pending = pending
        pending.assigned = time.monotonic()
        self.run_backends.add(pending.work.backend)
        self.worker.send(task)
        self._enter(WorkerState.BUILDING, self._timeout_s)

    def await_turn(self) -> None:
        self._remaining_s = self._deadline - time.monotonic()
        self._enter(WorkerState.WAITING, math.inf)

    def start_timing(self) -> None:
        assert self.worker is not None
        self.worker.send(Go())
        self._enter(WorkerState.TIMING, self._remaining_s)

    def excess(self) -> str:
        """Return the exceeded limit in words, or ""."""
        if self.worker is None:
            return ""
        if time.monotonic() > self._deadline:
            limit_s = START_TIMEOUT_S if self.state is WorkerState.STARTING else self._timeout_s
            return f"timed out after {limit_s:g} s"
        return self.worker.excess(self.setup.memory_bytes)

    def stop(self) -> None:
        """Kill the worker, if there is one."""
        worker, self.worker = self.worker, None
        self.pending = None
        self.run_backends.clear()
        self._first_bytes = 0
        self._enter(WorkerState.EMPTY, math.inf)
        if worker is not None:
            worker.kill()

    def _enter(self, state: WorkerState, seconds: float) -> None:
        self.state = state
        self._deadline = time.monotonic() + seconds
