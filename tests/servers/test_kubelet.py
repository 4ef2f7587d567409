"""The real node: a pod runs, its log comes through the API server, and the machine is left as it was."""

import subprocess
from pathlib import Path

import pytest
from kubernetes import client

from tests.servers.containerd import SANDBOX
from tests.servers.fixtures import or_skip
from tests.servers.kubelet import CGROUPS, FOLDERS, SYSCTLS, RealNode
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full


def machine():
    """State of the machine that a node must restore."""
    sysctls = {name: (Path("/proc/sys") / name).read_text() for name in SYSCTLS}
    mounts = [
        line
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if "nsfs" in line or "collage-node" in line
    ]
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True).stdout.split(
        "\n"
    )
    return (
        sysctls,
        mounts,
        sorted(line.split()[0] for line in links if line),
        sorted(CGROUPS.glob("*/kubepods")),
        [Path(folder).exists() for folder in (*FOLDERS, "/run/containerd")],
    )


def test_a_pod_runs_and_nothing_stays(plane, tmp_path):
    before = machine()
    with or_skip():
        node = RealNode(plane, labels={"pool": "measure"})
    with plane.client() as api:
        core = client.CoreV1Api(api)
        try:
            assert core.read_node(node.name).metadata.labels["pool"] == "measure"
            core.create_namespaced_pod(
                "default",
                {
                    "metadata": {"name": "one"},
                    "spec": {
                        "containers": [{"name": "main", "image": SANDBOX}],
                        "restartPolicy": "Never",
                    },
                },
            )
            wait_for(
                lambda: core.read_namespaced_pod("one", "default").status.phase == "Running", 60
            )
            assert core.read_namespaced_pod("one", "default").status.pod_ip.startswith("10.98.0.")
            core.read_namespaced_pod_log("one", "default")
        except BaseException:
            print(node.log())
            raise
        finally:
            node.close()
    assert machine() == before
