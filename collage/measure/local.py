"""The measurer of this machine: a few worker processes, reused, supervised and replaced.

Costs in the table are not measured again, and equal requests of a batch are measured once. Workers build
side by side, but time one kernel at a time: a worker with a built kernel waits for its turn. The number of
workers leaves enough cores for the timed kernel's own threads. A worker that crashes, hangs or exceeds its
memory limit gives its candidate an invalid cost and is replaced. The candidate of a worker killed from
outside is tried once more.

One thread serves all workers. A cost is in the table before the caller gets it, so an interrupted or
killed run repeats nothing.
"""

import math
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from collage.backends.base import Backend, BuildContext, conflicts_of
from collage.backends.registry import class_path
from collage.cost import Cost, CostKey, CostTable
from collage.errors import MeasureError
from collage.frontend.model import Function
from collage.frontend.region import region_digest
from collage.graph.index_set import IndexSet
from collage.measure.call_overhead import DispatchOverhead
from collage.measure.conditions import MeasuringConditions, WorkerLimits
from collage.measure.cost_key import CostKeys
from collage.measure.measurement_request import MeasurementRequest, OnCost
from collage.measure.messages import (
    Answer,
    Built,
    KernelFolder,
    KernelRefused,
    MeasurementOutcome,
    Ready,
    Setup,
    Task,
)
from collage.measure.worker_handle import PendingMeasurement, WorkerHandle, WorkerState

LOADER = "collage.measure.function_kernel_builder:FunctionKernelBuilder"
WORKER_POLL_S = 0.02
MAX_FAILED_STARTS = 2
RESOLUTION = 1e-3
"""Sufficient width of an interval, relative to one run of the function."""


