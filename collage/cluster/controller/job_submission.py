"""The Jobs of one search: named by content, submitted, adopted and waited for.

Where kernels are built separately, a batch becomes build Jobs and measuring Jobs, and the two
overlap: measuring Jobs are submitted as soon as the remaining builds are expected to take no longer than
all measurements. So pods with an accelerator rarely wait for a compiler (`pod.kernel_feed`), and the last
kernel is timed soon after its build. The moment of submission depends on progress; the content of a Job
depends on the batch alone. After a crash the next controller finds every submitted Job by its labels and
waits for it; each candidate belongs to one measuring Job.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from collage.cluster.controller.backend_groups import JobShare, split_groups
from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.kernel_records import KernelIndex, shard_name
from collage.cluster.kubernetes.api import JobView
from collage.cluster.kubernetes.jobs import End, Ending, JobRunner, Wait
from collage.cluster.kubernetes.manifests import LABEL, JobTask, Kind
from collage.cluster.shards import (
    WORTH_A_POD_S,
    DurationEstimate,
    KeyedRequest,
    Purpose,
    loading_s,
    plan_shards,
    write_batch,
)
from collage.cost import CostKey, Environment
from collage.errors import ClusterError
from collage.store.base import Store
from collage.store.blobs import put_blob
from collage.store.usage import NOBODY, WorkOwner

log = logging.getLogger(__name__)

NAME_DIGITS = 16
LABEL_DIGITS = 32
MEASURE = ("python", "-m", "containers.measure")
"""The measuring image's entry point, in the controller's image."""

STARTING_S = 10.0
"""Duration from a pod's creation to its first kernel, in seconds."""

OnPoll = Callable[[], None]


@dataclass(frozen=True)
class SearchTask:
    """The common facts of all batches of one search.

    Attributes:
        request: digest of the compile request.
        function: name of the searched function.
        structure: digest of the whole function.
        environment_name: name in the operator's file.
        environment: hardware and software of the costs.
        backends: identity of each backend on the measuring nodes, by name.
        groups: group of each backend (`collage.cluster.controller.backend_groups`), by name.
        store: address of the store for pods.
        caller: name of the model's function with the searched body; "" where `function` is no body.
        owner: run, version and team of the search, for the labels of its Jobs.
    """

    request: str
    function: str
    structure: str
    environment_name: str
    environment: Environment
    backends: Mapping[str, str]
    groups: Mapping[str, str]
    store: str
    caller: str = ""
    owner: WorkOwner = NOBODY

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the Jobs; `search` is equal for searches of the same candidates."""
        text = f"{self.structure} {self.environment.digest}"
        return {
            "run": self.request[:LABEL_DIGITS],
            "environment": self.environment_name,
            "search": hashlib.sha256(text.encode()).hexdigest()[:LABEL_DIGITS],
            **self.owner.labels,
        }


@dataclass(frozen=True)
class FinishedJob:
    """An ended Job, the cost keys of its candidates, and its end."""

    task: JobTask
    keys: frozenset[CostKey]
    end: End

    @property
    def builds(self) -> bool:
        return self.task.kind is Kind.BUILD

    @property
    def broken(self) -> bool:
        """Whether the whole Job failed or is gone, rather than a few of its shards."""
        failed = self.end.ending is Ending.FAILED and self.end.code != "FailedIndexes"
        return failed or self.end.ending is Ending.GONE


@dataclass(frozen=True)
class _SubmittedJob:
    """A running Job of a share, submitted or adopted; `build` is None for a measuring Job."""

    task: JobTask
    share: JobShare
    build: "_BuildJob | None" = None


@dataclass(frozen=True)
class _BuildJob:
    """The identity of a build Job, for pods waiting for its kernels (`cluster.kernel_records`)."""

    name: str
    batch: str
    token: str
    shards: int

    @classmethod
    def of(cls, name: str, notes: Mapping[str, str]) -> "_BuildJob":
        """Read the Job's notes (annotations without their prefix)."""
        return cls(name, notes["batch"], notes["token"], int(notes["shards"]))


