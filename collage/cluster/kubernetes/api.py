"""The calls of the Kubernetes API that a controller needs, with plain data as results.

Every call is repeated, with growing pauses, while the API server is unreachable or overloaded: a Job needs
no controller, so waiting costs nothing. A permanent error (403, 422) is raised at once. Required rights:
create, get, list and delete on Jobs, list on pods and events, get on the logs of pods.
"""

import json
import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import urllib3
from kubernetes import client, config

from collage.cluster.kubernetes.manifests import COMPONENT_LABEL, CONTAINER
from collage.cluster.kubernetes.pod_reports import (
    MainEnd,
    PodFailure,
    PodProblem,
    ended_container,
    failure,
    main_end,
    name_of,
    pod_failure,
    pod_problem,
)
from collage.cluster.kubernetes.pod_usage import PodUsage, pod_usage
from collage.errors import ClusterError
from collage.logs import redact

log = logging.getLogger(__name__)

API_RETRY_S = 600.0
LONGEST_PAUSE_S = 20.0
CALL_TIMEOUT_S = 30.0
MAX_LISTED_PODS = 50
"""Pods of one Job that are listed at most: their problems are alike."""

MAX_RUNNING_PODS = 500
"""Running pods of one Job that are listed at most."""

POD_PAGE = 500

PASSING = frozenset({408, 409, 429, 500, 502, 503, 504})
T = TypeVar("T")

_MISSING_RIGHT = re.compile(r'User ".*" cannot ')
_UNANSWERED = (client.ApiException, urllib3.exceptions.HTTPError, OSError)
"""Errors of questions whose answers explain an error, and must not hide it."""


@dataclass(frozen=True)
class JobView:
    """The state of a Job; `reason` and `message` come from its Failed condition, `kind` from its label."""

    name: str
    notes: Mapping[str, str]
    uid: str = ""
    kind: str = ""
    complete: bool = False
    failed: bool = False
    reason: str = ""
    message: str = ""
    suspended: bool = False
    started: bool = False
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    terminating: int = 0
    failed_indices: str = ""
    completions: int = 1

    @property
    def ended(self) -> bool:
        return self.complete or self.failed


