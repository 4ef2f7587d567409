"""One Job from its creation, or adoption, to its end.

A Job has ended if its condition Complete or Failed is True; SuccessCriteriaMet and FailureTarget only
announce the end. A deleted Job (time to live, an operator) is no failure: the store has its results. Polls
are some seconds apart, with jitter, and read the same few objects for a Job of any size. Kubernetes would
wait for ever, or long, so the controller ends the Job in these cases: pods cannot be created (a policy, a
missing PriorityClass), cannot start (wrong image, missing Secret, a volume that is not mounted), or do not
end (a node that is away); pods have run beyond `deadline_seconds`; the Job has waited for nodes or quota
beyond `queue_seconds`. After half a minute a notice says what it waits for. The deadline in the Job's
manifest is the sum of both limits, so a Job ends without a controller too.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.api import Jobs, JobView
from collage.cluster.kubernetes.manifests import JobTask, job_manifest
from collage.cluster.kubernetes.pod_reports import Obstacle, PodProblem, may_pass
from collage.errors import ClusterError

STUCK_S = 25.0
"""Limit of the time in which pods cannot start, in seconds; the Job is deleted then."""

STUCK_BESIDE_S = 300.0
"""The same limit for a Job with running pods."""

SAY_AFTER_S = 30.0
"""Time in one state before a notice says what the Job waits for, in seconds."""

REFUSED_S = 120.0
"""Limit of the time in which pods are refused for a reason that does not pass, in seconds."""

SLOW_START_S = 600.0
"""Limit of the time between a pod's node and its first container, in seconds; images may be large."""

UNENDING_S = 900.0
"""Limit of the time in which pods end without an end, in seconds: their node is away."""

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


Notice = Callable[[str], None]
"""Callback for messages about waiting Jobs."""


