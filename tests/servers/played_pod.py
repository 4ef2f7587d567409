"""One pod of a played node: its containers as local processes, and its status as a kubelet reports it."""

import contextlib
import datetime
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kubernetes import client

from tests.servers.pod_parts import ConfigError, Parts

if TYPE_CHECKING:
    from tests.servers.node import Node

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.05


class PlayedPod:
    """One pod's life, in a thread of its own."""

    def __init__(self, node: "Node", pod: client.V1Pod) -> None:
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
        for init_container in spec.init_containers or ():
            if self._run_all([init_container], "Pending", restart="OnFailure") != "Succeeded":
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
        codes = [self._states[started.name]["terminated"]["exitCode"] for started in containers]
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
            subject = f'failed to pull image "{container.image}": not found'
            if container.image_pull_policy == "Never":
                return {"reason": "ErrImageNeverPull", "message": subject}
            return {"reason": "ImagePullBackOff" if waiting else "ErrImagePull", "message": subject}
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
            try:
                self._running[container.name] = subprocess.Popen(
                    command, cwd=ROOT, env=base | self.node.environment | environment,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                return {"reason": "CreateContainerError", "message": str(error)}
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
        elif self._running:
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
        states = [self._states.get(container.name, {}) for container in spec.containers]
        working = all("running" in state for state in states)
        ready = "True" if phase == "Running" and working else "False"
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
            "containerStatuses": [self._status(container) for container in spec.containers],
        }  # fmt: skip
        if spec.init_containers:
            status["initContainerStatuses"] = [self._status(init) for init in spec.init_containers]
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
