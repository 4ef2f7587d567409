"""One Job from its creation, or adoption, to its end.

A Job has ended when its condition Complete or Failed is True and never before: SuccessCriteriaMet and
FailureTarget only announce that. A Job that is gone (its time to live, somebody's hand) is no failure:
the store tells what it did. Looks are some seconds apart, with jitter, and ask for the same few objects
however large the Job is. Three ends are decided here, because Kubernetes would wait for ever or long: pods
that cannot start (wrong image, missing Secret); a Job whose pods have run for longer than its deadline;
and one that has waited for nodes or quota for longer than it may, which it says meanwhile. The Job's own
deadline counts both, so that it ends without a controller too.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.api import Jobs, JobView, PodTrouble
from collage.cluster.kubernetes.manifests import Task, job_manifest
from collage.errors import ClusterError

STUCK_S = 25.0
"""How long no pod may start before the Job is given up."""

STUCK_BESIDE_S = 300.0
"""The same while other pods of the Job run."""

NO_ROOM_S = 30.0
DELETED_S = 60.0
LOGS, LOG_LINES = 3, 15


class Ending(Enum):
    COMPLETE = "complete"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True)
class End:
    """How a Job ended; `reason`, in words, where it is not complete.

    Attributes:
        running_s: for how long pods of it were seen to run.
    """

    ending: Ending
    reason: str = ""
    code: str = ""
    failed_indices: str = ""
    running_s: float = 0.0


Notice = Callable[[str], None]
"""Told, in words, what the Job waits for."""


@dataclass
class JobRunner:
    """Runs tasks as Jobs in one environment.

    Attributes:
        notice: told what a Job waits for.
    """

    jobs: Jobs
    environment: MeasuringEnvironment
    settings: ClusterSettings
    notice: Notice
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def submit(self, task: Task) -> JobView | None:
        """Create the Job of the task, or adopt the one of its name that runs, which is returned then.

        One that has ended did not do all that the task is for, or nobody would ask: it goes first.

        Raises:
            ClusterError: Kubernetes refuses it.
        """
        manifest = job_manifest(task, self.environment, self.settings)
        end = self.clock() + DELETED_S
        while not self.jobs.create(manifest):
            found = self.jobs.read(task.name)
            if found is not None and not found.ended:
                self.notice(f"the Job {task.name} runs already: waiting for it")
                return found
            if found is not None:
                self.jobs.delete(task.name)
            if self.clock() > end:
                raise ClusterError(f"the old Job {task.name} does not go away; delete it by hand")
            self.sleep(self.settings.poll_s / 8)
        return None

    def wait(self, name: str, on_look: Callable[[], None] = lambda: None) -> End:
        """Return how the Job ended; see `wait_all`."""
        return self.wait_all([name], on_look)[name]

    def wait_all(
        self, names: Sequence[str], on_look: Callable[[], None] = lambda: None
    ) -> dict[str, End]:
        """Return how each Job ended, once all have; `on_look` is called after every look.

        Raises:
            ClusterError: no pod of one can start, or it has waited or run for too long (it is deleted
                then), or Kubernetes does not answer. The others go on.
        """
        wait = Wait(self, names)
        while not wait.look():
            on_look()
            self.pause()
        return wait.ends

    def pause(self) -> None:
        """Let some time pass between two looks."""
        self.sleep(self.settings.poll_s * random.uniform(0.75, 1.25))

    def explained(self, view: JobView) -> str:
        """Say why a Job failed, with the last lines of its pods."""
        words = [f"the Job {view.name} failed: {view.reason}: {view.message}".rstrip(": ")]
        if view.failed_indices:
            words.append(f"failed indices {view.failed_indices}")
        words += self.jobs.last_words(view.name, LOGS, LOG_LINES)
        return "\n".join(words)


class Wait:
    """Jobs that are waited for together; more may be added while the first run.

    Attributes:
        ends: of those that have ended.
    """

    def __init__(self, runner: JobRunner, names: Sequence[str]) -> None:
        self.ends: dict[str, End] = {}
        self._runner = runner
        self._watches = {name: _Watch(runner, name) for name in names}

    def add(self, names: Sequence[str]) -> None:
        """Wait for these too."""
        self._watches |= {name: _Watch(self._runner, name) for name in names}

    def running_s(self, name: str) -> float:
        """Return for how long pods of the Job were seen to run."""
        return self._watches[name].running_s

    def look(self) -> bool:
        """Look at all that have not ended; return whether all have.

        Raises:
            ClusterError: as `JobRunner.wait_all` does.
        """
        for name, watch in self._watches.items():
            if name not in self.ends and (end := self._ended(watch)):
                self.ends[name] = end
        return self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether all had ended at the last look."""
        return len(self.ends) == len(self._watches)

    def _ended(self, watch: "_Watch") -> End | None:
        view = self._runner.jobs.read(watch.name)
        if view is None:
            why = f"the Job {watch.name} was deleted"
            return End(Ending.GONE, why, running_s=watch.running_s)
        if view.complete:
            return End(Ending.COMPLETE, running_s=watch.running_s)
        if view.failed:
            why = self._runner.explained(view)
            return End(Ending.FAILED, why, view.reason, view.failed_indices, watch.running_s)
        watch.look(view)
        return None


