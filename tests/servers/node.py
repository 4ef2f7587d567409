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
import datetime
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

from kubernetes import client, watch

from tests.servers.control_plane import ControlPlane
from tests.servers.pod_parts import ConfigError, Parts

ROOT = Path(__file__).resolve().parents[2]
HEARTBEAT_S = 10.0
POLL_S = 0.05
T = TypeVar("T")


class Node:
    """A Node object and what runs on it; `folder` holds logs and volumes."""

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
        self._pods: dict[str, _Pod] = {}
        self._lock = threading.Lock()
        self._logs = _LogServer(self)
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
                one.name for one in self._pods.values() if one.namespace == namespace and one.alive
            )

    def log(self, namespace: str, pod: str, container: str) -> str:
        """Return what the container has written; "" where there is nothing."""
        file = self.folder / f"{namespace}_{pod}" / f"{container}.log"
        return file.read_text(errors="replace") if file.is_file() else ""

    def kill(self, namespace: str, pod: str) -> None:
        """kill -9 all processes of the pod."""
        self.signal(namespace, pod, signal.SIGKILL)

    def signal(self, namespace: str, pod: str, number: int) -> None:
        """Send a signal, e.g. SIGSTOP, to all processes of the pod, if it is here."""
        with self._lock:
            for one in self._pods.values():
                if (one.namespace, one.name) == (namespace, pod):
                    one.signal(number)

    def close(self) -> None:
        """Kill what runs and end; the Node object stays."""
        self.closing.set()
        with self._lock:
            pods = list(self._pods.values())
        for one in pods:
            one.signal(signal.SIGKILL)
            one.thread.join(5)
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
            except Exception:
                pass  # the API server is away: a kubelet waits too
            time.sleep(0.2)
        return None

    def _register(
        self,
        resources: Mapping[str, str],
        labels: Mapping[str, str],
        taints: Sequence[Mapping[str, str]],
    ) -> None:
        host = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        body = {
            "metadata": {"name": self.name, "labels": host | dict(labels)},
            "spec": {"taints": list(taints)},
        }
        self.core.create_node(body)
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": now(),
            "lastTransitionTime": now(),
        }
        status = {
            "capacity": dict(resources),
            "allocatable": dict(resources),
            "conditions": [condition],
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
        """Renew the node's lease: without it the controllers take the node for dead after 50 s."""
        leases, space = client.CoordinationV1Api(self.api), "kube-node-lease"
        while not self.closing.is_set():
            spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40}
            spec["renewTime"] = now(micro=True)
            body = {"metadata": {"name": self.name, "namespace": space}, "spec": spec}
            try:
                leases.patch_namespaced_lease(self.name, space, body)
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
                    self._see(event["object"], gone=event["type"] == "DELETED")
                continue
            time.sleep(0.2)

    def _see(self, pod: client.V1Pod, gone: bool = False) -> None:
        with self._lock:
            known = self._pods.get(pod.metadata.uid)
            if known is None and not gone:
                known = self._pods[pod.metadata.uid] = _Pod(self, pod)
                known.thread.start()
        if known is None:
            return
        if pod.metadata.deletion_timestamp:
            known.grace_s = float(pod.metadata.deletion_grace_period_seconds or 0)
            known.deleted.set()
        if gone:
            known.gone.set()


