"""The observations of one Job, from poll to poll: what it waits for, and when waiting cannot help.

Kubernetes would wait for ever, or long, so the controller gives a Job up in these cases: its pods cannot be
created (a policy, a missing PriorityClass, a quota below one pod), cannot start (wrong image, missing Secret,
a volume that is not mounted), do not end (a node that is away) or are evicted again and again for what they
use; they have run beyond `deadline_seconds`; or the Job has waited for nodes or quota beyond `queue_seconds`.
A notice says what it waits for, and why pods failed, after half a minute. A pod whose measuring container has
ended may live on: a sidecar of a service mesh does not end by itself, so such pods count as ended.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.kubernetes.api import Jobs, JobView
from collage.cluster.kubernetes.job_ledger import UsageWatch
from collage.cluster.kubernetes.pod_reports import MainEnd, Obstacle, PodProblem, can_pass
from collage.errors import GivenUpError

STUCK_S = 25.0
"""Limit of the time in which pods cannot start, in seconds; the Job is deleted then."""

STUCK_BESIDE_S = 300.0
"""The same limit for a Job with running pods."""

SAY_AFTER_S = 30.0
"""Time in one state before a notice says what the Job waits for, in seconds."""

REFUSED_S = 120.0
"""Limit of the time in which pods are refused for a reason that does not pass, in seconds."""

SLOW_START_S = 600.0
"""Limit of the time from a pod's node to its first container, with a warning of Kubernetes, in seconds."""

PULL_S = 3600.0
"""The same limit without a warning, in seconds: large images are pulled."""

END_LATE_S = 45.0
"""Time to the notice that pods do not end or are not ready, in seconds; longer than their grace period."""

UNENDING_S = 900.0
"""Limit of the time in which pods end without an end, in seconds: their node is away."""

SIDECAR_S = 30.0
"""Time in which the other containers of a pod may end after its measuring container, in seconds."""

FAILURES_EVERY_S = 30.0
"""Time between two looks at failed pods, in seconds."""

EVICTIONS = 3
"""Limit of the evictions of one index for what its pods used themselves: they cost no retry, and repeat."""

Notice = Callable[[str], None]
"""Callback for messages about waiting Jobs."""