class LocalMeasurer:
    """Implements `SearchMeasurer` with worker processes; call `close` when done.

    Counts over all batches: `measured` requests were measured, `cached` came from the table or from an
    equal request of the batch, `invalid` of both are unusable, and `drifted` were measured while the
    machine's speed changed. `built` kernels were built by this measurer's workers.
    """

    batch = 16
    """Enough requests for some seconds of two workers."""

    waited_s = 0.0
    """A local measurer never waits for machines."""

    def __init__(
        self,
        functions: Sequence[Function],
        backends: Sequence[Backend],
        table: CostTable,
        conditions: MeasuringConditions,
        *,
        build: BuildContext | None = None,
        reference_dir: Path,
        limits: WorkerLimits | None = None,
        kernels: KernelFolder | None = None,
        loader: str = LOADER,
        digest: Callable[[Function, IndexSet], str] = region_digest,
    ) -> None:
        """Make a measurer; workers start when first needed.

        Args:
            functions: functions of the requests; their simplified files exist.
            backends: backends of the requests.
            table: any table of the store; costs go to the table of the environment.
            conditions: environment, device and cache flush of the costs.
            build: threads and folders of the kernels; None: the environment's threads, no folders.
            reference_dir: folder of `frontend.inputs.save_reference`.
            limits: limits of the workers; None: the defaults of `WorkerLimits`.
            kernels: kernel files that pass between processes; None: workers build kernels for themselves. In
                a folder to fill, the cost of a request is the build time, and `table` a table of builds.
            loader: "module:callable" of the kernel builder in a worker.
            digest: function returning the digest of a region's structure.
        """
        self.measured = self.cached = self.invalid = self.drifted = self.built = 0
        environment, limits = conditions.environment, limits or WorkerLimits()
        builds = kernels is not None and kernels.builds
        self._table = table.within(environment)
        self._transient_costs: dict[CostKey, Cost] = {}
        self._best_s: dict[tuple[str, IndexSet], float] = {}
        self._sizes = {function.name: len(function.graph) for function in functions}
        self._run_s: dict[str, float] = {}
        self._failed_starts = 0
        self._conflicts = conflicts_of(backends)
        self.key = CostKeys(functions, backends, environment, conditions.cache_flush, digest=digest)
        stored = self._table.get(self.key.boundary)
        self._boundary_s = stored.seconds if stored else 0.0 if builds else None
        self._setup = Setup(
            loader=loader,
            functions=tuple((function.name, function.simplified) for function in functions),
            backends=tuple(class_path(backend) for backend in backends),
            build=build or BuildContext(environment.threads),
            reference_dir=reference_dir,
            memory_bytes=limits.memory_bytes,
            cache_flush_bytes=conditions.cache_flush.size_bytes,
            measure_dispatch_overhead=self._boundary_s is None,
            device=conditions.device,
            kernels=kernels,
            has_samples=any(function.has_samples for function in functions),
        )
        count = _worker_count(limits.workers, environment.threads, builds=builds)
        self._handles = [WorkerHandle(self._setup, limits.timeout_s) for _ in range(count)]

    def recall(
        self, requests: Sequence[MeasurementRequest], on_cost: OnCost | None = None
    ) -> list[Cost]:
        """Return the stored cost of each request, in order; an unknown cost where none is stored.

        CostTable after similar cache flushes count here; for `measure` only costs after its own do.
        """
        costs = []
        for work in requests:
            cost = self.key.recall(self._table, work)
            if cost is not None:
                self._note_known(work, cost)
                if on_cost:
                    on_cost(work, cost, True)
            costs.append(cost or Cost.unknown())
        return costs

    def measure(
        self, batch: Sequence[MeasurementRequest], on_cost: OnCost | None = None
    ) -> list[Cost]:
        """Return the cost of each request, in order.

        Raises:
            MeasureError: no worker starts.
            StoreError: a cost cannot be stored; those before it are.
        """
        run = _Batch(batch, on_cost)
        for position, work in enumerate(batch):
            key = self.key(work)
            cost = self._transient_costs.get(key) or self._table.get(key)
            if cost is None:
                run.add(key, position, work)
            else:
                self._note_known(work, cost)
                run.report(position, work, cost, True)
        try:
            self._serve(run)
        except BaseException:
            self.close()  # workers are in the middle of something
            raise
        self._table.flush()
        return run.costs

    def _note_known(self, work: MeasurementRequest, cost: Cost) -> None:
        self._learn(work, cost)
        self.cached += 1
        self.invalid += cost.is_invalid

    def close(self) -> None:
        """End all workers; a later `measure` starts new ones."""
        for handle in self._handles:
            handle.stop()

    def _serve(self, run: "_Batch") -> None:
        while run.queue or any(handle.pending for handle in self._handles):
            self._dispatch(run)
            with selectors.DefaultSelector() as selector:
                for handle in self._handles:
                    if handle.worker is not None:
                        selector.register(handle.worker, selectors.EVENT_READ, handle)
                ready = selector.select(WORKER_POLL_S)
            for event, _ in ready:
                self._receive(run, event.data)
            for handle in self._handles:
                excess = handle.excess()
                if excess:
                    self._stop(run, handle, excess)

    def _dispatch(self, run: "_Batch") -> None:
        free = len(run.queue)
        for handle in self._handles:
            if handle.state is WorkerState.IDLE and run.queue:
                pending = run.take(partial(self._may_run, handle))
                if pending is None:
                    handle.stop()
                    continue
                handle.assign(pending, self._task(pending.work))
                free -= 1
            elif handle.state is WorkerState.STARTING:
                free -= 1
            elif handle.state is WorkerState.EMPTY and free > 0 and self._may_start():
                handle.start()
                free -= 1
        for handle in self._handles:
            timing = any(candidate.state is WorkerState.TIMING for candidate in self._handles)
            if handle.state is WorkerState.WAITING and not timing:
                handle.start_timing()

    def _may_run(self, handle: WorkerHandle, work: MeasurementRequest) -> bool:
        """Tell whether the worker has run no backend in conflict with the request's backend."""
        return not handle.run_backends & self._conflicts.get(work.backend, frozenset())

    def _may_start(self) -> bool:
        """The first worker measures the dispatch overhead; the others start after that."""
        if self._boundary_s is not None:
            return True
        return all(handle.state is WorkerState.EMPTY for handle in self._handles)

    def _task(self, work: MeasurementRequest) -> Task:
        best_s = self._best_s.get((work.function, work.nodes), math.inf)
        resolution_s = RESOLUTION * self._run_s.get(work.function, 0.0)
        return Task(work, best_s, self._boundary_s or 0.0, resolution_s)

    def _receive(self, run: "_Batch", handle: WorkerHandle) -> None:
        assert handle.worker is not None
        answers = handle.worker.read()
        if answers is None:
            self._on_exit(run, handle)
            return
        worker = handle.worker
        for answer in answers:
            if handle.worker is not worker:
                return  # it was replaced
            if not self._take(run, handle, answer):
                worker.reject_answer(f"{type(answer).__name__} when it was {handle.state.value}")
                self._on_exit(run, handle)

    def _take(self, run: "_Batch", handle: WorkerHandle, answer: Answer) -> bool:
        """Act on an answer; return False for an answer out of order."""
        match answer:
            case Ready(boundary) if handle.state is WorkerState.STARTING:
                self._failed_starts = 0
                self._learn_boundary(boundary)
                handle.set_idle()
            case KernelRefused(reason) if handle.state is WorkerState.STARTING:
                raise MeasureError(f"a measuring process cannot work: {reason}")
            case Built() if handle.state is WorkerState.BUILDING:
                handle.await_turn()
            case MeasurementOutcome() if (
                handle.state in (WorkerState.BUILDING, WorkerState.TIMING) and handle.pending
            ):
                pending = handle.pending
                handle.set_idle()
                self._finish(run, pending, answer)
            case _:
                return False
        return True

    def _on_exit(self, run: "_Batch", handle: WorkerHandle) -> None:
        """Record the exit of a worker that this measurer did not stop."""
        assert handle.worker is not None
        worker, pending = handle.worker, handle.pending
        was_starting = handle.state is WorkerState.STARTING
        exit_reason, killed = worker.exit_reason(), worker.was_killed
        handle.stop()
        if was_starting:
            self._failed_start(exit_reason)
        if pending is None:
            return
        if not killed:
            self._finish(run, pending, MeasurementOutcome(Cost.invalid(f"crashed: {exit_reason}")))
            return
        pending.deaths += 1
        if pending.deaths < 2:
            run.queue.appendleft(pending)
        else:
            self._finish(
                run,
                pending,
                MeasurementOutcome(
                    Cost.invalid(f"worker died twice: {exit_reason}"), durable=False
                ),
            )

    def _stop(self, run: "_Batch", handle: WorkerHandle, excess: str) -> None:
        pending, was_starting = handle.pending, handle.state is WorkerState.STARTING
        handle.stop()
        if was_starting:
            self._failed_start(excess)
        if pending is not None:
            self._finish(run, pending, MeasurementOutcome(Cost.invalid(excess)))

    def _failed_start(self, reason: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise MeasureError(
                f"measuring processes do not start: {reason}; more memory, or fewer workers, may help"
            )

    def _finish(
        self, run: "_Batch", pending: PendingMeasurement, outcome: MeasurementOutcome
    ) -> None:
        cost = outcome.cost
        if cost.is_invalid and not cost.build_s:
            # A voided cost is known by its content: equal failures of one key differ in their times.
            cost = replace(cost, build_s=time.monotonic() - pending.assigned)
        if outcome.durable:
            self._table.put(pending.key, cost)
        else:
            self._transient_costs[pending.key] = cost
        self.measured += 1
        self.drifted += outcome.drifted
        self.built += outcome.built
        self.cached += len(pending.requests) - 1
        self.invalid += cost.is_invalid * len(pending.requests)
        for count, (position, work) in enumerate(pending.requests):
            self._learn(work, cost)
            run.report(position, work, cost, count > 0)

    def _learn(self, work: MeasurementRequest, cost: Cost) -> None:
        region = (work.function, work.nodes)
        if cost.is_valid:
            if (
                not cost.error
            ):  # reduced precision may be forbidden: then the others need exact costs
                self._best_s[region] = min(cost.seconds, self._best_s.get(region, math.inf))
            if 2 * work.nodes.bit_count() >= self._sizes[work.function]:
                run_s = self._run_s.get(work.function, math.inf)
                self._run_s[work.function] = min(cost.seconds, run_s)

    def _learn_boundary(self, boundary: DispatchOverhead | None) -> None:
        if boundary is None or self._boundary_s is not None:
            return
        self._boundary_s = boundary.call_s
        if self._setup.device.is_asynchronous:
            self._put_exactly(self.key.launch, boundary.launch_s)
        self._put_exactly(self.key.boundary, boundary.call_s)

    def _put_exactly(self, key: CostKey, seconds: float) -> None:
        self._table.put(key, Cost(seconds, seconds, seconds))


class _Batch:
    """The state of one `measure` call."""

    def __init__(self, batch: Sequence[MeasurementRequest], on_cost: OnCost | None) -> None:
        self.costs = [Cost.unknown()] * len(batch)
        self.queue: deque[PendingMeasurement] = deque()
        self._pending: dict[CostKey, PendingMeasurement] = {}
        self._on_cost = on_cost

    def add(self, key: CostKey, position: int, work: MeasurementRequest) -> None:
        if key not in self._pending:
            self._pending[key] = PendingMeasurement(key)
            self.queue.append(self._pending[key])
        self._pending[key].requests.append((position, work))

    def take(self, fits: Callable[[MeasurementRequest], bool]) -> PendingMeasurement | None:
        """Remove the first measurement that fits from the queue; None where none fits."""
        for pending in self.queue:
            if fits(pending.work):
                self.queue.remove(pending)
                return pending
        return None

    def report(self, position: int, work: MeasurementRequest, cost: Cost, cached: bool) -> None:
        self.costs[position] = cost
        if self._on_cost:
            self._on_cost(work, cost, cached)


def _worker_count(workers: int, threads: int, *, builds: bool) -> int:
    """Return `workers`, or fewer where a build would take a core from the timed kernel."""
    cores = len(os.sched_getaffinity(0))
    room = cores // threads if builds else cores - threads + 1
    return max(1, min(workers, room))
