"""A cluster with a pool of GPUs: one node that builds, and one with a simulated GPU that measures and serves.

The images are as they are to be in production: the driver is the node's, the CUDA libraries are where the
GPU is, nvcc is in the controller's image alone, and the flow's own process has none of it.
"""

import os
import subprocess
import sys
from pathlib import Path

import yaml
from kubernetes import client

from tests import simulated_gpu
from tests.servers.node import Node
from tests.servers.played_pod import ROOT
from tests.support.costs import KEY

GPU = "nvidia.com/gpu"
ON_GPU = (
    "LD_LIBRARY_PATH", "SIMULATED_GPU_LOG", "COLLAGE_LIB_CUDART", "COLLAGE_LIB_CUBLASLT",
    "COLLAGE_LIB_CUDNN",
)  # fmt: skip
"""By which a process finds the simulated GPU and its libraries, wheels of the real ones notwithstanding."""
ENVIRONMENT = {
    "device": "cuda", "gpuResource": GPU, "threads": 1, "cpu": 1, "memory": "1Gi",
    "nodeSelector": {"pool": "gpu"}, "parallelism": 1, "secondsPerShard": 60, "deadlineSeconds": 900,
    "controlTolerance": 100,
    "build": {"cpu": 1, "memory": "1Gi", "nodeSelector": {"pool": "build"}, "parallelism": 1},
}  # fmt: skip


class GpuCluster:
    """Two played nodes; `close` ends them and removes them from the plane."""

    def __init__(self, plane, namespace, folder: Path) -> None:
        self._plane, self._namespace, self._folder = plane, namespace, folder
        self._toolkit = simulated_gpu.build(folder / "toolkit")
        self.log = folder / "gpu.log"
        self._bare = _without_wheels(folder / "bare")
        created = simulated_gpu.environment(self._toolkit, self.log)
        self._seen = {name: created[name] for name in ON_GPU}
        images = {
            "collage/measure:1": [
                "env", "-u", "CUDA_HOME", f"PYTHONPATH={self._bare}",
                sys.executable, "-m", "containers.measure",
            ],
            "collage/controller:1": [sys.executable],
        }  # fmt: skip
        toolkit = {name: created[name] for name in ("CUDA_HOME", "CUTLASS_HOME")}
        alone = {"PYTHONPATH": str(_without_frameworks(folder / "alone"))}
        self.nodes = [
            Node(plane, "gpu-builder", folder / "builder", images=images, labels={"pool": "build"},
                 environment=toolkit),
            Node(plane, "gpu-node", folder / "node", images=images, labels={"pool": "gpu"},
                 resources={GPU: "1"}, environment=toolkit | self._seen | alone),
        ]  # fmt: skip

    def settings(self, **changes) -> dict[str, str]:
        """Settings of the flows; `changes` are of the environment `gpu`."""
        file = self._folder / "environments.yaml"
        file.write_text(yaml.safe_dump({"gpu": ENVIRONMENT | changes}))
        self._plane.kubeconfig(self._folder / "kubeconfig", namespace=self._namespace)
        cluster = {
            "NAMESPACE": self._namespace, "MEASURE_IMAGE": "collage/measure:1", "POLL_S": "0.5",
            "CONTROLLER_IMAGE": "collage/controller:1", "ENV_FROM_SECRETS": '["store"]',
            "FINISH_ENV_FROM_SECRETS": '["finish"]',
        }  # fmt: skip
        return {
            "COLLAGE_ENVIRONMENTS_FILE": str(file), "KUBECONFIG": str(self._folder / "kubeconfig"),
            "PYTHONPATH": str(self._bare), "COLLAGE_RECORD_KEY": KEY,
            **{f"COLLAGE_CLUSTER__{name}": value for name, value in cluster.items()},
        }  # fmt: skip

    def jobs(self, component: str) -> list[client.V1Job]:
        """Return the Jobs of one kind."""
        selector = f"app.kubernetes.io/component={component}"
        with self._plane.client() as api:
            return client.BatchV1Api(api).list_namespaced_job(
                self._namespace, label_selector=selector
            ).items  # fmt: skip

    def homes(self) -> dict[str, str]:
        """Return the node where pods of each kind were."""
        pods = self.nodes[0].core.list_namespaced_pod(self._namespace).items
        kind = "app.kubernetes.io/component"
        return {pod.metadata.labels[kind]: pod.spec.node_name for pod in pods}

    def on_gpu(self, *arguments: str) -> str:
        """Run a program where the simulated GPU is, as on a node that serves."""
        done = subprocess.run(
            [sys.executable, "-m", *arguments], capture_output=True, text=True, cwd=ROOT, check=False,
            env=os.environ | self._seen,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def close(self) -> None:
        for node in self.nodes:
            node.close()
            node.core.delete_node(node.name)


def _without_frameworks(folder: Path) -> Path:
    """Make a path entry with which the gate's frameworks do not start.

    A simulated GPU computes on this processor, more slowly than any of them: it proves nothing of speed.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        'if "collage.verify.benchmark_worker" in sys.orig_argv:\n'
        '    sys.modules["onnxruntime"] = sys.modules["openvino"] = None\n'
    )
    return folder


def _without_wheels(folder: Path) -> Path:
    """Make a path entry behind which Python finds no wheel of NVIDIA, nvcc's neither."""
    (folder / "nvidia").mkdir(parents=True)
    (folder / "nvidia" / "__init__.py").touch()
    return folder
