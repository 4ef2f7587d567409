"""Where the chart's pods run: on played nodes, with this checkout as their image, or on a real one.

The tests ask a place for names of images, for the address of a server of this machine as pods see it, and
for the receiver's address as MLflow sees it; all else they do is the same.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kubernetes import client

from tests.e2e import images
from tests.ports import free_port
from tests.servers.bridge import GATEWAY
from tests.servers.control_plane import ControlPlane
from tests.servers.kubelet import RealNode
from tests.servers.node import Node
from tests.support.waiting import wait_for

GPU = "nvidia.com/gpu"
MEASURING = {"pool": "measure"}
Values = Mapping[str, Any]


class Place(Protocol):
    """Requirements of the tests on the nodes."""

    repository: str
    tag: str
    environment: Values
    worker: Values
    receiver: Values
    serve_port: int

    def reach(self, address: str) -> str:
        """Return a server's address, of this machine, as pods see it."""

    def receiver_url(self, namespace: str, service: str) -> str:
        """Return the receiver's address as this machine sees it."""

    def prepare(self) -> None:
        """Be as before any test."""

    def admit(self, namespace: str) -> None:
        """Let the first measuring pod run; where it has to queue, only after it was seen to."""

    def close(self) -> None: ...


class Played:
    """Two played nodes: one for the chart's own pods, one that measures; all share one network."""

    repository, tag = "collage", "1"
    environment: Values = {"cpu": 2}

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        ports = {name: str(free_port()) for name in ("worker", "receiver", "status")}
        self.worker = {
            "extraEnv": [{"name": "PREFECT_WORKER_WEBSERVER_PORT", "value": ports["worker"]}]
        }
        self.receiver = {
            "extraEnv": [
                {"name": "COLLAGE_RECEIVER__PORT", "value": ports["receiver"]},
                {"name": "COLLAGE_RECEIVER__STATUS_PORT", "value": ports["status"]},
            ]
        }
        self.serve_port = free_port()
        self._receiver_url = f"http://127.0.0.1:{ports['receiver']}"
        entries = {
            "collage/controller:1": [sys.executable],
            "collage/measure:1": [sys.executable, "-m", "containers.measure"],
            "collage/serve-base:1": [sys.executable],
        }
        self._plane = plane
        self._nodes = [
            Node(plane, name, folder / name, images=entries, labels=labels)
            for name, labels in (("services", {}), ("measure", MEASURING))
        ]

    def reach(self, address: str) -> str:
        return address

    def receiver_url(self, namespace: str, service: str) -> str:
        return self._receiver_url

    def prepare(self) -> None:
        pass

    def admit(self, namespace: str) -> None:
        pass

    def close(self) -> None:
        with self._plane.client() as api:
            for node in self._nodes:
                node.close()
                client.CoreV1Api(api).delete_node(node.name)


class Real:
    """The real node, with the real images; its GPU is there when a pod has waited for it."""

    repository, tag = images.REPOSITORY, images.TAG
    environment: Values = {
        "cpu": 1, "device": "cpu", "gpuResource": GPU, "build": {"cpu": 1},
    }  # fmt: skip
    worker: Values = {"resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}
    receiver: Values = {}
    serve_port = 8080

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        images.build()
        self.node = RealNode(plane, labels=MEASURING)
        try:
            for target in images.TARGETS:
                archive = images.export(target, folder)
                self.node.load(archive)
                archive.unlink()
        except BaseException:
            self.node.close()
            raise
        self._reached: set[int] = set()

    def reach(self, address: str) -> str:
        for port in map(int, re.findall(r"//127\.0\.0\.1:(\d+)", address)):
            if port not in self._reached:
                self.node.bridge.forward(port)
                self._reached.add(port)
        return address.replace("//127.0.0.1:", f"//{GATEWAY}:")

    def receiver_url(self, namespace: str, service: str) -> str:
        return self.node.publish(namespace, service)

    def prepare(self) -> None:
        self.node.offer(GPU, 0)

    def admit(self, namespace: str) -> None:
        wait_for(lambda: self.waiting(namespace), 300)
        self.node.offer(GPU, 1)

    def waiting(self, namespace: str) -> list[str]:
        """Return the pods that the scheduler keeps because they need a GPU that is not free."""
        pods = self.node.core.list_namespaced_pod(namespace).items
        return [
            pod.metadata.name
            for pod in pods
            for condition in pod.status.conditions or ()
            if condition.reason == "Unschedulable" and f"Insufficient {GPU}" in condition.message
        ]

    def close(self) -> None:
        self.node.close()