@dataclass
class Jobs:
    """The Jobs of one namespace.

    Attributes:
        calls: number of sent requests.
    """

    namespace: str
    api: client.ApiClient
    patience_s: float = API_RETRY_S
    calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._batch = client.BatchV1Api(self.api)
        self._core = client.CoreV1Api(self.api)

    def create(self, manifest: client.V1Job) -> bool:
        """Create the Job; return False if its name exists. Raises ClusterError."""

        def send() -> bool:
            try:
                self._batch.create_namespaced_job(
                    self.namespace, manifest, field_validation="Strict",
                    _request_timeout=CALL_TIMEOUT_S,
                )  # fmt: skip
            except client.ApiException as error:
                if error.status == 409:
                    return False
                raise
            return True

        return self._call(f"create the Job {name_of(manifest)}", send)

    def read(self, name: str) -> JobView | None:
        """Return the Job, or None if it does not exist. Raises ClusterError."""

        def ask() -> JobView | None:
            try:
                job = self._batch.read_namespaced_job(
                    name, self.namespace, _request_timeout=CALL_TIMEOUT_S
                )
            except client.ApiException as error:
                if error.status == 404:
                    return None
                raise
            return _view(job)

        return self._call(f"read the Job {name}", ask)

    def find(self, labels: Mapping[str, str]) -> list[JobView]:
        """Return the Jobs with all these labels, by name. Raises ClusterError."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())

        def ask() -> list[JobView]:
            response = self._batch.list_namespaced_job(
                self.namespace, label_selector=selector, _request_timeout=CALL_TIMEOUT_S
            )
            return sorted(map(_view, response.items), key=lambda job: job.name)

        return self._call("list Jobs", ask)

    def delete(self, name: str) -> None:
        """Delete the Job and its pods, if it exists. Raises ClusterError."""

        def send() -> None:
            try:
                self._batch.delete_namespaced_job(
                    name, self.namespace, propagation_policy="Background",
                    _request_timeout=CALL_TIMEOUT_S,
                )  # fmt: skip
            except client.ApiException as error:
                if error.status != 404:
                    raise

        self._call(f"delete the Job {name}", send)

    def pod_problems(self, name: str) -> list[PodProblem]:
        """Return the problems of pods of the Job that do not start. Raises ClusterError."""
        pods = self._call("list pods", lambda: self._pods(name, "Pending"))
        return [problem for problem in map(pod_problem, pods) if problem]

    def pod_usage(self, name: str) -> list[PodUsage]:
        """Return the usage of all pods of the Job that Kubernetes still has. Raises ClusterError."""
        now, token, usages = datetime.now(UTC), "", []
        while True:
            response = self._call("list pods", partial(self._page, name, token))
            usages += [usage for pod in response.items if (usage := pod_usage(pod, now))]
            token = (response.metadata and response.metadata._continue) or ""
            if not token:
                return usages

    def main_ends(self, name: str) -> list[MainEnd]:
        """Return the ends of measuring containers in running pods of the Job. Raises ClusterError."""
        pods = self._call("list pods", lambda: self._pods(name, "Running", MAX_RUNNING_PODS))
        return [end for end in map(main_end, pods) if end]

    def failures(self, name: str) -> list[PodFailure]:
        """Return why pods of the Job failed. Raises ClusterError."""
        pods = self._call("list pods", lambda: self._pods(name, "Failed"))
        return [pod_failure(pod) for pod in pods]

    def warnings(self, kind: str, name: str) -> list[str]:
        """Return the messages of the warnings about an object of Kubernetes, the newest last.

        An account without the right to list events gets none: an upgrade of the chart gives it.

        Args:
            kind: "Job" or "Pod".
            name: name of the object.

        Raises:
            ClusterError: the API does not answer.
        """
        selector = f"involvedObject.kind={kind},involvedObject.name={name},type=Warning"

        def ask() -> list[str]:
            try:
                response = self._core.list_namespaced_event(
                    self.namespace, field_selector=selector, limit=MAX_LISTED_PODS,
                    _request_timeout=CALL_TIMEOUT_S,
                )  # fmt: skip
            except client.ApiException as error:
                if error.status == 403:
                    log.info("events cannot be listed: %s", redact(str(error.reason)))
                    return []
                raise
            events = sorted(response.items, key=_last_seen)
            return [redact(f"{event.reason}: {event.message}") for event in events]

        return self._call("list events", ask)

    def log_tails(self, name: str, pods: int, lines: int) -> list[str]:
        """Return why pods of the Job failed, with their last log lines, as far as available; all redacted."""
        try:
            failed = self._pods(name, "Failed")[-pods:]
        except _UNANSWERED as error:
            log.info("the pods of %s are not available: %s", name, redact(str(error)))
            return []
        endings = []
        for pod in failed:
            reason = failure(pod)
            tail = self.log_tail(name_of(pod), lines, ended_container(pod))
            heading = f"the pod {name_of(pod)}: {reason}" if reason else ""
            endings.append("\n".join(text for text in (heading, tail) if text))
        return [ending for ending in endings if ending]

    def log_tail(self, pod: str, lines: int, container: str = CONTAINER) -> str:
        """Return the last log lines of a pod, redacted; "" for a pod without logs, e.g. a rejected one."""
        try:
            text = self._core.read_namespaced_pod_log(
                pod, self.namespace, container=container, tail_lines=lines,
                _request_timeout=CALL_TIMEOUT_S,
            )  # fmt: skip
        except _UNANSWERED as error:
            log.info("the log of the pod %s is not available: %s", pod, redact(str(error)))
            return ""
        return redact(text.strip())

    def _pods(self, job: str, phase: str, limit: int = MAX_LISTED_PODS) -> Sequence[client.V1Pod]:
        """Return pods of the Job in a phase, without those that are being deleted."""
        response = self._core.list_namespaced_pod(
            self.namespace, label_selector=f"batch.kubernetes.io/job-name={job}",
            field_selector=f"status.phase={phase}", limit=limit, _request_timeout=CALL_TIMEOUT_S,
        )  # fmt: skip
        items: Sequence[client.V1Pod] = response.items
        return [pod for pod in items if not (pod.metadata and pod.metadata.deletion_timestamp)]

    def _page(self, job: str, token: str) -> client.V1PodList:
        return self._core.list_namespaced_pod(
            self.namespace, label_selector=f"batch.kubernetes.io/job-name={job}", limit=POD_PAGE,
            _continue=token or None, _request_timeout=CALL_TIMEOUT_S,
        )  # fmt: skip

    def _call(self, action: str, act: Callable[[], T]) -> T:
        end = time.monotonic() + self.patience_s
        pause_s = 0.2
        while True:
            self.calls += 1
            try:
                return act()
            except client.ApiException as error:
                if error.status not in PASSING or time.monotonic() > end:
                    raise ClusterError(self._refused(action, error)) from error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if time.monotonic() > end:
                    raise ClusterError(
                        f"cannot {action} in the namespace {self.namespace}: the Kubernetes API does "
                        f"not answer: {redact(str(error))}; what was measured is in the store: run again"
                    ) from error
            time.sleep(pause_s * random.uniform(0.7, 1.3))
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _refused(self, action: str, error: client.ApiException) -> str:
        try:
            message = json.loads(error.body or "")["message"]
        except (ValueError, KeyError, TypeError):
            message = error.reason or ""
        message, place = redact(str(message)), f"cannot {action} in the namespace {self.namespace}"
        if "exceeded quota" in message:
            advice = "wait until other Jobs have ended, or ask for more quota"
            return f"{place}: {message}; {advice}"
        if error.status == 401:
            advice = "; the token of this process is not valid (any more)"
        elif error.status == 403 and _MISSING_RIGHT.search(message):
            advice = (
                "; give its service account the Role of the chart (jobs create, get, list, delete; "
                "pods and events list; pods/log get)"
            )
        elif error.status == 403:
            advice = "; a rule of the cluster refuses it: no right is missing"
        else:
            advice = ""
        return f"{place}: Kubernetes answers {error.status}: {message}{advice}"


def connect(namespace: str) -> Jobs:
    """Open the Jobs of a namespace of `open_client`'s cluster. Raises ClusterError without a cluster."""
    return Jobs(namespace, open_client())


