"""A measurer with pods as workers: every batch becomes Indexed Jobs of shards, one for each backend group.

The store is the only channel. Before a batch is submitted, running Jobs of the same search are waited for,
of this controller before a crash or of another one: their candidates are not measured again. Costs come
from the table alone, under keys computed here. A candidate without a cost after its Jobs is unknown, and the
search continues without it. Where kernels are built separately, build Jobs leave them in the store for the
measuring Jobs (`job_submission`). If the control times of a pod differ from the typical ones
(`cluster.shard_reports`), its costs are discarded and measured again, once.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from collage.cluster.controller.job_submission import FinishedJob, JobSubmitter, SearchTask
from collage.cluster.kernel_records import KernelIndex
from collage.cluster.kubernetes.jobs import JobRunner
from collage.cluster.shard_reports import ShardReports, worked_s
from collage.cluster.shards import TIMING_S, WORTH_A_POD_S, KeyedRequest
from collage.cost import Cost, CostKey, SharedCostTable
from collage.errors import ClusterError
from collage.measure.cost_key import CostKeys
from collage.measure.measurement_request import MeasurementRequest, OnCost
from collage.store.base import Store
from collage.store.record_keys import RecordKeys

log = logging.getLogger(__name__)

MAX_BATCH = 512
"""Largest batch of a search, in requests: the search learns between batches."""


class ClusterMeasurer:
    """Implements `SearchMeasurer` with Jobs."""

    def __init__(
        self,
        task: SearchTask,
        runner: JobRunner,
        store: Store,
        table: SharedCostTable,
        *,
        keys: CostKeys,
        signing: RecordKeys,
    ) -> None:
        """Prepare a measurer; the first `measure` submits Jobs.

        Args:
            task: facts that all batches of the search share.
            runner: runner of the environment's Jobs.
            store: store that the pods share.
            table: shared cost table.
            keys: cost keys of measurement requests, equal here and in the pods.
            signing: keys for signed kernel records, equal here and in the pods.
        """
        self.measured = self.cached = self.invalid = 0
        self.waited_s = 0.0
        self._runner, self._keys = runner, keys
        self._table = table.within(task.environment)
        self._kernels = KernelIndex(store, task.environment, signing)
        self._submitter = JobSubmitter(task, runner, store, self._kernels)
        self._reports = ShardReports(store, task.environment)
        self._checked: set[str] = set()
        self.batch = batch_size(runner)

    def recall(
        self, requests: Sequence[MeasurementRequest], on_cost: OnCost | None = None
    ) -> list[Cost]:
        """Return the cost of each request from the table, in order; unknown without a record.

        A cost after a similar cache flush counts here; `measure` takes costs after the same flush alone.
        """
        self._discard(self._submitter.ended_batches())
        return [self._recalled(work, on_cost) or Cost.unknown() for work in requests]

    def measure(
        self, batch: Sequence[MeasurementRequest], on_cost: OnCost | None = None
    ) -> list[Cost]:
        """Return the cost of each request, in order; unknown if its shard failed.

        Raises:
            ClusterError: a whole Job failed; the message has the reason and the last log lines of its pods.
            StoreError: the store fails.
        """
        round_ = _MeasureRound(self._keys, batch, on_cost)
        with self._timed():
            self._collect(round_, cached=True)
            while round_.missing and self._waited_for_running(round_):
                pass
            if round_.missing:
                self._run(round_)
                if self._discard_unusual(round_):
                    self._run(round_)
        return [round_.costs.get(key, Cost.unknown()) for key in round_.keys]

    def close(self) -> None:
        """Do nothing: running Jobs continue, and the next measurer of the search adopts them."""

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Add the time without a working pod to `waited_s`."""
        start = time.monotonic()
        self._submitter.reset()
        yield
        if used := self._submitter.batches:
            self._reports.refresh()
            work_s = worked_s(self._reports.of(used)) or self._submitter.running_s
            self.waited_s += max(0.0, time.monotonic() - start - work_s)

    def _recalled(self, work: MeasurementRequest, on_cost: OnCost | None) -> Cost | None:
        cost = self._keys.recall(self._table, work)
        if cost is not None:
            self._count(work, cost, True, on_cost)
        return cost

    def _count(
        self, work: MeasurementRequest, cost: Cost, cached: bool, on_cost: OnCost | None
    ) -> None:
        self.cached += cached
        self.measured += not cached
        self.invalid += cost.is_invalid
        if cost.is_valid:
            self._submitter.estimate.learn(work.backend, cost.build_s)
        if on_cost:
            on_cost(work, cost, cached)

    def _collect(self, round_: "_MeasureRound", *, cached: bool) -> None:
        """Move requests with a cost in the table from `missing` to `costs`."""
        for key in list(round_.missing):
            cost = self._table.get(key)
            if cost is None:
                continue
            round_.costs[key] = cost
            requests = round_.missing.pop(key)
            callback = None if key in round_.discarded else round_.on_cost
            for number, work in enumerate(requests):
                self._count(work, cost, cached or number > 0, callback)

    def _waited_for_running(self, round_: "_MeasureRound") -> bool:
        """Wait for running Jobs of the same search; return whether there was one."""
        waited = self._submitter.wait_for_running(lambda: self._collect(round_, cached=True))
        if waited:
            self._table.refresh()
            self._discard(self._submitter.batches)
            self._collect(round_, cached=True)
        return waited

    def _run(self, round_: "_MeasureRound") -> None:
        """Let pods measure the missing requests."""
        candidates = [KeyedRequest(key, requests[0]) for key, requests in round_.missing.items()]

        def on_poll() -> None:
            self._collect(round_, cached=False)

        if self._runner.environment.builds_separately:
            kernels = self._kernels.find(round_.missing)
            unbuilt = [candidate for candidate in candidates if candidate.key not in kernels]
            finished = self._submitter.build_and_measure(candidates, unbuilt, on_poll)
        else:
            finished = self._submitter.measure(candidates, on_poll)
        self._table.refresh()
        self._collect(round_, cached=False)
        self._judge_builds(round_, [job for job in finished if job.builds])
        self._judge(
            round_, [job for job in finished if not job.builds], set(round_.missing), "cost"
        )

    def _judge_builds(self, round_: "_MeasureRound", finished: Sequence[FinishedJob]) -> None:
        if finished and round_.missing:
            lacking = round_.missing.keys() - self._kernels.find(round_.missing).keys()
            self._judge(round_, finished, lacking, "kernel")

    def _discard_unusual(self, round_: "_MeasureRound") -> bool:
        """Discard costs from pods of unusual speed; return whether requests are missing now."""
        self._discard(self._submitter.batches)
        for key in list(round_.costs):
            if self._table.was_voided(key) and self._table.get(key) is None:
                del round_.costs[key]
                round_.missing[key] = round_.requests[key]
                round_.discarded.add(key)
        return bool(round_.discarded)

    def _discard(self, batches: set[str]) -> None:
        """Void the costs of pods with unusual control times, at most once for each key."""
        new = batches - self._checked
        self._checked |= new
        if not new:
            return
        self._reports.refresh()
        self._table.refresh()
        typical_s, tolerance = self._reports.typical_s(), self._runner.environment.control_tolerance
        for report in self._reports.of(new):
            change, control = report.change(typical_s)
            if change <= tolerance:
                continue
            voided = {
                key: mark for key, mark in report.costs.items() if not self._table.was_voided(key)
            }
            finding = (
                f"on {report.node} (shard {report.index} of {report.batch[:12]}) the {control} control "
                f"kernel was {change:.0%} off its usual time, more than {tolerance:.0%}"
            )
            if not voided:
                log.info("%s; its costs were measured again already, and stay", finding)
                continue
            self._runner.notice(
                f"{finding}: {len(voided)} of {len(report.costs)} costs are discarded and measured again"
            )
            for key, mark in voided.items():
                self._table.void(key, mark)
        self._table.flush()
        self._table.refresh()

    def _judge(
        self,
        round_: "_MeasureRound",
        finished: Sequence[FinishedJob],
        lacking: set[CostKey],
        product: str,
    ) -> None:
        """Accept a few missing candidates; raise ClusterError if a whole Job brought nothing."""
        for job in finished:
            missing = len(job.keys & lacking)
            if not missing:
                continue
            finding = f"{missing} of {len(job.keys)} candidates have no {product}"
            if job.broken:
                raise ClusterError(
                    f"{job.end.reason}\n{finding}; what was done is in the store: run again"
                )
            if missing == len(set(round_.keys)):
                raise ClusterError(f"{job.end.reason or 'the Job ended'}\n{finding}")
            self._runner.notice(f"{finding}; the search goes on without them. {job.end.reason}")


def batch_size(runner: JobRunner) -> int:
    """Return the number of requests that fill a useful shard for every simultaneous pod."""
    environment = runner.environment
    shard_s = min(environment.seconds_per_shard, 2 * WORTH_A_POD_S)
    return max(1, min(MAX_BATCH, int(environment.parallelism * shard_s / (2 * TIMING_S))))


@dataclass
class _MeasureRound:
    """The state of one `measure` call.

    Attributes:
        costs: known costs, by key.
        missing: requests without a cost, by key.
        discarded: keys with a discarded first cost.
    """

    key: Callable[[MeasurementRequest], CostKey]
    batch: Sequence[MeasurementRequest]
    on_cost: OnCost | None
    costs: dict[CostKey, Cost] = field(default_factory=dict)
    missing: dict[CostKey, list[MeasurementRequest]] = field(default_factory=dict)
    discarded: set[CostKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.keys = [self.key(work) for work in self.batch]
        for key, work in zip(self.keys, self.batch, strict=True):
            self.missing.setdefault(key, []).append(work)
        self.requests: Mapping[CostKey, list[MeasurementRequest]] = dict(self.missing)
