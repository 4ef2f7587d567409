"""Why pods do not start, and why they failed, in the words of Kubernetes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from kubernetes import client

from collage.logs import redact

START_FAILURES = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName",
        "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
    }
)  # fmt: skip
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
_PASSING_REFUSALS = (
    "exceeded quota", "failed calling webhook", "timeout", "timed out", "connection refused",
    "object has been modified", "is being terminated", "too many requests",
)  # fmt: skip


class Obstacle(Enum):
    """What a pod that does not start is waiting for."""

    OPERATOR = "cannot start"
    NODE = "wait for a node"
    START = "do not start"
    """Volumes, network or sandbox: often seconds, sometimes for ever."""


@dataclass(frozen=True)
class PodProblem:
    """The reason of a pod that does not start."""

    pod: str
    reason: str
    message: str
    obstacle: Obstacle


def pod_problem(pod: client.V1Pod) -> PodProblem | None:
    """Return why the pod does not run, None where nothing is said about it.

    Containers of all kinds count: init containers and sidecars run before the container that measures.
    """
    status = pod.status or client.V1PodStatus()
    starting = None
    for waiting in _waiting_states(status):
        message = redact(waiting.message or "")
        if waiting.reason in START_FAILURES:
            return PodProblem(name_of(pod), waiting.reason, message, Obstacle.OPERATOR)
        if waiting.reason in _STARTING:
            starting = starting or PodProblem(name_of(pod), waiting.reason, message, Obstacle.START)
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            message = redact(condition.message or "")
            return PodProblem(name_of(pod), condition.reason or "", message, Obstacle.NODE)
    return starting


def failure(pod: client.V1Pod) -> str:
    """Return why a failed pod ended, e.g. "OOMKilled (exit code 137)"; "" where nothing is said."""
    status = pod.status or client.V1PodStatus()
    reasons = [f"{status.reason}: {status.message or ''}".rstrip(": ")] if status.reason else []
    for container in _container_statuses(status):
        ended = container.state.terminated if container.state else None
        if ended and ended.exit_code:
            text = f"{container.name}: {ended.reason or 'Error'} (exit code {ended.exit_code})"
            reasons.append(f"{text}: {ended.message}" if ended.message else text)
    return redact("; ".join(reasons))


def may_pass(refusal: str) -> bool:
    """Tell whether a pod that was refused with this message may be created later without a change.

    Quota is freed and webhooks come back; a missing PriorityClass, a policy or a security context does not.
    """
    return any(words in refusal.lower() for words in _PASSING_REFUSALS)


def name_of(resource: client.V1Job | client.V1Pod) -> str:
    """Return the name of a resource, "" without metadata."""
    return (resource.metadata.name if resource.metadata else None) or ""


def _waiting_states(status: client.V1PodStatus) -> Iterator[client.V1ContainerStateWaiting]:
    for container in _container_statuses(status):
        if container.state and container.state.waiting:
            yield container.state.waiting


def _container_statuses(status: client.V1PodStatus) -> Sequence[client.V1ContainerStatus]:
    return [*(status.init_container_statuses or ()), *(status.container_statuses or ())]
