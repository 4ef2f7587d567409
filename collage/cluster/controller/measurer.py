"""A measurer whose workers are pods: every batch becomes Indexed Jobs of shards, one a group of backends.

The store is the only channel. Before a batch is sent, Jobs of the same search that already run, of this
controller before it was killed or of another one, are waited for: what they measure is not measured again.
Costs are believed from the table alone, under the keys that were computed here; a candidate without one
after its Jobs is unknown, and the search does without it. Where kernels are built apart, Jobs that build
leave them in the store for those that measure (`sender`). Costs of a pod whose node was not itself
(`records`) are discarded, and measured again once.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from collage.cluster.controller.job_submission import SearchTask, Sender, Sent
from collage.cluster.kernel_records import KernelIndex
from collage.cluster.kubernetes.jobs import JobRunner
from collage.cluster.shard_reports import Records, worked_s
from collage.cluster.shards import TIMING_S, WORTH_A_POD_S, Wanted
from collage.cost import Cost, CostKey, SharedCostTable
from collage.errors import ClusterError
from collage.measure.cost_key import WorkKeys
from collage.measure.measurement_request import OnCost, Work
from collage.store.base import Store
from collage.store.record_keys import RecordKeys

log = logging.getLogger(__name__)

MOST = 512
"""Works in one batch that a search should ask for at most: it learns between batches."""


class ClusterMeasurer:
    """Implements `SearchMeasurer` with Jobs."""

    def __init__(
        self,
        task: SearchTask,
        runner: JobRunner,
        store: Store,
        table: SharedCostTable,
        keys: WorkKeys,
        signing: RecordKeys,
    ) -> None:
        """Make a measurer; nothing is sent before the first `measure`.

        Args:
            task: what is searched.
            runner: of the environment's Jobs.
            store: shared with the pods.
            table: of the shared costs.
            keys: of the works' costs, as the pods compute them too.
            signing: keys of the lines of kernels, which the pods have too.
        """
        self.measured = self.cached = self.invalid = 0
        self.waited_s = 0.0
        self._runner, self._keys = runner, keys
        self._table = table.within(task.environment)
        self._kernels = KernelIndex(store, task.environment, signing)
        self._sender = Sender(task, runner, store, self._kernels)
        self._records = Records(store, task.environment)
        self._checked: set[str] = set()
        self.batch = batch_size(runner)

    def recall(self, works: Sequence[Work], on_cost: OnCost | None = None) -> list[Cost]:
        """Return what the table knows of each work, in order; unknown where it knows nothing.

        A cost after a similar sweep is known here; `measure` takes those after this one's alone.
        """
        self._discard(self._sender.ended_batches())
        return [self._recalled(work, on_cost) or Cost.unknown() for work in works]

    def measure(self, batch: Sequence[Work], on_cost: OnCost | None = None) -> list[Cost]:
        """Return the cost of each work, in order; unknown where its shard failed.

        Raises:
            ClusterError: a Job failed as a whole, with the reason and the last lines of its pods.
            StoreError: the store fails.
        """
        round_ = _Round(self._keys, batch, on_cost)
        with self._timed():
            self._collect(round_, cached=True)
            while round_.missing and self._waited_for_others(round_):
                pass
            if round_.missing:
                self._run(round_)
                if self._discarded(round_):
                    self._run(round_)
        return [round_.costs.get(key, Cost.unknown()) for key in round_.keys]

    def close(self) -> None:
        """Do nothing: Jobs that run go on, and are adopted by whoever asks again."""

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Add to `waited_s` the time in which no pod worked."""
        start = time.monotonic()
        self._sender.forget()
        yield
        if used := self._sender.batches:
            self._records.refresh()
            work_s = worked_s(self._records.of(used)) or self._sender.running_s
            self.waited_s += max(0.0, time.monotonic() - start - work_s)

    def _recalled(self, work: Work, on_cost: OnCost | None) -> Cost | None:
        cost = self._keys.recall(self._table, work)
        if cost is not None:
            self._count(work, cost, True, on_cost)
        return cost

    def _count(self, work: Work, cost: Cost, cached: bool, on_cost: OnCost | None) -> None:
        self.cached += cached
        self.measured += not cached
        self.invalid += cost.is_invalid
        if cost.is_valid:
            self._sender.expectation.learn(work.backend, cost.build_s)
        if on_cost:
            on_cost(work, cost, cached)

    def _collect(self, round_: "_Round", *, cached: bool) -> None:
        """Take what the table knows by now."""
        for key in list(round_.missing):
            cost = self._table.get(key)
            if cost is None:
                continue
            round_.costs[key] = cost
            works = round_.missing.pop(key)
            told = None if key in round_.again else round_.on_cost
            for number, work in enumerate(works):
                self._count(work, cost, cached or number > 0, told)

    def _waited_for_others(self, round_: "_Round") -> bool:
        """Wait for Jobs of the same search that run; return whether there was one."""
        waited = self._sender.wait_for_others(lambda: self._collect(round_, cached=True))
        if waited:
            self._table.refresh()
            self._discard(self._sender.batches)
            self._collect(round_, cached=True)
        return waited

    def _run(self, round_: "_Round") -> None:
        """Let pods measure what is missing."""
        wanted = [Wanted(key, works[0]) for key, works in round_.missing.items()]

        def on_look() -> None:
            self._collect(round_, cached=False)

        if self._runner.environment.builds_apart:
            kernels = self._kernels.find(round_.missing)
            without = [one for one in wanted if one.key not in kernels]
            sent = self._sender.build_and_measure(wanted, without, on_look)
        else:
            sent = self._sender.measure(wanted, on_look)
        self._table.refresh()
        self._collect(round_, cached=False)
        self._judge_builds(round_, [one for one in sent if one.builds])
        self._judge(round_, [one for one in sent if not one.builds], set(round_.missing), "cost")

    def _judge_builds(self, round_: "_Round", sent: Sequence[Sent]) -> None:
        if sent and round_.missing:
            lacking = round_.missing.keys() - self._kernels.find(round_.missing).keys()
            self._judge(round_, sent, lacking, "kernel")

    def _discarded(self, round_: "_Round") -> bool:
        """Discard what was measured under wrong conditions; return whether some of it is missing now."""
        self._discard(self._sender.batches)
        for key in list(round_.costs):
            if self._table.was_voided(key) and self._table.get(key) is None:
                del round_.costs[key]
                round_.missing[key] = round_.works[key]
                round_.again.add(key)
        return bool(round_.again)

    def _discard(self, batches: set[str]) -> None:
        """Let costs of pods with an unusual pace not hold, unless that happened to the key before."""
        new = batches - self._checked
        self._checked |= new
        if not new:
            return
        self._records.refresh()
        self._table.refresh()
        usual_s, tolerance = self._records.usual_s(), self._runner.environment.control_tolerance
        for one in self._records.of(new):
            change, where = one.change(usual_s)
            if change <= tolerance:
                continue
            again = {
                key: mark for key, mark in one.costs.items() if not self._table.was_voided(key)
            }
            said = (
                f"on {one.node} (shard {one.index} of {one.batch[:12]}) the {where} control kernel was "
                f"{change:.0%} off its usual time, more than {tolerance:.0%}"
            )
            if not again:
                log.info("%s; its costs were measured again already, and stay", said)
                continue
            self._runner.notice(
                f"{said}: {len(again)} of {len(one.costs)} costs are discarded and measured again"
            )
            for key, mark in again.items():
                self._table.void(key, mark)
        self._table.flush()
        self._table.refresh()

    def _judge(
        self, round_: "_Round", sent: Sequence[Sent], lacking: set[CostKey], what: str
    ) -> None:
        """Go on without a few candidates, not without the whole of a Job."""
        for one in sent:
            missing = len(one.keys & lacking)
            if not missing:
                continue
            said = f"{missing} of {len(one.keys)} candidates have no {what}"
            if one.broken:
                raise ClusterError(
                    f"{one.end.reason}\n{said}; what was done is in the store: run again"
                )
            if missing == len(set(round_.keys)):
                raise ClusterError(f"{one.end.reason or 'the Job ended'}\n{said}")
            self._runner.notice(f"{said}; the search goes on without them. {one.end.reason}")


def batch_size(runner: JobRunner) -> int:
    """Count the works that give every pod at once a shard that is worth it."""
    environment = runner.environment
    shard_s = min(environment.seconds_per_shard, 2 * WORTH_A_POD_S)
    return max(1, min(MOST, int(environment.parallelism * shard_s / (2 * TIMING_S))))


@dataclass
class _Round:
    """The state of one `measure` call: keys in order, the works of each, and of those that are missing.

    `again` are keys whose first cost was discarded.
    """

    key: Callable[[Work], CostKey]
    batch: Sequence[Work]
    on_cost: OnCost | None
    costs: dict[CostKey, Cost] = field(default_factory=dict)
    missing: dict[CostKey, list[Work]] = field(default_factory=dict)
    again: set[CostKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.keys = [self.key(work) for work in self.batch]
        for key, work in zip(self.keys, self.batch, strict=True):
            self.missing.setdefault(key, []).append(work)
        self.works: Mapping[CostKey, list[Work]] = dict(self.missing)
