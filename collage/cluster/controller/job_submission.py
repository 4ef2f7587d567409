"""A search's candidates as Jobs: named by what they are to do, sent, adopted and waited for.

Where kernels are built apart, a batch is Jobs that build and Jobs that measure, and the two overlap: those
that measure are sent while kernels are still built, as soon as the rest of the building is expected to
take no longer than the measuring of all. So pods with an accelerator hardly ever wait for a compiler
(`arrivals`), and what is built last is timed soon after. When they are sent depends on the time; what they
are to do is a function of the batch, as it always was. So whoever comes after a crash finds all that was
sent by its labels, and waits for it; every candidate is in one Job that measures.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from collage.cluster.controller.backend_groups import Share, split_groups
from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.kernel_records import KernelIndex, shard_name
from collage.cluster.kubernetes.api import JobView
from collage.cluster.kubernetes.jobs import End, Ending, JobRunner, Wait
from collage.cluster.kubernetes.manifests import LABEL, Kind, Task
from collage.cluster.shards import (
    WORTH_A_POD_S,
    Expectation,
    Purpose,
    Wanted,
    loading_s,
    plan_shards,
    write_batch,
)
from collage.cost import CostKey, Environment
from collage.errors import ClusterError
from collage.store.base import Store
from collage.store.blobs import put_blob

log = logging.getLogger(__name__)

NAME_DIGITS = 16
LABEL_DIGITS = 32
MEASURE = ("python", "-m", "containers.measure")
"""The measuring image's entry point, in the controller's image."""

STARTING_S = 10.0
"""Seconds from a pod's creation to its first kernel."""

OnLook = Callable[[], None]


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
        groups: of the backends (`collage.cluster.controller.backend_groups`).
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
    def builds(self) -> bool:
        return self.task.kind is Kind.BUILD

    @property
    def broken(self) -> bool:
        """Whether it ended as a whole, rather than some shards of it."""
        failed = self.end.ending is Ending.FAILED and self.end.code != "FailedIndexes"
        return failed or self.end.ending is Ending.GONE


@dataclass(frozen=True)
class _Made:
    """A Job that was submitted for a share, or adopted; `build` of one that builds."""

    task: Task
    share: Share
    build: "_Build | None" = None


@dataclass(frozen=True)
class _Build:
    """A Job that builds, as those who wait for its kernels know it; see `collage.cluster.kernel_records`."""

    name: str
    batch: str
    token: str
    shards: int

    @classmethod
    def of(cls, name: str, notes: Mapping[str, str]) -> "_Build":
        """Read what the Job's notes, without their prefix, say."""
        return cls(name, notes["batch"], notes["token"], int(notes["shards"]))