@dataclass
class JobRunner:
    """Runs tasks as Jobs in one environment.

    Attributes:
        notice: callback for messages about waiting Jobs.
    """

    jobs: Jobs
    environment: MeasuringEnvironment
    settings: ClusterSettings
    notice: Notice
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def submit(self, task: JobTask) -> JobView | None:
        """Create the Job of the task, or adopt and return a running Job of its name.

        An ended Job of the name is deleted first: its work is incomplete, else the task would not be here.

        Raises:
            ClusterError: Kubernetes refuses it.
        """
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
        self._watches = {name: _JobWatch(runner, name) for name in names}

    def add(self, names: Sequence[str]) -> None:
        """Add Jobs to the wait."""
        self._watches |= {name: _JobWatch(self._runner, name) for name in names}

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
                self.ends[name] = end
        return self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether all Jobs had ended at the last poll."""
        return len(self.ends) == len(self._watches)

    def _ended(self, watch: "_JobWatch") -> End | None:
        view = self._runner.jobs.read(watch.name)
        if view is None:
            reason = f"the Job {watch.name} was deleted"
            return End(Ending.GONE, reason, running_s=watch.running_s)
        if view.complete:
            return End(Ending.COMPLETE, running_s=watch.running_s)
        if view.failed:
            reason = self._runner.explained(view)
            return End(
                Ending.FAILED, reason, view.reason, view.failed_indices, running_s=watch.running_s
            )
        watch.look(view)
        return None


@dataclass
class _JobWatch:
    """The observations of one Job."""

    runner: JobRunner
    name: str
    running_s: float = 0.0
    _waiting_s: float = 0.0
    _looked: float | None = None
    _stuck_since: dict[str, float] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _said: str = ""

    def look(self, view: JobView) -> None:
        now_s = self.runner.clock()
        self._count(view, now_s)
        if view.suspended:
            self._say(f"the Job {self.name} is suspended: queued until there is quota for it")
            return
        problems = self.runner.jobs.pod_problems(self.name) if view.active > view.ready else []
        by_obstacle = {
            obstacle: [problem for problem in problems if problem.obstacle is obstacle]
            for obstacle in Obstacle
        }
        self._look_at_stuck(view, by_obstacle[Obstacle.OPERATOR], now_s)
        self._look_at_waiting(by_obstacle[Obstacle.NODE], now_s)
        self._look_at_starting(view, by_obstacle[Obstacle.START], now_s)
        self._look_at_absent(view, now_s)
        self._look_at_unending(view, now_s)

    def _count(self, view: JobView, now_s: float) -> None:
        """Count the time since the last poll as running or waiting, by the present state."""
        passed_s = now_s - (now_s if self._looked is None else self._looked)
        self._looked = now_s
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

    def _look_at_stuck(self, view: JobView, stuck: list[PodProblem], now_s: float) -> None:
        pods = {problem.pod for problem in stuck}
        self._stuck_since = {pod: self._stuck_since.get(pod, now_s) for pod in sorted(pods)}
        limit_s = STUCK_BESIDE_S if view.ready or view.succeeded else STUCK_S
        for problem in stuck:
            if now_s - self._stuck_since[problem.pod] >= limit_s:
                self._give_up(f"its pods cannot start: {problem.reason}: {problem.message}")

    def _look_at_waiting(self, waiting: list[PodProblem], now_s: float) -> None:
        if self._lasts("waiting", bool(waiting), now_s) >= SAY_AFTER_S:
            self._say(
                f"{len(waiting)} pods of the Job {self.name} wait for a node: {waiting[0].message}"
            )

    def _look_at_starting(self, view: JobView, starting: list[PodProblem], now_s: float) -> None:
        """Look at pods with a node and without a container: volumes, sandbox, init containers, images."""
        lasts_s = self._lasts("starting", bool(starting), now_s)
        if lasts_s < SAY_AFTER_S:
            return
        first = starting[0]
        reason = self._warning("Pod", first.pod) or first.message or first.reason
        self._say(f"{len(starting)} pods of the Job {self.name} do not start: {reason}")
        if lasts_s >= SLOW_START_S and not view.ready:
            self._give_up(f"its pods have not started for {lasts_s:.0f} s: {reason}")

    def _look_at_absent(self, view: JobView, now_s: float) -> None:
        """Look at a Job without pods: Kubernetes refuses them, and repeats that for ever."""
        absent = not (view.active or view.ready or view.terminating)
        lasts_s = self._lasts("absent", absent, now_s)
        if lasts_s < SAY_AFTER_S:
            return
        reason = self._warning("Job", self.name)
        self._say(
            f"the pods of the Job {self.name} are not created: {reason or 'Kubernetes does not say why'}"
        )
        if reason and lasts_s >= REFUSED_S and not may_pass(reason):
            self._give_up(f"its pods are refused: {reason}")

    def _look_at_unending(self, view: JobView, now_s: float) -> None:
        lasts_s = self._lasts("unending", bool(view.terminating and not view.active), now_s)
        if lasts_s < 2 * SAY_AFTER_S:
            return
        finding = (
            f"{view.terminating} pods of the Job {self.name} do not end; their node may be away"
        )
        self._say(finding)
        if lasts_s >= UNENDING_S:
            self._give_up(f"{finding}, for {lasts_s:.0f} s")

    def _lasts(self, state: str, holds: bool, now_s: float) -> float:
        """Return how long the Job has been in a state, in seconds; 0 where it is not."""
        if not holds:
            self._since.pop(state, None)
            return 0.0
        return now_s - self._since.setdefault(state, now_s)

    def _warning(self, kind: str, name: str) -> str:
        """Return the newest warning about an object, "" without one."""
        warnings = self.runner.jobs.warnings(kind, name)
        return warnings[-1] if warnings else ""

    def _give_up(self, reason: str) -> None:
        self.runner.jobs.delete(self.name)
        raise ClusterError(f"the Job {self.name} was given up: {reason}")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.runner.notice(text)
