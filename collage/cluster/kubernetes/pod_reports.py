"""Why pods do not start, and how they ended, in the words of Kubernetes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from kubernetes import client
from kubernetes.utils.quantity import parse_quantity

from collage.cluster.kubernetes.manifests import CONTAINER
from collage.logs import redact

START_FAILURES = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName",
        "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
    }
)  # fmt: skip
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
_INDEX = "batch.kubernetes.io/job-completion-index"
_OVER_LIMIT = re.compile(r"\bEvicted: .*\bexceed(s|ed) .*\blimit\b")
_QUOTA = re.compile(r"exceeded quota: .*requested: (.*?), used: .*?, limited: (\S*)")
_PASSING_REFUSALS = (
    "exceeded quota", "failed calling webhook", "internal error", "timeout", "timed out",
    "deadline exceeded", "connection refused", "object has been modified", "is being terminated",
    "too many requests", "unavailable",
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


@dataclass(frozen=True)
class MainEnd:
    """The end of a measuring container whose pod runs on.

    Attributes:
        index: completion index of the pod.
        others: names of the running containers.
    """

    pod: str
    index: int
    exit_code: int
    others: tuple[str, ...]


@dataclass(frozen=True)
class PodFailure:
    """Why a pod failed; `index` is its completion index, `reason` may be ""."""

    pod: str
    index: int
    reason: str

    @property
    def exceeds_limit(self) -> bool:
        """Whether the pod was evicted for what it used itself, rather than for its node's sake."""
        return _OVER_LIMIT.search(self.reason) is not None


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
    return starting or _unnoticed(pod)


def _unnoticed(pod: client.V1Pod) -> PodProblem | None:
    """Return the problem of a pod about which nothing is said: no scheduler or kubelet has looked at it."""
    if pod.spec is None or (pod.status and pod.status.container_statuses):
        return None
    if node := pod.spec.node_name:
        message = f"the node {node} has not looked at it"
        return PodProblem(name_of(pod), "NotStarted", message, Obstacle.START)
    message = "no scheduler has looked at it"
    return PodProblem(name_of(pod), "NotScheduled", message, Obstacle.NODE)


def main_end(pod: client.V1Pod) -> MainEnd | None:
    """Return the end of the measuring container of a pod that runs on, else None."""
    status = pod.status or client.V1PodStatus()
    states = {container.name: container.state for container in status.container_statuses or ()}
    main = states.pop(CONTAINER, None)
    if main is None or main.terminated is None:
        return None
    others = tuple(sorted(name for name, state in states.items() if state and state.running))
    return MainEnd(name_of(pod), _index(pod), main.terminated.exit_code, others)


def pod_failure(pod: client.V1Pod) -> PodFailure:
    """Return why a failed pod failed."""
    return PodFailure(name_of(pod), _index(pod), failure(pod))


def ended_container(pod: client.V1Pod) -> str:
    """Return the container whose log says why the pod failed: the first that failed, or Collage's."""
    status = pod.status or client.V1PodStatus()
    failed = [
        container.name
        for container in _container_statuses(status)
        if container.state and container.state.terminated and container.state.terminated.exit_code
    ]
    return failed[0] if failed and CONTAINER not in failed else CONTAINER


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


def can_pass(refusal: str) -> bool:
    """Tell whether a pod that was refused with this message may be created later without a change.

    Quota is freed and webhooks come back; a missing PriorityClass, a policy, a security context or a quota
    below the pod's own requests does not change by itself.
    """
    if any(words in refusal.lower() for words in _PASSING_REFUSALS):
        return not _exceeds_whole_quota(refusal)
    return False


def _exceeds_whole_quota(refusal: str) -> bool:
    quota = _QUOTA.search(refusal)
    if quota is None:
        return False
    requested, limited = _quantities(quota[1]), _quantities(quota[2])
    return any(amount > limited[name] for name, amount in requested.items() if name in limited)


def _quantities(text: str) -> Mapping[str, Decimal]:
    """Parse "cpu=2,memory=4Gi"; what is no quantity is left out."""
    quantities = {}
    for name, _, amount in (pair.partition("=") for pair in text.split(",")):
        try:
            quantities[name] = Decimal(parse_quantity(amount))
        except ValueError:
            continue
    return quantities


def name_of(resource: client.V1Job | client.V1Pod) -> str:
    """Return the name of a resource, "" without metadata."""
    return (resource.metadata.name if resource.metadata else None) or ""


def _index(pod: client.V1Pod) -> int:
    annotations = (pod.metadata.annotations if pod.metadata else None) or {}
    return int(annotations.get(_INDEX, 0))


def _waiting_states(status: client.V1PodStatus) -> Iterator[client.V1ContainerStateWaiting]:
    for container in _container_statuses(status):
        if container.state and container.state.waiting:
            yield container.state.waiting


def _container_statuses(status: client.V1PodStatus) -> Sequence[client.V1ContainerStatus]:
    return [*(status.init_container_statuses or ()), *(status.container_statuses or ())]