class Sender:
    """Sends the Jobs of one search.

    Attributes:
        expectation: what candidates are expected to take; whoever sees costs lets it learn.
        batches: digests of what was waited for since `forget`.
        running_s: for how long pods were seen to run since then.
    """

    def __init__(
        self, task: SearchTask, runner: JobRunner, store: Store, kernels: KernelIndex
    ) -> None:
        self.expectation = Expectation()
        self.batches: set[str] = set()
        self.running_s = 0.0
        self._task, self._runner, self._store, self._kernels = task, runner, store, kernels
        self._found = {f"{LABEL}/search": task.labels["search"]}

    def forget(self) -> None:
        """Begin to count anew."""
        self.batches, self.running_s = set(), 0.0

    def measure(self, wanted: Sequence[Wanted], on_look: OnLook) -> list[Sent]:
        """Let pods build and measure; return the Jobs once all have ended.

        Raises:
            ClusterError, StoreError: a Job cannot be made, or waited for.
        """
        made = self._submitted("measure", wanted, self.expectation.seconds)
        return self._awaited(made, Wait(self._runner, [one.task.name for one in made]), on_look)

    def build_and_measure(
        self, wanted: Sequence[Wanted], without: Sequence[Wanted], on_look: OnLook
    ) -> list[Sent]:
        """Let pods build what has no kernel, and others measure; return the Jobs once all have ended.

        Args:
            wanted: what is to be measured.
            without: what of it has no kernel in the store.
            on_look: called after every look.

        Raises:
            ClusterError, StoreError: a Job cannot be made, or waited for.
        """
        made = self._submitted("build", without, self.expectation.seconds) if without else []
        builds = [one.build for one in made if one.build]
        wait = Wait(self._runner, [one.name for one in builds])
        while not wait.look() and not self._is_time(wanted, without, wait, builds):
            on_look()
            self._runner.pause()
        if wait.has_ended:  # those that cannot be built have their costs by now
            found = self._kernels.find(one.key for one in wanted)
            wanted, builds = [one for one in wanted if one.key in found], []
        if wanted:
            timed = self._submitted("measure", wanted, loading_s, builds)
            wait.add([one.task.name for one in timed])
            made += timed
        return self._awaited(made, wait, on_look)

    def wait_for_others(self, on_look: OnLook) -> bool:
        """Wait for Jobs of the same search that run; return whether there was one."""
        others = [job for job in self._runner.jobs.find(self._found) if not job.ended]
        for job in others:
            self._runner.notice(f"the Job {job.name} works for the same search: waiting for it")
        if others:
            notes = {job.name: _own_notes(job) for job in others}
            self.batches |= {one["batch"] for one in notes.values()}
            builds = [_Build.of(name, one) for name, one in notes.items() if "token" in one]
            self._wait(Wait(self._runner, list(notes)), builds, on_look)
        return bool(others)

    def ended_batches(self) -> set[str]:
        """Return the batches of the search's Jobs that have ended, as long as these are kept."""
        jobs = self._runner.jobs.find(self._found)
        return {_own_notes(job)["batch"] for job in jobs if job.ended}

    def _is_time(
        self,
        wanted: Sequence[Wanted],
        without: Sequence[Wanted],
        wait: Wait,
        builds: Sequence[_Build],
    ) -> bool:
        """Tell whether pods that begin now would hardly wait for kernels."""
        nodes = self._runner.environment
        if not nodes.build.overlap:
            return False
        self._kernels.look()
        built = self._kernels.count({one.key for one in without})
        if not built:
            return False
        ran_s = max(wait.running_s(one.name) for one in builds)
        left_s = ran_s * (len(without) - built) / built
        timing_s = sum(loading_s(one.work.backend) for one in wanted)
        pods = min(nodes.parallelism, math.ceil(timing_s / WORTH_A_POD_S))
        return left_s <= timing_s / pods + STARTING_S

    def _submitted(
        self,
        purpose: Purpose,
        wanted: Sequence[Wanted],
        seconds: Callable[[str], float],
        builds: Sequence[_Build] = (),
    ) -> list[_Made]:
        """Submit the Jobs of a batch, or adopt those of their names."""
        nodes = self._runner.environment
        if purpose == "build":
            nodes = nodes.for_builds
        shares = split_groups(
            wanted, self._task.groups, seconds, nodes.seconds_per_group, nodes.parallelism
        )
        made = []
        for task, share in [(self._written(purpose, one, seconds, nodes), one) for one in shares]:
            if builds:
                tokens = [f"{one.token}={one.batch}" for one in builds]
                task = replace(task, arguments=[*task.arguments, "--builds", *tokens])
            adopted = self._runner.submit(task)
            notes = _own_notes(adopted) if adopted else task.notes
            build = _Build.of(task.name, notes) if purpose == "build" else None
            made.append(_Made(task, share, build))
            self.batches.add(task.notes["batch"])
            log.info("job %s: %d candidates to %s", task.name, len(share.wanted), purpose)
        return made

    def _awaited(self, made: Sequence[_Made], wait: Wait, on_look: OnLook) -> list[Sent]:
        ends = self._wait(wait, [one.build for one in made if one.build], on_look)
        return [
            Sent(
                one.task, frozenset(wanted.key for wanted in one.share.wanted), ends[one.task.name]
            )
            for one in made
        ]

    def _wait(self, wait: Wait, builds: Sequence[_Build], on_look: OnLook) -> Mapping[str, End]:
        """Wait for all; Jobs that build and ended before their shards did are over all the same."""
        left = {one.name: one for one in builds}
        try:
            while not wait.look():
                for name in left.keys() & wait.ends.keys():
                    self._end(left.pop(name), wait.ends[name])
                on_look()
                self._runner.pause()
        except ClusterError:
            for one in left.values():
                self._end(one)
            raise
        self.running_s += max((end.running_s for end in wait.ends.values()), default=0.0)
        return wait.ends

    def _end(self, build: _Build, end: End | None = None) -> None:
        """Say that nothing comes any more of a Job, where its pods have not said so."""
        if end is None or end.ending is not Ending.COMPLETE:
            self._kernels.end(shard_name(build.token, index) for index in range(build.shards))

    def _written(
        self,
        purpose: Purpose,
        share: Share,
        seconds: Callable[[str], float],
        nodes: MeasuringEnvironment,
    ) -> Task:
        """Put a Job's part of the batch into the store; its digest names the Job."""
        mine, builds = self._task, purpose == "build"
        shards = plan_shards(share.wanted, seconds, nodes.seconds_per_shard, share.parallelism)
        fetches = not builds and nodes.builds_apart
        text = write_batch(
            mine.request, mine.function, mine.environment, mine.backends, shards, purpose, fetches
        )
        digest = put_blob(self._store, text)
        notes = {"batch": digest, "function": mine.function, "groups": ", ".join(share.groups)}
        notes |= {"candidates": str(len(share.wanted))}
        arguments = ["build" if builds else "shard", "--store", mine.store, "--batch", digest]
        if builds:
            token = uuid4().hex
            notes |= {"token": token, "shards": str(len(shards))}
            arguments += ["--token", token]
        return Task(
            Kind.BUILD if builds else Kind.MEASURE,
            f"collage-{mine.environment_name}-{digest[:NAME_DIGITS]}",
            mine.labels,
            arguments,
            notes,
            command=MEASURE if builds else (),
            compiles=builds,
            indices=len(shards),
            parallelism=share.parallelism,
        )


def _own_notes(job: JobView) -> Mapping[str, str]:
    """Return a Job's notes as its `Task` had them."""
    prefix = f"{LABEL}/"
    return {
        name.removeprefix(prefix): value
        for name, value in job.notes.items()
        if name.startswith(prefix)
    }