@dataclass(kw_only=True)
class JobWatch:
    """The observations of one Job.

    Attributes:
        limits: environment with the limits of running and waiting time.
        notice: callback for messages about the waiting Job.
        usage: record of what its pods use.
        running_s: duration with running pods, in seconds.
    """

    name: str
    jobs: Jobs
    limits: MeasuringEnvironment
    notice: Notice
    clock: Callable[[], float]
    usage: UsageWatch
    running_s: float = field(default=0.0, init=False)
    _waiting_s: float = field(default=0.0, init=False)
    _looked: float | None = field(default=None, init=False)
    _since: dict[str, dict[str, float]] = field(default_factory=dict, init=False)
    _said: str = field(default="", init=False)
    _failed: set[str] = field(default_factory=set, init=False)
    _failures_at: float = field(default=0.0, init=False)

    def look(self, view: JobView) -> list[MainEnd]:
        """Note a poll; return the ends of all active pods if only other containers keep them running.

        Raises:
            GivenUpError: waiting for the Job cannot help; it is deleted.
        """
        now_s = self.clock()
        self._count(view, now_s)
        if view.suspended:
            self._say(f"the Job {self.name} is suspended: queued until there is quota for it")
            return []
        self._look_at_failures(now_s)
        problems = self.jobs.pod_problems(self.name) if view.active > view.ready else []
        by_obstacle = {
            obstacle: [problem for problem in problems if problem.obstacle is obstacle]
            for obstacle in Obstacle
        }
        self._look_at_stuck(view, by_obstacle[Obstacle.OPERATOR], now_s)
        self._look_at_waiting(by_obstacle[Obstacle.NODE], now_s)
        self._look_at_starting(view, by_obstacle[Obstacle.START], now_s)
        self._look_at_absent(view, now_s)
        self._look_at_unending(view, now_s)
        return self._look_at_unready(view, view.active > view.ready and not problems, now_s)

    def _count(self, view: JobView, now_s: float) -> None:
        """Count the time since the last poll as running or waiting, by the present state."""
        passed_s = now_s - (now_s if self._looked is None else self._looked)
        self._looked = now_s
        if view.ready:
            self.running_s += passed_s
        else:
            self._waiting_s += passed_s
        limits = self.limits
        if self.running_s > limits.deadline_seconds:
            limit = f"deadlineSeconds: {limits.deadline_seconds}"
            self._give_up(f"it has run for {self.running_s:.0f} s ({limit})")
        if self._waiting_s > limits.queue_seconds:
            limit = f"queueSeconds: {limits.queue_seconds}"
            self._give_up(f"it has waited {self._waiting_s:.0f} s for nodes or quota ({limit})")

    def _look_at_failures(self, now_s: float) -> None:
        """Look at pods that failed: an eviction costs no retry, so the Job itself may never fail."""
        if now_s < self._failures_at:
            return
        self._failures_at = now_s + FAILURES_EVERY_S
        failures = self.jobs.failures(self.name)
        new = [failure for failure in failures if failure.pod not in self._failed]
        self._failed |= {failure.pod for failure in new}
        if new:
            self.notice(
                f"{len(self._failed)} pods of the Job {self.name} have failed, one of them {new[-1].pod}: "
                f"{new[-1].reason or 'Kubernetes does not say why'}"
            )
        evictions = Counter(failure.index for failure in failures if failure.exceeds_limit)
        if evictions and max(evictions.values()) >= EVICTIONS:
            reason = next(failure.reason for failure in failures if failure.exceeds_limit)
            self._give_up(f"its pods are evicted again and again: {reason}")

    def _look_at_stuck(self, view: JobView, stuck: list[PodProblem], now_s: float) -> None:
        first, lasts_s = self._longest("stuck", stuck, now_s)
        limit_s = STUCK_BESIDE_S if view.ready or view.succeeded else STUCK_S
        if first and lasts_s >= limit_s:
            self._give_up(f"its pods cannot start: {first.reason}: {first.message}")

    def _look_at_waiting(self, waiting: list[PodProblem], now_s: float) -> None:
        first, lasts_s = self._longest("waiting", waiting, now_s)
        if first and lasts_s >= SAY_AFTER_S:
            self._say(
                f"{len(waiting)} pods of the Job {self.name} wait for a node: {first.message}"
            )

    def _look_at_starting(self, view: JobView, starting: list[PodProblem], now_s: float) -> None:
        """Look at pods with a node and without a container: volumes, sandbox, init containers, images."""
        first, lasts_s = self._longest("starting", starting, now_s)
        if first is None or lasts_s < SAY_AFTER_S:
            return
        warning = self._warning("Pod", first.pod)
        reason = warning or first.message or first.reason
        self._say(f"{len(starting)} pods of the Job {self.name} do not start: {reason}")
        if lasts_s >= (SLOW_START_S if warning else PULL_S) and not view.ready:
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
        if reason and lasts_s >= REFUSED_S and not can_pass(reason):
            self._give_up(f"its pods are refused: {reason}")

    def _look_at_unending(self, view: JobView, now_s: float) -> None:
        lasts_s = self._lasts("unending", bool(view.terminating and not view.active), now_s)
        if lasts_s < END_LATE_S:
            return
        finding = (
            f"{view.terminating} pods of the Job {self.name} do not end; their node may be away"
        )
        self._say(finding)
        if lasts_s >= UNENDING_S:
            self._give_up(f"{finding}, for {lasts_s:.0f} s")

    def _look_at_unready(self, view: JobView, unready: bool, now_s: float) -> list[MainEnd]:
        """Look at pods that run and are not ready: their work has ended, or their node is away."""
        ends = self.jobs.main_ends(self.name) if unready else []
        held = bool(ends) and len(ends) >= view.active
        if self._lasts("unready", unready and not ends, now_s) >= END_LATE_S:
            self._say(
                f"{view.active - view.ready} pods of the Job {self.name} run and are not ready: their node "
                "may be away, or a sidecar is not ready"
            )
        return ends if self._lasts("held", held, now_s) >= SIDECAR_S else []

    def _longest(
        self, state: str, problems: Sequence[PodProblem], now_s: float
    ) -> tuple[PodProblem | None, float]:
        """Return the pod that has been in a state for longest, and for how long, in seconds."""
        before = self._since.get(state, {})
        since = {problem.pod: before.get(problem.pod, now_s) for problem in problems}
        self._since[state] = since
        if not problems:
            return None, 0.0
        first = min(problems, key=lambda problem: (since[problem.pod], problem.pod))
        return first, now_s - since[first.pod]

    def _lasts(self, state: str, holds: bool, now_s: float) -> float:
        """Return how long the Job has been in a state, in seconds; 0 where it is not."""
        if not holds:
            self._since.pop(state, None)
            return 0.0
        return now_s - self._since.setdefault(state, {}).setdefault(self.name, now_s)

    def _warning(self, kind: str, name: str) -> str:
        """Return the newest warning about an object, "" without one."""
        warnings = self.jobs.warnings(kind, name)
        return warnings[-1] if warnings else ""

    def _give_up(self, reason: str) -> None:
        self.usage.record()
        self.jobs.delete(self.name)
        raise GivenUpError(f"the Job {self.name} was given up: {reason}")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.notice(text)