def open_client() -> client.ApiClient:
    """Open the cluster that this process runs in, else that of the user's kubeconfig.

    Raises:
        ClusterError: neither exists.
    """
    settings = client.Configuration()
    try:
        try:
            config.load_incluster_config(client_configuration=settings)
            # A proxy of the environment is for addresses outside of the cluster.
            settings.proxy = None
        except config.ConfigException:
            config.load_kube_config(client_configuration=settings)
    except config.ConfigException as error:
        raise ClusterError(
            f"no Kubernetes cluster: {error}; run in a pod with a service account, or set KUBECONFIG"
        ) from error
    settings.retries = False  # `Jobs` repeats calls
    return client.ApiClient(settings)


def _view(job: client.V1Job) -> JobView:
    """Convert a Job; no interim condition counts, only Complete and Failed end a Job."""
    status = job.status or client.V1JobStatus()
    conditions = {
        condition.type: condition
        for condition in status.conditions or ()
        if condition.status == "True"
    }
    failed = conditions.get("Failed")
    return JobView(
        name=name_of(job),
        notes=(job.metadata and job.metadata.annotations) or {},
        uid=(job.metadata and job.metadata.uid) or "",
        kind=((job.metadata and job.metadata.labels) or {}).get(COMPONENT_LABEL, ""),
        complete="Complete" in conditions,
        failed=failed is not None,
        reason=(failed.reason or "") if failed else "",
        message=(failed.message or "") if failed else "",
        suspended="Suspended" in conditions or bool(job.spec and job.spec.suspend),
        started=status.start_time is not None,
        active=status.active or 0,
        ready=status.ready or 0,
        succeeded=status.succeeded or 0,
        terminating=status.terminating or 0,
        failed_indices=status.failed_indexes or "",
        completions=(job.spec and job.spec.completions) or 1,
    )


def _last_seen(event: client.CoreV1Event) -> datetime:
    return (
        event.last_timestamp
        or event.event_time
        or event.first_timestamp
        or datetime.min.replace(tzinfo=UTC)
    )
