"""A real Kubernetes node for tests: kubelet, containerd and runc on this machine, beside a `ControlPlane`.

    node = RealNode(plane, labels={"pool": "measure"})    # Ready in about 4 s; raises Unavailable (then skip)
    node.load(Path("image.tar"))                          # what docker, podman or buildah wrote
    node.bridge.forward(4200)                             # pods reach 127.0.0.1:4200 at bridge.GATEWAY
    node.publish("ns", "service")                         # its cluster IP answers, without kube-proxy
    node.offer("nvidia.com/gpu", 1)                       # capacity that no device backs
    node.close()

Needs root, and COLLAGE_REAL_NODE=1, which `make e2e` sets. Everything lives in a folder of its own under
the system's temporary folder, with a short name: sockets' paths may be no longer than 107 bytes. kubelet and
containerd leave traces elsewhere, and `_Host` puts those back: sysctls, cgroups, mounts, folders that were
not there before.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import yaml
from kubernetes import client

from tests.ports import free_port
from tests.servers.binaries import KUBELET, NotAsked, Unavailable, find
from tests.servers.bridge import GATEWAY, Address, Bridge
from tests.servers.containerd import Containerd
from tests.servers.control_plane import API_SERVER_USER, NODE, SERVICE_IP, ControlPlane

__all__ = ["RealNode", "Unavailable"]

READY_S = 90.0
EMPTY_S = 60.0
SYSCTLS = (
    "kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic", "kernel/panic_on_oops",
    "vm/overcommit_memory", "vm/panic_on_oom",
)  # fmt: skip
"""Kernel settings of a kubelet."""
FOLDERS = ("/var/lib/cni", "/var/log/containers", "/var/log/pods", "/var/lib/kubelet")
"""Folders of kubelet and CNI plug-ins that no option changes."""
CGROUPS = Path("/sys/fs/cgroup")


class RealNode:
    """The one real node of a cluster; its name is `NODE`."""

    name = NODE

    def __init__(self, plane: ControlPlane, labels: Mapping[str, str] | None = None) -> None:
        check_wanted()
        if os.geteuid():
            raise Unavailable("no node: kubelet, containerd and runc need root")
        binary = find(KUBELET)
        self.plane = plane
        self._api = plane.client()
        self.core = client.CoreV1Api(self._api)
        self._undo = ExitStack()
        self._undo.callback(self._api.close)
        try:
            self.folder = self._undo.enter_context(_Host())
            self.bridge = Bridge(self.folder / "network")
            self._undo.callback(self.bridge.close)
            self.bridge.serve((SERVICE_IP, 443), lambda: ("127.0.0.1", plane.port))
            self.containerd = Containerd(self.folder / "c", self.bridge)
            self._undo.callback(self.containerd.close)
            self._start(binary, labels or {})
        except BaseException:
            self._undo.close()
            raise

    def load(self, archive: Path) -> None:
        """Let pods use the images of the archive."""
        self.containerd.load(archive)

    def publish(self, namespace: str, service: str) -> str:
        """Let the Service's cluster IP answer at its first port; returns its URL."""
        spec = self.core.read_namespaced_service(service, namespace).spec
        address = (spec.cluster_ip, spec.ports[0].port)
        self.bridge.serve(address, lambda: self._ready(namespace, service))
        return f"http://{address[0]}:{address[1]}"

    def offer(self, resource: str, count: int) -> None:
        """Let the node have an extended resource, as a device plug-in would say."""
        self.core.patch_node_status(self.name, {"status": {"capacity": {resource: str(count)}}})
        _await(
            lambda: (
                (self.core.read_node(self.name).status.allocatable or {}).get(resource)
                == str(count)
            ),
            READY_S,
            f"{resource} is not allocatable",
        )

    def log(self) -> str:
        """Return the last log lines of kubelet and containerd."""
        texts = ((self.folder / "kubelet.log").read_text(errors="replace"), self.containerd.log())
        return "\n\n".join(text[-3000:] for text in texts)

    def close(self) -> None:
        """Delete the pods, stop everything and put the machine back as it was."""
        self.core.patch_node(self.name, {"spec": {"unschedulable": True}})
        for pod in self._pods():
            self.core.delete_namespaced_pod(
                pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0
            )
        try:
            _await(lambda: not self.containerd.tasks(), EMPTY_S, "pods do not end")
        except Unavailable as error:
            print(error, self.log(), sep="\n")
        self._undo.close()

    def _pods(self) -> list[client.V1Pod]:
        mine = f"spec.nodeName={self.name}"
        return self.core.list_pod_for_all_namespaces(field_selector=mine).items

    def _ready(self, namespace: str, service: str) -> Address:
        actual = self.core.read_namespaced_endpoints(service, namespace)
        for subset in actual.subsets or ():
            for address in subset.addresses or ():
                return address.ip, subset.ports[0].port
        raise ConnectionRefusedError(f"no pod of {service} is ready")

    def _start(self, binary: Path, labels: Mapping[str, str]) -> None:
        # The API server asks the kubelet for logs under its own name.
        rights = {
            "metadata": {"name": "tests-kubelet-api"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": "system:kubelet-api-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User",
                          "name": API_SERVER_USER}],
        }  # fmt: skip
        client.RbacAuthorizationV1Api(self._api).create_cluster_role_binding(rights)
        (self.folder / "resolv.conf").write_text(
            ""
        )  # pods are given addresses, and look up nothing
        config = self.folder / "kubelet.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        user = self.folder / "kubeconfig"
        self.plane.kubeconfig(user, self.plane.tokens[f"system:node:{self.name}"])
        log = self._undo.enter_context((self.folder / "kubelet.log").open("wb"))
        self._process = subprocess.Popen(
            [
                binary, f"--config={config}", f"--kubeconfig={user}", f"--hostname-override={self.name}",
                f"--node-ip={GATEWAY}", f"--root-dir={self.folder / 'k'}",
                f"--cert-dir={self.folder / 'certificates'}",
                "--node-labels=" + ",".join(f"{key}={value}" for key, value in labels.items()),
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
        self._undo.callback(self._stop)
        _await(self._is_ready, READY_S, "the node is not Ready", self.log)

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise Unavailable(f"no node: kubelet ended at once: {self.log()}")
        try:
            node = self.core.read_node(self.name)
        except client.ApiException as error:
            if error.status != 404:
                raise
            return False
        ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())
        return ready and not node.spec.taints

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _config(self) -> dict[str, object]:
        port = free_port()
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": GATEWAY, "port": port, "healthzPort": 0, "readOnlyPort": 0,
            "authentication": {
                "anonymous": {"enabled": False}, "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.plane.folder / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.folder}/c/containerd.sock",
            "cgroupDriver": "cgroupfs", "enforceNodeAllocatable": ["pods"], "failSwapOn": False,
            "oomScoreAdj": 0, "makeIPTablesUtilChains": False, "nodeStatusUpdateFrequency": "2s",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%",
                             "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
            "podLogsDir": str(self.folder / "logs"), "resolvConf": str(self.folder / "resolv.conf"),
            "volumePluginDir": str(self.folder / "plugins"),
        }  # fmt: skip


def check_wanted() -> None:
    """Raise Unavailable unless `make e2e` runs: nodes change the machine, images take gigabytes."""
    if os.environ.get("COLLAGE_REAL_NODE") != "1":
        raise NotAsked("no real node and no images: `make e2e` has them")


class _Host:
    """Changes of a node to its machine, undone at the end; as a context, its folder."""

    def __enter__(self) -> Path:
        if next(_kubelet_cgroups(), None):
            raise Unavailable(f"no node: another kubelet runs here, {CGROUPS} has its kubepods")
        self._sysctls = {name: (Path("/proc/sys") / name).read_text() for name in SYSCTLS}
        self._folders = [folder for folder in map(Path, FOLDERS) if not folder.exists()]
        self.folder = Path(tempfile.mkdtemp(prefix="collage-node-"))
        self.folder.chmod(0o755)  # containers' users pass through it
        return self.folder

    def __exit__(self, *_: object) -> None:
        for mount in reversed(list(self._mounts())):
            subprocess.run(["umount", "--lazy", mount], check=False)
        for name, value in self._sysctls.items():
            (Path("/proc/sys") / name).write_text(value)
        for top in _kubelet_cgroups():
            for place, _, _ in os.walk(top, topdown=False):
                os.rmdir(place)
        for folder in (self.folder, *self._folders):
            shutil.rmtree(folder, ignore_errors=True)

    def _mounts(self) -> Iterator[str]:
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if (place := line.split()[1]).startswith(f"{self.folder}/"):
                yield place


def _kubelet_cgroups() -> Iterator[Path]:
    yield from (group for group in CGROUPS.glob("*/kubepods") if not group.parent.is_symlink())
    if (CGROUPS / "kubepods").is_dir():
        yield CGROUPS / "kubepods"


def _await(
    ready: Callable[[], bool], patience_s: float, subject: str, log: Callable[[], str] = str
) -> None:
    end = time.monotonic() + patience_s
    while not ready():
        if time.monotonic() > end:
            raise Unavailable(f"no node: {subject} within {patience_s:.0f} s {log()}")
        time.sleep(0.2)
