"""Fake nodes whose pods end at once: thousands of pods that cost no process (kwok).

fleet = Fleet(plane, folder, count=200, labels={"pool": "fake"})
fleet.close()
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from kubernetes import client

from tests.servers.binaries import find
from tests.servers.control_plane import ControlPlane

MINE = "kwok.x-k8s.io/node"


class Fleet:
    """kwok with `count` nodes; raises Unavailable where it cannot be built."""

    def __init__(
        self, plane: ControlPlane, folder: Path, count: int, labels: Mapping[str, str]
    ) -> None:
        binary = find("kwok")
        folder.mkdir(parents=True, exist_ok=True)
        self._api = plane.client()
        self._core = client.CoreV1Api(self._api)
        self._names = [f"fake-{number}" for number in range(count)]
        for name in self._names:
            self._core.create_node(_node(name, labels))
        with (folder / "kwok.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    binary, "--kubeconfig", plane.kubeconfig(folder / "kubeconfig"),
                    "--manage-all-nodes=false", f"--manage-nodes-with-annotation-selector={MINE}=fake",
                    "--node-lease-duration-seconds=40",
                ],
                stdout=log, stderr=log, env={"HOME": str(folder)},
            )  # fmt: skip

    def close(self) -> None:
        """End kwok and delete the nodes."""
        self._process.terminate()
        self._process.wait(10)
        for name in self._names:
            self._core.delete_node(name)
        self._api.close()


def _node(name: str, labels: Mapping[str, str]) -> dict:
    resources = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels}
    return {
        "metadata": {"name": name, "labels": own, "annotations": {MINE: "fake"}},
        "status": {"capacity": resources, "allocatable": resources},
    }