class _Pod:
    """One pod's life, in a thread of its own."""

    def __init__(self, node: Node, pod: client.V1Pod) -> None:
        self.node, self.pod = node, pod
        self.name, self.namespace = pod.metadata.name, pod.metadata.namespace
        self.folder = node.folder / f"{self.namespace}_{self.name}"
        self.deleted, self.gone = threading.Event(), threading.Event()
        self.grace_s = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._states: dict[str, dict] = {}
        self._restarts: dict[str, int] = {}
        self._started = now()

    @property
    def alive(self) -> bool:
        return bool(self._running)

    def signal(self, number: int) -> None:
        for process in list(self._running.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    @property
    def _stopped(self) -> bool:
        return self.deleted.is_set() or self.gone.is_set() or self.node.closing.is_set()

    def _run(self) -> None:
        if self.pod.status.phase in ("Succeeded", "Failed"):
            phase = self.pod.status.phase
        else:
            phase = self._live()
            self._report(phase)
        while not (self.deleted.is_set() or self.gone.is_set() or self.node.closing.is_set()):
            time.sleep(POLL_S)
        if self.deleted.is_set() and not self.node.closing.is_set():
            self.node.persist(self._delete)
        shutil.rmtree(self.folder / "volumes", ignore_errors=True)

    def _delete(self) -> None:
        conditions = client.V1Preconditions(uid=self.pod.metadata.uid)
        options = client.V1DeleteOptions(grace_period_seconds=0, preconditions=conditions)
        self.node.core.delete_namespaced_pod(self.name, self.namespace, body=options)

    def _live(self) -> str:
        """Run all containers; returns the phase that the pod ends in."""
        spec = self.pod.spec
        for one in spec.init_containers or ():
            if self._run_all([one], "Pending", restart="OnFailure") != "Succeeded":
                return "Failed"
        return self._run_all(spec.containers, "Running", restart=spec.restart_policy)

    def _run_all(self, containers: Sequence[client.V1Container], phase: str, restart: str) -> str:
        for container in containers:
            if not self._start(container):
                return "Failed"
        self._report(phase)
        while self._running:
            if self._stopped:
                self._end()
            for container in containers:
                self._reap(container, "Never" if self._stopped else restart, phase)
            time.sleep(POLL_S)
        codes = [self._states[one.name]["terminated"]["exitCode"] for one in containers]
        return "Succeeded" if not any(codes) else "Failed"

    def _start(self, container: client.V1Container) -> bool:
        """Start the container as soon as its image and its references are there; False if stopped."""
        waiting = 0
        while not self._stopped:
            reason = self._try_start(container, waiting)
            if reason is None:
                return True
            self._states[container.name] = {"waiting": reason}
            self._report("Pending")
            waiting += 1
            self.deleted.wait(1.0)
        self._states[container.name] = _terminated(137, now())
        return False

    def _try_start(self, container: client.V1Container, waiting: int) -> dict[str, str] | None:
        entry = self.node.images.get(container.image)
        if entry is None:
            what = f'failed to pull image "{container.image}": not found'
            if container.image_pull_policy == "Never":
                return {"reason": "ErrImageNeverPull", "message": what}
            return {"reason": "ImagePullBackOff" if waiting else "ErrImagePull", "message": what}
        try:
            parts = Parts(self.node.core, self.pod, self.folder, self.node.plane)
            command, environment = parts.of(container, entry)
        except ConfigError as error:
            return {"reason": "CreateContainerConfigError", "message": str(error)}
        base = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
        }
        with (self.folder / f"{container.name}.log").open("ab") as log:
            self._running[container.name] = subprocess.Popen(
                command, cwd=ROOT, env=base | self.node.environment | environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._states[container.name] = {"running": {"startedAt": now()}}
        return None

    def _reap(self, container: client.V1Container, restart: str, phase: str) -> None:
        process = self._running.get(container.name)
        if process is None or process.poll() is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind goes with its container
        del self._running[container.name]
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        started = self._states[container.name]["running"]["startedAt"]
        self._states[container.name] = _terminated(code, started)
        if restart == "Always" or (restart == "OnFailure" and code):
            self._restarts[container.name] = self._restarts.get(container.name, 0) + 1
            self._report(phase)
            self.deleted.wait(1.0)
            self._start(container)
            self._report(phase)

    def _end(self) -> None:
        self.signal(signal.SIGTERM)
        end = time.monotonic() + (
            0 if self.gone.is_set() or self.node.closing.is_set() else self.grace_s
        )
        while time.monotonic() < end and any(p.poll() is None for p in self._running.values()):
            time.sleep(POLL_S)
        self.signal(signal.SIGKILL)
        for process in self._running.values():
            process.wait()

    def _report(self, phase: str) -> None:
        spec = self.pod.spec
        ready = "True" if phase == "Running" else "False"
        status = {
            "phase": phase,
            "hostIP": "127.0.0.1",
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "startTime": self._started,
            "conditions": [
                {"type": kind, "status": "True" if kind == "Initialized" else ready,
                 "lastTransitionTime": now()}
                for kind in ("Initialized", "Ready", "ContainersReady")
            ],
            "containerStatuses": [self._status(one) for one in spec.containers],
        }  # fmt: skip
        if spec.init_containers:
            status["initContainerStatuses"] = [self._status(one) for one in spec.init_containers]
        self.node.persist(
            lambda: self.node.core.patch_namespaced_pod_status(
                self.name,
                self.namespace,
                {"metadata": {"uid": self.pod.metadata.uid}, "status": status},
            )
        )

    def _status(self, container: client.V1Container) -> dict:
        state = self._states.get(container.name, {"waiting": {"reason": "PodInitializing"}})
        return {
            "name": container.name,
            "image": container.image,
            "imageID": container.image,
            "state": state,
            "ready": "running" in state,
            "started": "running" in state,
            "restartCount": self._restarts.get(container.name, 0),
        }


class _LogServer(ThreadingHTTPServer):
    """What the API server asks for a pod's log."""

    daemon_threads = True

    def __init__(self, node: Node) -> None:
        super().__init__(("127.0.0.1", 0), _LogHandler)
        self.node = node
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        folder = node.plane.folder
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )

    def handle_error(self, request, client_address) -> None:
        """A client that goes away is no news."""


class _LogHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        parts = asked.path.strip("/").split("/")
        found = parts[0] == "containerLogs" and len(parts) == 4
        text = self.server.node.log(*parts[1:]) if found else ""  # type: ignore[attr-defined]
        tail = parse_qs(asked.query).get("tailLines")
        if tail:
            text = "".join(text.splitlines(keepends=True)[-int(tail[0]) :])
        data = text.encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_) -> None:
        pass


def now(micro: bool = False) -> str:
    """Return this moment as Kubernetes writes it."""
    text = datetime.datetime.now(datetime.UTC).isoformat(
        timespec="microseconds" if micro else "seconds"
    )
    return text.replace("+00:00", "Z")


def _terminated(code: int, started: str) -> dict[str, dict]:
    reason = "Completed" if code == 0 else "OOMKilled" if code == 137 else "Error"
    return {
        "terminated": {
            "exitCode": code,
            "reason": reason,
            "startedAt": started,
            "finishedAt": now(),
        }
    }
