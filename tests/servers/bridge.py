"""The network of a real node for tests: a bridge, and forwarders where a cluster has kube-proxy.

Pods get addresses of `PODS`; the host is `GATEWAY` to them. The tests' servers listen on 127.0.0.1, where
pods cannot reach them: `forward` opens the same port on the gateway. A Service's cluster IP becomes an
address of the bridge whose connections go to a ready pod, looked up for each. No iptables, no routing:
nothing of the host's network changes but the bridge, which goes with `close`.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

from tests.servers.binaries import Unavailable
from tests.servers.debian import find_folder

NAME = "collage-tests"
PODS, GATEWAY, PREFIX = "10.98.0.0/24", "10.98.0.1", 24
CONNECT_S = 10.0
Address = tuple[str, int]


class Bridge:
    """The bridge device; `folder` holds configuration and state of the CNI plug-ins."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("ip") is None:
            raise Unavailable("no bridge: Debian's package iproute2 is not installed")
        if (Path("/sys/class/net") / NAME).exists():
            raise Unavailable(
                f"no bridge: {NAME} is here already: another test has it; or `ip link delete {NAME}`"
            )
        self.plugins = find_folder("usr/lib/cni", "containernetworking-plugins")
        self.folder = folder
        self._forwarders: list[_Forwarder] = []
        folder.mkdir()
        (folder / "10-bridge.conflist").write_text(json.dumps(self._network()))
        _ip("link", "add", NAME, "type", "bridge")
        try:
            _ip("address", "add", f"{GATEWAY}/{PREFIX}", "dev", NAME)
            _ip("link", "set", NAME, "up")
        except BaseException:
            self.close()
            raise

    def forward(self, port: int) -> None:
        """Let pods reach a server on this port of 127.0.0.1, at the gateway."""
        self._serve((GATEWAY, port), lambda: ("127.0.0.1", port))

    def serve(self, service: Address, find: Callable[[], Address]) -> None:
        """Answer at a Service's address with the endpoint that `find` returns for each connection."""
        with contextlib.suppress(Unavailable):  # a further port of the same Service
            _ip("address", "add", f"{service[0]}/32", "dev", NAME)
        self._serve(service, find)

    def close(self) -> None:
        """End the forwarders and delete the device, and with it its addresses."""
        for forwarder in self._forwarders:
            forwarder.shutdown()
            forwarder.server_close()
        self._forwarders.clear()
        _ip("link", "delete", NAME)

    def _serve(self, address: Address, find: Callable[[], Address]) -> None:
        created = _Forwarder(address, find)
        self._forwarders.append(created)
        threading.Thread(target=created.serve_forever, args=(0.1,), daemon=True).start()

    def _network(self) -> dict[str, object]:
        """The bridge is made here, so the plug-in has no reason to change the host's sysctls."""
        addresses = {
            "type": "host-local",
            "dataDir": str(self.folder / "leases"),
            "ranges": [[{"subnet": PODS, "gateway": GATEWAY}]],
            "routes": [{"dst": "0.0.0.0/0", "gw": GATEWAY}],
        }
        bridge = {"type": "bridge", "bridge": NAME, "ipam": addresses}
        return {"cniVersion": "0.4.0", "name": NAME, "plugins": [bridge]}


class _Forwarder(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: Address, find: Callable[[], Address]) -> None:
        super().__init__(address, _Connection)
        self.find = find

    def handle_error(self, request, client_address) -> None:
        """A client that goes away, or a server that is not there, is no news."""


class _Connection(BaseRequestHandler):
    def handle(self) -> None:
        target = self.server.find()  # type: ignore[attr-defined]
        with socket.create_connection(target, CONNECT_S) as server:
            server.settimeout(None)
            response = threading.Thread(target=_copy, args=(server, self.request), daemon=True)
            response.start()
            _copy(self.request, server)
            response.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy to the end, and say there that it is the end."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"no bridge: `ip {' '.join(words)}` failed: {done.stderr.strip()}")
