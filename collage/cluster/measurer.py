"""A measurer whose workers are pods: every batch becomes Indexed Jobs of shards, one a group of backends.

The store is the only channel. Before a batch is sent, Jobs of the same search that already run, of this
controller before it was killed or of another one, are waited for: what they measure is not measured again.
Costs are believed from the table alone, under the keys that were computed here; a candidate without one
after its Job is unknown, and the search does without it.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collage.cluster.environments import MeasuringEnvironment
from collage.cluster.groups import Share, split_groups
from collage.cluster.jobs import End, Ending, JobRunner
from collage.cluster.manifests import LABEL, Kind, Task
from collage.cluster.shards import (
    TIMING_S,
    WORTH_A_POD_S,
    Expectation,
    Wanted,
    plan_shards,
    write_batch,
)
from collage.cost import Cost, CostKey, Costs, Environment
from collage.errors import ClusterError
from collage.measure.work import OnCost, Work
from collage.store.base import Store
from collage.store.blobs import put_blob

log = logging.getLogger(__name__)

NAME_DIGITS = 16
LABEL_DIGITS = 32
MOST = 512
"""Works in one batch that a search should ask for at most: it learns between batches."""


@dataclass(frozen=True)
class SearchTask:
    """What all batches of one search share.

    Attributes:
        request: digest of the request.
        function: name of the function that is searched.
        structure: digest of the whole function.
        environment_name: of the operator's file.
        environment: that costs are true for.
        backends: identities on the nodes that measure.
        groups: of the backends (`collage.cluster.groups`).
        store: as pods are told to open it.
    """

    request: str
    function: str
    structure: str
    environment_name: str
    environment: Environment
    backends: Mapping[str, str]
    groups: Mapping[str, str]
    store: str

    @property
    def labels(self) -> dict[str, str]:
        """Equal for searches that measure the same candidates."""
        text = f"{self.structure} {self.environment.digest}"
        return {
            "run": self.request[:LABEL_DIGITS],
            "environment": self.environment_name,
            "search": hashlib.sha256(text.encode()).hexdigest()[:LABEL_DIGITS],
        }


def batch_size(environment: MeasuringEnvironment) -> int:
    """Count the works that give every pod at once a shard that is worth it."""
    shard_s = min(environment.seconds_per_shard, 2 * WORTH_A_POD_S)
    return max(1, min(MOST, int(environment.parallelism * shard_s / (2 * TIMING_S))))


class ClusterMeasurer:
    """Implements `SearchMeasurer` with Jobs."""

    def __init__(
        self,
        task: SearchTask,
        runner: JobRunner,
        store: Store,
        table: Costs,
        key: Callable[[Work], CostKey],
    ) -> None:
        """Make a measurer; nothing is sent before the first `measure`.

        Args:
            task: what is searched.
            runner: of the environment's Jobs.
            store: shared with the pods.
            table: of the shared costs.
            key: of a work's cost, as the pods compute it too.
        """
        self.measured = self.cached = self.invalid = 0
        self._task, self._runner, self._store, self._key = task, runner, store, key
        self._table = table.within(task.environment)
        self._expectation = Expectation()
        self.batch = batch_size(runner.environment)

    def recall(self, works: Sequence[Work], on_cost: OnCost | None = None) -> list[Cost]:
        """Return what the table knows of each work, in order; unknown where it knows nothing."""
        return [self._recalled(work, on_cost) or Cost.unknown() for work in works]

    def measure(self, batch: Sequence[Work], on_cost: OnCost | None = None) -> list[Cost]:
        """Return the cost of each work, in order; unknown where its shard failed.

        Raises:
            ClusterError: the Job failed as a whole, with the reason and the last lines of its pods.
            StoreError: the store fails.
        """
        round_ = _Round(self._key, batch)
        self._collect(round_, on_cost, cached=True)
        while round_.missing and self._waited_for_others(round_, on_cost):
            self._collect(round_, on_cost, cached=True)
        if round_.missing:
            ends = self._run(round_, on_cost)
            self._table.refresh()
            self._collect(round_, on_cost, cached=False)
            self._judge(round_, ends)
        return [round_.costs.get(key, Cost.unknown()) for key in round_.keys]

    def close(self) -> None:
        """Do nothing: Jobs that run go on, and are adopted by whoever asks again."""

    def _recalled(self, work: Work, on_cost: OnCost | None) -> Cost | None:
        cost = self._table.get(self._key(work))
        if cost is not None:
            self._count(work, cost, True, on_cost)
        return cost

    def _count(self, work: Work, cost: Cost, cached: bool, on_cost: OnCost | None) -> None:
        self.cached += cached
        self.measured += not cached
        self.invalid += cost.is_invalid
        if cost.is_valid:
            self._expectation.learn(work.backend, cost.build_s)
        if on_cost:
            on_cost(work, cost, cached)

    def _collect(self, round_: "_Round", on_cost: OnCost | None, *, cached: bool) -> None:
        """Take what the table knows by now."""
        for key, works in list(round_.missing.items()):
            cost = self._table.get(key)
            if cost is None:
                continue
            round_.costs[key] = cost
            del round_.missing[key]
            for number, work in enumerate(works):
                self._count(work, cost, cached or number > 0, on_cost)

    def _waited_for_others(self, round_: "_Round", on_cost: OnCost | None) -> bool:
        """Wait for Jobs of the same search that run; return whether there was one."""
        labels = {f"{LABEL}/search": self._task.labels["search"]}
        others = [job.name for job in self._runner.jobs.find(labels) if not job.ended]
        for name in others:
            self._runner.notice(f"the Job {name} measures for the same search: waiting for it")
        if others:
            self._runner.wait_all(others, lambda: self._collect(round_, on_cost, cached=True))
            self._table.refresh()
        return bool(others)

    def _run(self, round_: "_Round", on_cost: OnCost | None) -> list["_Ended"]:
        sent = [self._sent(share) for share in self._shares(round_)]
        for task, keys in sent:
            self._runner.submit(task)
            log.info("job %s: %d candidates", task.name, len(keys))
        names = [task.name for task, _ in sent]
        ends = self._runner.wait_all(names, lambda: self._collect(round_, on_cost, cached=False))
        return [_Ended(task, keys, ends[task.name]) for task, keys in sent]

    def _shares(self, round_: "_Round") -> list[Share]:
        environment = self._runner.environment
        return split_groups(
            [Wanted(key, works[0]) for key, works in round_.missing.items()],
            self._task.groups,
            self._expectation.seconds,
            environment.seconds_per_group,
            environment.parallelism,
        )

    def _sent(self, share: Share) -> tuple[Task, frozenset[CostKey]]:
        """Put a Job's part of the batch into the store; its digest names the Job."""
        mine, environment = self._task, self._runner.environment
        shards = plan_shards(
            share.wanted,
            self._expectation.seconds,
            environment.seconds_per_shard,
            share.parallelism,
        )
        text = write_batch(mine.request, mine.function, mine.environment, mine.backends, shards)
        digest = put_blob(self._store, text)
        notes = {"batch": digest, "function": mine.function, "groups": ", ".join(share.groups)}
        task = Task(
            Kind.MEASURE,
            f"collage-{mine.environment_name}-{digest[:NAME_DIGITS]}",
            mine.labels,
            ["shard", "--store", mine.store, "--batch", digest],
            notes | {"candidates": str(len(share.wanted))},
            indices=len(shards),
            parallelism=share.parallelism,
        )
        return task, frozenset(one.key for one in share.wanted)

    def _judge(self, round_: "_Round", ends: Sequence["_Ended"]) -> None:
        """Go on without a few candidates, not without the whole of a Job."""
        for one in ends:
            missing, total = len(one.keys & round_.missing.keys()), len(one.keys)
            if not missing:
                continue
            lacking = f"{missing} of {total} candidates have no cost"
            kept = "what was measured is in the store: run again"
            end = one.end
            if end.ending is Ending.GONE:
                raise ClusterError(f"{end.reason} while it ran: {lacking}; {kept}")
            if end.ending is Ending.FAILED and end.code != "FailedIndexes":
                raise ClusterError(f"{end.reason}\n{lacking}; {kept}")
            if missing == len(set(round_.keys)):
                raise ClusterError(f"{end.reason or 'the Job ended'}\n{lacking}")
            self._runner.notice(f"{lacking}; the search goes on without them. {end.reason}")


@dataclass(frozen=True)
class _Ended:
    """A Job that worked on `keys`, and how it ended."""

    task: Task
    keys: frozenset[CostKey]
    end: End


@dataclass
class _Round:
    """The state of one `measure` call: keys in order, and the works of each that is missing."""

    key: Callable[[Work], CostKey]
    batch: Sequence[Work]
    costs: dict[CostKey, Cost] = field(default_factory=dict)
    missing: dict[CostKey, list[Work]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = [self.key(work) for work in self.batch]
        for key, work in zip(self.keys, self.batch, strict=True):
            self.missing.setdefault(key, []).append(work)