@dataclass
class _Watch:
    """What was seen of one Job so far."""

    runner: JobRunner
    name: str
    running_s: float = 0.0
    _waiting_s: float = 0.0
    _looked: float | None = None
    _stuck_since: dict[str, float] = field(default_factory=dict)
    _no_room_since: float | None = None
    _said: str = ""

    def look(self, view: JobView) -> None:
        now = self.runner.clock()
        self._count(view, now)
        if view.suspended:
            self._say(f"the Job {self.name} is suspended: queued until there is quota for it")
            return
        troubles = self.runner.jobs.troubles(self.name) if view.active > view.ready else []
        self._look_at_stuck(view, [one for one in troubles if one.stuck], now)
        self._look_at_waiting([one for one in troubles if not one.stuck], now)

    def _count(self, view: JobView, now: float) -> None:
        """Time since the last look counts for what is seen now."""
        passed_s = now - (now if self._looked is None else self._looked)
        self._looked = now
        if view.ready:
            self.running_s += passed_s
        else:
            self._waiting_s += passed_s
        limits = self.runner.environment
        if self.running_s > limits.deadline_seconds:
            limit = f"deadlineSeconds: {limits.deadline_seconds}"
            self._give_up(f"it has run for {self.running_s:.0f} s ({limit})")
        if self._waiting_s > limits.queue_seconds:
            limit = f"queueSeconds: {limits.queue_seconds}"
            self._give_up(f"it has waited {self._waiting_s:.0f} s for nodes or quota ({limit})")

    def _look_at_stuck(self, view: JobView, stuck: list[PodTrouble], now: float) -> None:
        pods = {one.pod for one in stuck}
        self._stuck_since = {pod: self._stuck_since.get(pod, now) for pod in sorted(pods)}
        limit_s = STUCK_BESIDE_S if view.ready or view.succeeded else STUCK_S
        for one in stuck:
            if now - self._stuck_since[one.pod] >= limit_s:
                self._give_up(f"its pods cannot start: {one.reason}: {one.message}")

    def _look_at_waiting(self, waiting: list[PodTrouble], now: float) -> None:
        if not waiting:
            self._no_room_since = None
            return
        self._no_room_since = self._no_room_since or now
        if now - self._no_room_since >= NO_ROOM_S:
            one = waiting[0]
            what = f"{len(waiting)} pods of the Job {self.name} wait for a node: {one.message}"
            self._say(what)

    def _give_up(self, why: str) -> None:
        self.runner.jobs.delete(self.name)
        raise ClusterError(f"the Job {self.name} was given up: {why}")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.runner.notice(text)
