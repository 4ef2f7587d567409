"""What a pod has used: from the start of its main container to its end, times what it asked for.

Kubernetes keeps the times of an ended container in the pod. A pod that ended without them, because its node
is away or it was evicted before its container's end was reported, counts from its start to the last time
that Kubernetes noted in it. A pod that never started used nothing.
"""

from dataclasses import dataclass
from datetime import datetime

from kubernetes import client
from kubernetes.utils.quantity import parse_quantity

from collage.cluster.kubernetes.manifests import CONTAINER
from collage.store.usage import Usage


@dataclass(frozen=True)
class PodUsage:
    """The usage of one pod.

    Attributes:
        started: start of its main container, or of the pod.
        ended: end of its main container; the time of the question if it runs.
        cpus: processors that it asked for.
        gpus: GPUs, or other extended resources, that it asked for.
    """

    pod: str
    node: str
    started: datetime
    ended: datetime
    cpus: float
    gpus: float

    @property
    def usage(self) -> Usage:
        seconds = max(0.0, (self.ended - self.started).total_seconds())
        return Usage.of(seconds, self.cpus, self.gpus)

    @property
    def details(self) -> dict[str, object]:
        """The facts as JSON values."""
        return {
            "pod": self.pod, "node": self.node, "started": self.started.isoformat(),
            "ended": self.ended.isoformat(), "cpus": self.cpus, "gpus": self.gpus,
        }  # fmt: skip


def pod_usage(pod: client.V1Pod, now: datetime) -> PodUsage | None:
    """Return the usage of a pod up to `now`; None for a pod that has not started."""
    times = _container_times(pod, now) or _pod_times(pod)
    if times is None or pod.metadata is None:
        return None
    cpus, gpus = requested_resources(pod.spec)
    node = (pod.spec and pod.spec.node_name) or ""
    return PodUsage(pod.metadata.name or "", node, *times, cpus=cpus, gpus=gpus)


def requested_resources(spec: client.V1PodSpec | None) -> tuple[float, float]:
    """Return the processors and the extended resources (GPUs) that a pod's main container asks for."""
    container = _main(spec.containers if spec else None)
    limits = (container and container.resources and container.resources.limits) or {}
    requests = (container and container.resources and container.resources.requests) or {}
    cpus = parse_quantity(requests.get("cpu") or limits.get("cpu") or "0")
    extended = [parse_quantity(amount) for name, amount in limits.items() if "/" in name]
    return float(cpus), float(sum(extended))


def _main(containers: list[client.V1Container] | None) -> client.V1Container | None:
    return next((item for item in containers or () if item.name == CONTAINER), None)


def _container_times(pod: client.V1Pod, now: datetime) -> tuple[datetime, datetime] | None:
    state = _main_state(pod)
    if state and state.running and state.running.started_at:
        return state.running.started_at, now
    ended = state and state.terminated
    if ended and ended.started_at and ended.finished_at:
        return ended.started_at, ended.finished_at
    return None


def _pod_times(pod: client.V1Pod) -> tuple[datetime, datetime] | None:
    """Return the times of a pod that ended without those of its container."""
    status, state = pod.status, _main_state(pod)
    if status is None or status.phase not in ("Failed", "Succeeded") or status.start_time is None:
        return None
    if state and state.waiting:
        return None
    noted = [condition.last_transition_time for condition in status.conditions or ()]
    return status.start_time, max([status.start_time, *filter(None, noted)])


def _main_state(pod: client.V1Pod) -> client.V1ContainerState | None:
    statuses = (pod.status and pod.status.container_statuses) or ()
    return next((status.state for status in statuses if status.name == CONTAINER), None)
