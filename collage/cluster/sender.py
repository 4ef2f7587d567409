"""A search's candidates as Jobs: named by what they are to do, sent, adopted and waited for."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from collage.cluster.environments import MeasuringEnvironment
from collage.cluster.groups import Share, split_groups
from collage.cluster.jobs import End, Ending, JobRunner
from collage.cluster.manifests import LABEL, Kind, Task
from collage.cluster.shards import (
    LOADING_S,
    TIMING_S,
    Expectation,
    Wanted,
    plan_shards,
    write_batch,
)
from collage.cost import CostKey, Environment
from collage.store.base import Store
from collage.store.blobs import put_blob

log = logging.getLogger(__name__)

NAME_DIGITS = 16
LABEL_DIGITS = 32
BUILD = ("python", "-m", "containers.measure")


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


@dataclass(frozen=True)
class Sent:
    """A Job that worked on `keys`, and how it ended."""

    task: Task
    keys: frozenset[CostKey]
    end: End

    @property
    def broken(self) -> bool:
        """Whether it ended as a whole, rather than some shards of it."""
        failed = self.end.ending is Ending.FAILED and self.end.code != "FailedIndexes"
        return failed or self.end.ending is Ending.GONE


class Sender:
    """Sends the Jobs of one search.

    Attributes:
        expectation: what candidates are expected to take; whoever sees costs lets it learn.
        batches: digests of what was waited for since `forget`.
        running_s: for how long pods were seen to run since then.
    """

    def __init__(self, task: SearchTask, runner: JobRunner, store: Store) -> None:
        self.expectation = Expectation()
        self.batches: set[str] = set()
        self.running_s = 0.0
        self._task, self._runner, self._store = task, runner, store
        self._found = {f"{LABEL}/search": task.labels["search"]}

    def forget(self) -> None:
        """Begin to count anew."""
        self.batches, self.running_s = set(), 0.0

    def measure(self, wanted: Sequence[Wanted], on_look: Callable[[], None]) -> list[Sent]:
        """Let pods measure; return the Jobs once all have ended. Raises ClusterError, StoreError."""
        apart = self._runner.environment.builds_apart
        seconds = _only_timing if apart else self.expectation.seconds
        return self._send("measure", wanted, seconds, on_look)

    def build(self, wanted: Sequence[Wanted]) -> list[Sent]:
        """Let pods build; return the Jobs once all have ended. Raises ClusterError, StoreError."""
        return self._send("build", wanted, self.expectation.seconds, lambda: None)

    def wait_for_others(self, on_look: Callable[[], None]) -> bool:
        """Wait for Jobs of the same search that run; return whether there was one."""
        others = [job for job in self._runner.jobs.find(self._found) if not job.ended]
        for job in others:
            self._runner.notice(f"the Job {job.name} works for the same search: waiting for it")
        if others:
            self.batches |= {job.notes[f"{LABEL}/batch"] for job in others}
            self._wait([job.name for job in others], on_look)
        return bool(others)

    def ended_batches(self) -> set[str]:
        """Return the batches of the search's Jobs that have ended, as long as these are kept."""
        jobs = self._runner.jobs.find(self._found)
        return {job.notes[f"{LABEL}/batch"] for job in jobs if job.ended}

    def _send(
        self,
        purpose: Literal["measure", "build"],
        wanted: Sequence[Wanted],
        seconds: Callable[[str], float],
        on_look: Callable[[], None],
    ) -> list[Sent]:
        nodes = self._runner.environment
        if purpose == "build":
            nodes = nodes.for_builds
        shares = split_groups(
            wanted, self._task.groups, seconds, nodes.seconds_per_group, nodes.parallelism
        )
        tasks = [(self._written(purpose, one, seconds, nodes), one) for one in shares]
        for task, share in tasks:
            self._runner.submit(task)
            self.batches.add(task.notes["batch"])
            log.info("job %s: %d candidates to %s", task.name, len(share.wanted), purpose)
        ends = self._wait([task.name for task, _ in tasks], on_look)
        return [
            Sent(task, frozenset(one.key for one in share.wanted), ends[task.name])
            for task, share in tasks
        ]

    def _wait(self, names: Sequence[str], on_look: Callable[[], None]) -> dict[str, End]:
        ends = self._runner.wait_all(names, on_look)
        self.running_s += max(end.running_s for end in ends.values())
        return ends

    def _written(
        self,
        purpose: Literal["measure", "build"],
        share: Share,
        seconds: Callable[[str], float],
        nodes: MeasuringEnvironment,
    ) -> Task:
        """Put a Job's part of the batch into the store; its digest names the Job."""
        mine = self._task
        shards = plan_shards(share.wanted, seconds, nodes.seconds_per_shard, share.parallelism)
        text = write_batch(
            mine.request, mine.function, mine.environment, mine.backends, shards, purpose
        )
        digest = put_blob(self._store, text)
        notes = {"batch": digest, "function": mine.function, "groups": ", ".join(share.groups)}
        builds = purpose == "build"
        return Task(
            Kind.BUILD if builds else Kind.MEASURE,
            f"collage-{mine.environment_name}-{digest[:NAME_DIGITS]}",
            mine.labels,
            ["build" if builds else "shard", "--store", mine.store, "--batch", digest],
            notes | {"candidates": str(len(share.wanted))},
            command=BUILD if builds else (),
            indices=len(shards),
            parallelism=share.parallelism,
        )


def _only_timing(_: str) -> float:
    return LOADING_S + TIMING_S
