"""Plays a Kubernetes node: pods bound to its Node object run as local processes; the rest is real.

    entry = [sys.executable, "-m", "containers.measure"]
    node = Node(plane, "node-1", folder, images={"collage/measure:1": entry},
                resources={"nvidia.com/gpu": "1"}, labels={"pool": "gpu"})
    node.kill("ns", pod)                          # kill -9 of its processes, as the OOM killer does
    node.close()

`images` names what can be pulled, with the entry point; any other image waits in ImagePullBackOff. A
container runs in the repository's root with the project's interpreter first on PATH, its env (also from
Secrets, ConfigMaps and fields) and nothing of the test's environment. A volume is a folder: its mount
path is replaced in env, command and args. A pod that may have a token gets a KUBECONFIG with it. Deleted
pods get SIGTERM, then SIGKILL after their grace. Logs are served to the API server as a kubelet does.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from kubernetes import client, watch

from tests.servers.control_plane import ControlPlane
from tests.servers.node_logs import LogServer
from tests.servers.played_pod import PlayedPod, now

HEARTBEAT_S = 10.0
T = TypeVar("T")


class Node:
    """A Node object and its running pods; `folder` holds logs and volumes."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        folder: Path,
        *,
        images: Mapping[str, Sequence[str]],
        resources: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.plane, self.name, self.folder, self.images = plane, name, folder, images
        self.environment = dict(environment or {})
        self.api = plane.client()
        self.core = client.CoreV1Api(self.api)
        self.closing = threading.Event()
        self._pods: dict[str, PlayedPod] = {}
        self._lock = threading.Lock()
        self._logs = LogServer(self)
        self._register({"cpu": "8", "memory": "32Gi", "pods": "110"} | dict(resources or {}),
                       labels or {}, taints)  # fmt: skip
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._beat, self._follow, self._logs.serve_forever)
        ]
        for thread in self._threads:
            thread.start()

    def running(self, namespace: str) -> list[str]:
        """Return the names of the namespace's pods whose processes run."""
        with self._lock:
            return sorted(
                pod.name for pod in self._pods.values() if pod.namespace == namespace and pod.alive
            )

    def log(self, namespace: str, pod: str, container: str) -> str:
        """Return the container's output; "" where there is none."""
        file = self.folder / f"{namespace}_{pod}" / f"{container}.log"
        return file.read_text(errors="replace") if file.is_file() else ""

    def kill(self, namespace: str, pod: str) -> None:
        """kill -9 all processes of the pod."""
        self.signal(namespace, pod, signal.SIGKILL)

    def signal(self, namespace: str, pod: str, number: int) -> None:
        """Send a signal, e.g. SIGSTOP, to all processes of the pod, if it is here."""
        with self._lock:
            for played in self._pods.values():
                if (played.namespace, played.name) == (namespace, pod):
                    played.signal(number)

    def close(self) -> None:
        """Kill all pods and end; the Node object stays."""
        self.closing.set()
        with self._lock:
            pods = list(self._pods.values())
        for pod in pods:
            pod.signal(signal.SIGKILL)
            pod.thread.join(5)
        self._logs.shutdown()
        self._logs.server_close()
        for thread in self._threads:
            thread.join(5)
        self.api.close()

    def persist(self, act: Callable[[], T]) -> T | None:
        """Call until it works, while the node lives; None where the object is gone."""
        while not self.closing.is_set():
            try:
                return act()
            except client.ApiException as error:
                if error.status in (404, 409, 422):
                    return None
            except Exception:  # noqa: S110
                pass  # the API server is away: a kubelet waits too
            time.sleep(0.2)
        return None

    def _register(
        self,
        resources: Mapping[str, str],
        labels: Mapping[str, str],
        taints: Sequence[Mapping[str, str]],
    ) -> None:
        host = {
            "kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }  # fmt: skip
        body = {
            "metadata": {"name": self.name, "labels": host | dict(labels)},
            "spec": {"taints": list(taints)},
        }
        self.core.create_node(body)
        status = {
            "capacity": dict(resources),
            "allocatable": dict(resources),
            "conditions": [_ready()],
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": self.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.server_port}},
            "nodeInfo": {"kubeletVersion": "v1.34.4", "architecture": "amd64", "bootID": "",
                         "containerRuntimeVersion": "processes://1", "kernelVersion": "",
                         "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux",
                         "osImage": "", "systemUUID": ""},
        }  # fmt: skip
        self.core.patch_node_status(self.name, {"status": status})
        # A new node is tainted as not ready until the controllers have seen it.
        while any(
            taint.key.startswith("node.kubernetes.io/")
            for taint in self.core.read_node(self.name).spec.taints or ()
        ):
            time.sleep(0.05)

    def _beat(self) -> None:
        """Renew the node's lease: without it the controllers take the node for dead after 50 s.

        Where this process was stopped for longer than that, the node is ready again as a kubelet says it.
        """
        leases, space = client.CoordinationV1Api(self.api), "kube-node-lease"
        while not self.closing.is_set():
            spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40}
            spec["renewTime"] = now(micro=True)
            body = {"metadata": {"name": self.name, "namespace": space}, "spec": spec}
            try:
                leases.patch_namespaced_lease(self.name, space, body)
                self.core.patch_node_status(self.name, {"status": {"conditions": [_ready()]}})
            except client.ApiException as error:
                if error.status == 404:
                    with contextlib.suppress(client.ApiException):  # the namespace comes later
                        leases.create_namespaced_lease(space, body)
            except Exception:
                self.closing.wait(0.5)  # the API server is away
                continue
            self.closing.wait(HEARTBEAT_S)

    def _follow(self) -> None:
        selector = f"spec.nodeName={self.name}"
        while not self.closing.is_set():
            with contextlib.suppress(Exception):  # the API server is away: list again
                listed = self.core.list_pod_for_all_namespaces(field_selector=selector)
                present = {pod.metadata.uid for pod in listed.items}
                for uid in self._pods.keys() - present:
                    self._pods[uid].gone.set()
                for pod in listed.items:
                    self._see(pod)
                stream = watch.Watch().stream(
                    self.core.list_pod_for_all_namespaces,
                    field_selector=selector,
                    resource_version=listed.metadata.resource_version,
                    timeout_seconds=2,
                )
                for event in stream:
                    self._see(event["object"], deleted=event["type"] == "DELETED")
                continue
            time.sleep(0.2)

    def _see(self, pod: client.V1Pod, deleted: bool = False) -> None:
        with self._lock:
            before = self._pods.get(pod.metadata.uid)
            if before is None and not deleted:
                before = self._pods[pod.metadata.uid] = PlayedPod(self, pod)
                before.thread.start()
        if before is None:
            return
        if pod.metadata.deletion_timestamp:
            before.grace_s = float(pod.metadata.deletion_grace_period_seconds or 0)
            before.deleted.set()
        if deleted:
            before.gone.set()


def _ready() -> dict[str, str]:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "lastHeartbeatTime": now(),
        "lastTransitionTime": now(),
    }
