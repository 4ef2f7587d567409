"""One Job from its creation, or adoption, to its end.

A Job has ended if its condition Complete or Failed is True; SuccessCriteriaMet and FailureTarget only
announce the end. A Job whose pods are kept running by sidecars alone has ended too, and is deleted. A deleted
Job (time to live, an operator) is no failure: the store has its results. Polls are some seconds apart, with
jitter, and read the same few objects for a Job of any size. `job_watch` ends Jobs for which waiting cannot
help. The deadline in the Job's manifest is the sum of the limits of running and waiting, so a Job ends
without a controller too.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.exit_codes import BAD_NODE
from collage.cluster.kubernetes.api import Jobs, JobView
from collage.cluster.kubernetes.job_ledger import JobLedger, UsageWatch
from collage.cluster.kubernetes.job_watch import JobWatch, Notice
from collage.cluster.kubernetes.manifests import JobTask, job_manifest
from collage.cluster.kubernetes.pod_reports import MainEnd
from collage.errors import ClusterError

DELETED_S = 60.0
LOGS, LOG_LINES = 3, 15


class Ending(Enum):
    COMPLETE = "complete"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True)
class End:
    """The end of a Job.

    Attributes:
        reason: explanation of a Job that is not complete.
        code: reason of the Failed condition, e.g. "FailedIndexes".
        failed_indices: failed completion indices, as Kubernetes writes them.
        running_s: duration with running pods, in seconds.
    """

    ending: Ending
    reason: str = ""
    code: str = ""
    failed_indices: str = ""
    running_s: float = 0.0


@dataclass
class JobRunner:
    """Runs tasks as Jobs in one environment.

    Attributes:
        notice: callback for messages about waiting Jobs.
        ledger: records of what the Jobs use, None without records and limits.
    """

    jobs: Jobs
    environment: MeasuringEnvironment
    settings: ClusterSettings
    notice: Notice
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    ledger: JobLedger | None = None

    def submit(self, task: JobTask) -> JobView | None:
        """Create the Job of the task, or adopt and return a running Job of its name.

        An ended Job of the name is deleted first: its work is incomplete, else the task would not be here.

        Raises:
            ClusterError: Kubernetes refuses it.
            LimitError: a limit of cost is reached.
        """
        if self.ledger:
            self.ledger.require_room()
        manifest = job_manifest(task, self.environment, self.settings)
        end = self.clock() + DELETED_S
        while not self.jobs.create(manifest):
            existing = self.jobs.read(task.name)
            if existing is not None and not existing.ended:
                self.notice(f"the Job {task.name} runs already: waiting for it")
                return existing
            if existing is not None:
                self.jobs.delete(task.name)
            if self.clock() > end:
                raise ClusterError(f"the old Job {task.name} does not go away; delete it by hand")
            self.sleep(self.settings.poll_s / 8)
        return None

    def wait(self, name: str, on_poll: Callable[[], None] = lambda: None) -> End:
        """Return the end of the Job; see `wait_all`."""
        return self.wait_all([name], on_poll)[name]

    def wait_all(
        self, names: Sequence[str], on_poll: Callable[[], None] = lambda: None
    ) -> dict[str, End]:
        """Return the end of each Job after all have ended; `on_poll` is called after every poll.

        Raises:
            ClusterError: the pods of a Job cannot start, or it exceeded a limit (it is deleted then), or
                Kubernetes does not answer. The other Jobs continue.
        """
        wait = Wait(self, names)
        while not wait.look():
            on_poll()
            self.pause()
        return wait.ends

    def pause(self) -> None:
        """Sleep between two polls."""
        self.sleep(self.settings.poll_s * random.uniform(0.75, 1.25))

    def explained(self, view: JobView) -> str:
        """Return the reason of a failed Job, with the last log lines of its pods."""
        lines = [f"the Job {view.name} failed: {view.reason}: {view.message}".rstrip(": ")]
        if view.failed_indices:
            lines.append(f"failed indices {view.failed_indices}")
        lines += self.jobs.log_tails(view.name, LOGS, LOG_LINES)
        return "\n".join(lines)


class Wait:
    """A joint wait for several Jobs; `add` extends it.

    Attributes:
        ends: end of each ended Job, by name.
    """

    def __init__(self, runner: JobRunner, names: Sequence[str]) -> None:
        self.ends: dict[str, End] = {}
        self._runner = runner
        self._watches: dict[str, JobWatch] = {}
        self.add(names)

    def add(self, names: Sequence[str]) -> None:
        """Add Jobs to the wait."""
        runner = self._runner
        for name in names:
            self._watches[name] = JobWatch(
                name=name,
                jobs=runner.jobs,
                limits=runner.environment,
                notice=runner.notice,
                clock=runner.clock,
                usage=UsageWatch(runner.ledger),
            )

    def running_s(self, name: str) -> float:
        """Return the duration with running pods of the Job, in seconds."""
        return self._watches[name].running_s

    def look(self) -> bool:
        """Poll all Jobs that have not ended; return whether all have ended.

        Raises:
            ClusterError: the reasons of `JobRunner.wait_all`.
        """
        for name, watch in self._watches.items():
            if name not in self.ends and (end := self._ended(watch)):
                watch.usage.record()
                self.ends[name] = end
        return self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether all Jobs had ended at the last poll."""
        return len(self.ends) == len(self._watches)

    def _ended(self, watch: JobWatch) -> End | None:
        view = self._runner.jobs.read(watch.name)
        if view is None:
            reason = f"the Job {watch.name} was deleted"
            return End(Ending.GONE, reason, running_s=watch.running_s)
        watch.usage.look(view, self._runner.clock())
        if view.complete:
            return End(Ending.COMPLETE, running_s=watch.running_s)
        if view.failed:
            reason = self._runner.explained(view)
            return End(
                Ending.FAILED, reason, view.reason, view.failed_indices, running_s=watch.running_s
            )
        if ends := watch.look(view):
            return self._ended_beside_sidecars(watch, view, ends)
        return None

    def _ended_beside_sidecars(
        self, watch: JobWatch, view: JobView, ends: Sequence[MainEnd]
    ) -> End:
        """Return the end by the containers of Collage, and delete the Job: its pods would run on."""
        jobs, others = self._runner.jobs, sorted({name for end in ends for name in end.others})
        finding = (
            f"the pods of the Job {watch.name} ended and are kept by {', '.join(others)}, which "
            "annotations of the pods can keep out (jobs.podAnnotations of the chart)"
        )
        self._runner.notice(f"{finding}: the Job is deleted")
        failed = [end for end in ends if end.exit_code]
        logs = [
            f"the pod {end.pod}: exit code {end.exit_code}\n{jobs.log_tail(end.pod, LOG_LINES)}".strip()
            for end in failed[:LOGS]
        ]
        watch.usage.record()
        jobs.delete(watch.name)
        if failed:
            broken = any(end.exit_code == BAD_NODE for end in failed)
            return End(
                Ending.FAILED, "\n".join([finding, *logs]),
                "PodFailurePolicy" if broken else "FailedIndexes",
                ",".join(str(end.index) for end in failed), running_s=watch.running_s,
            )  # fmt: skip
        if view.succeeded + len(ends) < view.completions:
            return End(Ending.GONE, finding, running_s=watch.running_s)
        return End(Ending.COMPLETE, running_s=watch.running_s)
