"""A real Kubernetes 1.34 control plane for tests: etcd, API server, controllers, scheduler; no root.

    plane = ControlPlane(folder)                  # ready in about 5 s; raises Unavailable (then skip)
    core = kubernetes.client.CoreV1Api(plane.client())        # as cluster admin
    mine = plane.client(plane.account_token("ns", "account")) # as a ServiceAccount: RBAC holds
    plane.kubeconfig(file)                        # for Helm and other programs
    plane.close()

Pods run where `tests/servers/node.py` plays a node, or on the real one of `tests/servers/kubelet.py`.
Everything is stopped by the pids recorded here.
"""

import os
import secrets
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import yaml
from kubernetes import client

from tests.ports import free_ports
from tests.servers.binaries import CONTROL_PLANE, Unavailable, find
from tests.servers.certificates import write_certificates

SERVICES = "10.99.0.0/24"
SERVICE_IP = "10.99.0.1"
ISSUER = "https://kubernetes.default.svc"
START_TIMEOUT_S = 60.0
NODE = "kubelet"
"""Name of the real node (`tests/servers/kubelet.py`)."""
API_SERVER_USER = "kube-apiserver"
"""Common name of the certificate that the API server shows to a kubelet."""
USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    f"system:node:{NODE}": "system:nodes",
}


class ControlPlane:
    """The four servers on free ports of this machine, with their data in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.binaries = {name: find(name) for name in ("etcd", *CONTROL_PLANE)}
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        write_certificates(folder, API_SERVER_USER, SERVICE_IP)
        self.port, self._etcd_port, self._peer_port = free_ports(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self.tokens = {user: secrets.token_hex(16) for user in USERS}
        lines = [f'{self.tokens[user]},{user},{user},"{USERS[user]}"' for user in USERS]
        (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._admin = client.ApiClient(self.configuration())
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise

    def configuration(self, token: str | None = None) -> client.Configuration:
        """Return a client's configuration, for the cluster admin or whose token it is."""
        actual = client.Configuration(host=self.url)
        actual.ssl_ca_cert = str(self.folder / "ca.crt")
        actual.api_key = {"authorization": f"Bearer {token or self.tokens['admin']}"}
        return actual

    def client(self, token: str | None = None) -> client.ApiClient:
        """Return a client, for the cluster admin or whose token it is."""
        return client.ApiClient(self.configuration(token))

    def kubeconfig(self, file: Path, token: str | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig for the cluster admin, or whose token it is."""
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {
                        "server": self.url,
                        "certificate-authority": str(self.folder / "ca.crt"),
                    },
                }
            ],
            "users": [{"name": "user", "user": {"token": token or self.tokens["admin"]}}],
            "contexts": [
                {
                    "name": "tests",
                    "context": {"cluster": "tests", "user": "user", "namespace": namespace},
                }
            ],
        }
        file.write_text(yaml.safe_dump(text))
        return file

    def account_token(self, namespace: str, account: str) -> str:
        """Return a token of the ServiceAccount."""
        created = client.CoreV1Api(self._admin).create_namespaced_service_account_token(
            account,
            namespace,
            client.AuthenticationV1TokenRequest(
                spec=client.V1TokenRequestSpec(audiences=[ISSUER], expiration_seconds=3600)
            ),
        )
        return created.status.token

    def make_namespace(self, name: str, labels: dict[str, str] | None = None) -> str:
        """Create a namespace; returns its name when the controllers have filled it."""
        core = client.CoreV1Api(self._admin)
        core.create_namespace({"metadata": {"name": name, "labels": labels or {}}})
        self._await(lambda: core.read_namespaced_service_account("default", name), "controllers")
        self._await(
            lambda: core.read_namespaced_config_map("kube-root-ca.crt", name), "controllers"
        )
        return name

    def kill(self, name: str) -> None:
        """kill -9 one of the servers, e.g. "kube-apiserver"."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def start(self, name: str) -> None:
        """Start one of the servers that was killed; the API answers when this returns."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self.binaries[name], *self._flags()[name]],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder)},
            )
        if name == "kube-apiserver":
            self._await(self._ready, name)

    def close(self) -> None:
        """Stop the servers, etcd last."""
        for name in reversed(list(self._processes)):
            process = self._processes.pop(name)
            process.send_signal(signal.SIGTERM if name == "etcd" else signal.SIGKILL)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._admin.close()

    def _start_all(self) -> None:
        for name in ("etcd", *CONTROL_PLANE):
            if name != "kube-apiserver" and name != "etcd":
                self.kubeconfig(self.folder / f"{name}.yaml", self.tokens[f"system:{name}"])
            self.start(name)
        core = client.CoreV1Api(self._admin)
        self._await(
            lambda: core.read_namespaced_service_account("default", "default"),
            "kube-controller-manager",
        )

    def _ready(self) -> None:
        trusted = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        token = {"Authorization": f"Bearer {self.tokens['admin']}"}
        requested = urllib.request.Request(f"{self.url}/readyz", headers=token)
        urllib.request.urlopen(requested, timeout=5, context=trusted).close()

    def _await(self, ready: Callable[[], object], name: str) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            for running, process in self._processes.items():
                if process.poll() is not None:
                    raise Unavailable(
                        f"no Kubernetes: {running} ended with {process.returncode}: {self._tail(running)}"
                    )
            try:
                ready()
                return
            except Exception as error:
                if time.monotonic() > end:
                    raise Unavailable(f"no Kubernetes: {name} is not ready: {error}") from error
            time.sleep(0.1)

    def _tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-300:]

    def _flags(self) -> dict[str, list[str]]:
        peers, clients = (f"http://127.0.0.1:{port}" for port in (self._peer_port, self._etcd_port))
        return {
            "etcd": [
                "--data-dir=etcd", "--unsafe-no-fsync", "--log-level=warn",
                f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}",
                f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=default={peers}",
            ],
            "kube-apiserver": [
                f"--etcd-servers={clients}", f"--secure-port={self.port}",
                "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none", f"--service-cluster-ip-range={SERVICES}",
                "--tls-cert-file=server.crt", "--tls-private-key-file=server.key",
                "--client-ca-file=ca.crt", "--token-auth-file=tokens.csv",
                "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
                f"--service-account-issuer={ISSUER}", "--service-account-key-file=accounts.key",
                "--service-account-signing-key-file=accounts.key",
                "--kubelet-preferred-address-types=InternalIP",
                "--kubelet-client-certificate=server.crt", "--kubelet-client-key=server.key",
            ],
            "kube-controller-manager": [
                "--kubeconfig=kube-controller-manager.yaml", "--leader-elect=false",
                "--secure-port=0", "--use-service-account-credentials=true",
                "--service-account-private-key-file=accounts.key", "--root-ca-file=ca.crt",
                "--kube-api-qps=500", "--kube-api-burst=1000",
            ],
            "kube-scheduler": [
                "--kubeconfig=kube-scheduler.yaml", "--leader-elect=false", "--secure-port=0",
                "--kube-api-qps=500", "--kube-api-burst=1000",
            ],
        }  # fmt: skip
