"""The ledger of a run's Jobs: what their pods used goes into the store, and limits are checked against it.

A Job is recorded once it has ended, or before it is given up, from the times in its pods: retries and killed
pods count. Pods that Kubernetes has deleted by then (evicted, preempted, removed with their Job) count up to
the last look at them (`USAGE_S`). A Job that ended while no controller lived is recorded by
the next run of its request. A record that cannot be written is a warning, and fails no run.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from collage.cluster.kubernetes.api import Jobs, JobView
from collage.cluster.kubernetes.manifests import Kind
from collage.cluster.kubernetes.pod_usage import PodUsage
from collage.errors import ClusterError, StoreError
from collage.store.base import Store
from collage.store.usage import (
    BUILD_SUFFIX,
    NOBODY,
    Usage,
    UsageRecord,
    WorkOwner,
    list_usage,
    model_prefix,
    record_usage,
    today,
)
from collage.store.usage_limits import LimitCheck

log = logging.getLogger(__name__)

USAGE_S = 30.0
"""Pause between two looks at the usage of running pods, in seconds."""


@dataclass(frozen=True)
class JobLedger:
    """Records the usage of one run's Jobs in one environment.

    Attributes:
        name: name of the environment.
        check: limits of the run; None without limits.
    """

    jobs: Jobs
    store: Store
    name: str
    owner: WorkOwner = NOBODY
    check: LimitCheck | None = None

    def require_room(self) -> None:
        """Raise LimitError where a limit of the run, its model, team or day is reached."""
        if self.check:
            self.check.require_room()

    def record(self, view: JobView, earlier: Mapping[str, PodUsage] = MappingProxyType({})) -> None:
        """Record a Job; a repetition changes nothing.

        Args:
            view: a state of the Job.
            earlier: pods by name as they were seen before; Kubernetes may have deleted some.
        """
        try:
            record_usage(self.store, self._record(view, earlier))
        except (ClusterError, StoreError) as error:
            log.warning("the usage of the Job %s was not recorded: %s", view.name, error)

    def record_unseen(self, labels: Mapping[str, str]) -> None:
        """Record the ended Jobs with these labels that nobody has recorded for the model."""
        try:
            days = (today() - timedelta(days=1), today())
            entries = [
                entry
                for day in days
                for entry in list_usage(self.store, model_prefix(day, self.owner))
            ]
            recorded = {entry.work for entry in entries}
            ended = [view for view in self.jobs.find(labels) if view.ended]
            records = [self._record(view, {}) for view in ended]
            for record in records:
                if record.digest not in recorded:
                    record_usage(self.store, record)
        except (ClusterError, StoreError) as error:
            log.warning("the usage of earlier Jobs was not recorded: %s", error)

    def _record(self, view: JobView, earlier: Mapping[str, PodUsage]) -> UsageRecord:
        present = {pod.pod: pod for pod in self.jobs.pod_usage(view.name)}
        pods = sorted({**earlier, **present}.values(), key=lambda pod: pod.pod)
        ended = max((pod.ended for pod in pods), default=datetime.now(UTC))
        return UsageRecord(
            self.owner,
            self.name + (BUILD_SUFFIX if view.kind == Kind.BUILD else ""),
            work=view.uid,
            usage=sum((pod.usage for pod in pods), Usage()),
            ended=ended.astimezone(UTC).date(),
            details={"job": view.name, "kind": view.kind, "pods": [pod.details for pod in pods]},
        )


@dataclass
class UsageWatch:
    """The usage of one Job's pods, from poll to poll; without a ledger nothing is listed or recorded."""

    ledger: JobLedger | None
    _view: JobView | None = None
    _pods: dict[str, PodUsage] = field(default_factory=dict)
    _listed_s: float = -math.inf

    def look(self, view: JobView, now_s: float) -> None:
        """Note a poll, and the running pods now and then: Kubernetes forgets those that are evicted."""
        self._view = view
        if self.ledger and view.ready and now_s - self._listed_s >= USAGE_S:
            self._listed_s = now_s
            self._pods |= {pod.pod: pod for pod in self.ledger.jobs.pod_usage(view.name)}

    def record(self) -> None:
        """Record what the Job's pods have used, once, before anything deletes them."""
        if self.ledger and self._view:
            self.ledger.record(self._view, self._pods)
            self._view = None