class JobSubmitter:
    """Submits the Jobs of one search.

    Attributes:
        estimate: expected durations of candidates; callers add known costs (`learn`).
        batches: digests of the batches of all Jobs since `reset`.
        running_s: duration with running pods since `reset`, in seconds.
    """

    def __init__(
        self, task: SearchTask, runner: JobRunner, store: Store, kernels: KernelIndex
    ) -> None:
        self.estimate = DurationEstimate()
        self.batches: set[str] = set()
        self.running_s = 0.0
        self._task, self._runner, self._store, self._kernels = task, runner, store, kernels
        self._selector = {f"{LABEL}/search": task.labels["search"]}

    def reset(self) -> None:
        """Start the counts again at zero."""
        self.batches, self.running_s = set(), 0.0

    def measure(self, candidates: Sequence[KeyedRequest], on_poll: OnPoll) -> list[FinishedJob]:
        """Let pods build and measure; return the Jobs once all have ended.

        Raises:
            ClusterError, StoreError: a Job cannot be created or observed.
        """
        jobs = self._submit("measure", candidates, self.estimate.seconds)
        return self._finish(jobs, Wait(self._runner, [job.task.name for job in jobs]), on_poll)

    def build_and_measure(
        self, candidates: Sequence[KeyedRequest], unbuilt: Sequence[KeyedRequest], on_poll: OnPoll
    ) -> list[FinishedJob]:
        """Let pods build the absent kernels and others measure; return the Jobs once all have ended.

        Args:
            candidates: measurement requests of the batch.
            unbuilt: candidates without a kernel in the store.
            on_poll: called after every poll of the Jobs.

        Raises:
            ClusterError, StoreError: a Job cannot be created or observed.
        """
        jobs = self._submit("build", unbuilt, self.estimate.seconds) if unbuilt else []
        builds = [job.build for job in jobs if job.build]
        wait = Wait(self._runner, [build.name for build in builds])
        while not wait.look() and not self._can_start(candidates, unbuilt, wait, builds):
            on_poll()
            self._runner.pause()
        if wait.has_ended:  # candidates that do not build have an invalid cost by now
            kernels = self._kernels.find(candidate.key for candidate in candidates)
            candidates = [candidate for candidate in candidates if candidate.key in kernels]
            builds = []
        if candidates:
            measuring = self._submit("measure", candidates, loading_s, builds)
            wait.add([job.task.name for job in measuring])
            jobs += measuring
        return self._finish(jobs, wait, on_poll)

    def wait_for_running(self, on_poll: OnPoll) -> bool:
        """Wait for running Jobs of the same search; return whether there was one."""
        running = [job for job in self._runner.jobs.find(self._selector) if not job.ended]
        for job in running:
            self._runner.notice(f"the Job {job.name} works for the same search: waiting for it")
        if running:
            notes = {job.name: _own_notes(job) for job in running}
            self.batches |= {note["batch"] for note in notes.values()}
            builds = [_BuildJob.of(name, note) for name, note in notes.items() if "token" in note]
            self._wait(Wait(self._runner, list(notes)), builds, on_poll)
        return bool(running)

    def ended_batches(self) -> set[str]:
        """Return the batches of ended Jobs of the search, until Kubernetes removes those Jobs."""
        jobs = self._runner.jobs.find(self._selector)
        return {_own_notes(job)["batch"] for job in jobs if job.ended}

    def _can_start(
        self,
        candidates: Sequence[KeyedRequest],
        unbuilt: Sequence[KeyedRequest],
        wait: Wait,
        builds: Sequence[_BuildJob],
    ) -> bool:
        """Tell whether pods would hardly wait for kernels after a start now."""
        nodes = self._runner.environment
        if not nodes.build.overlap:
            return False
        self._kernels.look()
        built = self._kernels.count({candidate.key for candidate in unbuilt})
        if not built:
            return False
        ran_s = max(wait.running_s(build.name) for build in builds)
        remaining_s = ran_s * (len(unbuilt) - built) / built
        timing_s = sum(loading_s(candidate.work.backend) for candidate in candidates)
        pods = min(nodes.parallelism, math.ceil(timing_s / WORTH_A_POD_S))
        return remaining_s <= timing_s / pods + STARTING_S

    def _submit(
        self,
        purpose: Purpose,
        candidates: Sequence[KeyedRequest],
        seconds: Callable[[str], float],
        builds: Sequence[_BuildJob] = (),
    ) -> list[_SubmittedJob]:
        """Submit the Jobs of a batch, or adopt running Jobs of the same names."""
        nodes = self._runner.environment
        if purpose == "build":
            nodes = nodes.build_environment
        shares = split_groups(
            candidates,
            self._task.groups,
            seconds,
            min_job_s=nodes.seconds_per_group,
            parallelism=nodes.parallelism,
        )
        # every batch is in the store before the first Job is created
        tasks = [self._store_batch(purpose, share, seconds, nodes) for share in shares]
        jobs = []
        for task, share in zip(tasks, shares, strict=True):
            if builds:
                tokens = [f"{build.token}={build.batch}" for build in builds]
                task = replace(task, arguments=[*task.arguments, "--builds", *tokens])
            adopted = self._runner.submit(task)
            notes = _own_notes(adopted) if adopted else task.notes
            build = _BuildJob.of(task.name, notes) if purpose == "build" else None
            jobs.append(_SubmittedJob(task, share, build))
            self.batches.add(task.notes["batch"])
            log.info("job %s: %d candidates to %s", task.name, len(share.candidates), purpose)
        return jobs

    def _finish(
        self, jobs: Sequence[_SubmittedJob], wait: Wait, on_poll: OnPoll
    ) -> list[FinishedJob]:
        ends = self._wait(wait, [job.build for job in jobs if job.build], on_poll)
        return [
            FinishedJob(
                job.task,
                frozenset(candidate.key for candidate in job.share.candidates),
                ends[job.task.name],
            )
            for job in jobs
        ]

    def _wait(self, wait: Wait, builds: Sequence[_BuildJob], on_poll: OnPoll) -> Mapping[str, End]:
        """Wait for all Jobs; close the shards of ended build Jobs, unless their pods did so."""
        running = {build.name: build for build in builds}
        try:
            while not wait.look():
                for name in running.keys() & wait.ends.keys():
                    self._close_shards(running.pop(name), wait.ends[name])
                on_poll()
                self._runner.pause()
        except ClusterError:
            for build in running.values():
                self._close_shards(build)
            raise
        self.running_s += max((end.running_s for end in wait.ends.values()), default=0.0)
        return wait.ends

    def _close_shards(self, build: _BuildJob, end: End | None = None) -> None:
        """Record the end of a Job's builds, unless its pods have recorded it."""
        if end is None or end.ending is not Ending.COMPLETE:
            self._kernels.end(shard_name(build.token, index) for index in range(build.shards))

    def _store_batch(
        self,
        purpose: Purpose,
        share: JobShare,
        seconds: Callable[[str], float],
        nodes: MeasuringEnvironment,
    ) -> JobTask:
        """Put a Job's share of the batch into the store; its digest names the Job."""
        search, builds = self._task, purpose == "build"
        shards = plan_shards(
            share.candidates,
            seconds,
            seconds_per_shard=nodes.seconds_per_shard,
            parallelism=share.parallelism,
        )
        content = write_batch(
            shards,
            request=search.request,
            function=search.function,
            caller=search.caller,
            environment=search.environment,
            backends=search.backends,
            purpose=purpose,
            fetches=not builds and nodes.builds_separately,
        )
        digest = put_blob(self._store, content)
        notes = {"batch": digest, "function": search.function, "groups": ", ".join(share.groups)}
        notes |= {"candidates": str(len(share.candidates))}
        arguments = ["build" if builds else "shard", "--store", search.store, "--batch", digest]
        if builds:
            token = uuid4().hex
            notes |= {"token": token, "shards": str(len(shards))}
            arguments += ["--token", token]
        return JobTask(
            Kind.BUILD if builds else Kind.MEASURE,
            f"collage-{search.environment_name}-{digest[:NAME_DIGITS]}",
            search.labels,
            arguments,
            notes=notes,
            command=MEASURE if builds else (),
            compiles=builds,
            indices=len(shards),
            parallelism=share.parallelism,
        )


def _own_notes(job: JobView) -> Mapping[str, str]:
    """Return the notes of the Job's `JobTask`: its annotations without their prefix."""
    prefix = f"{LABEL}/"
    return {
        name.removeprefix(prefix): value
        for name, value in job.notes.items()
        if name.startswith(prefix)
    }
