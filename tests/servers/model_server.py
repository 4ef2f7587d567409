"""The real model server process, and requests for the model `relu`."""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

import httpx
import numpy as np

from tests.ports import free_port

INFER = "/v2/models/relu/infer"


class ModelServer:
    """`python -m containers.serve` of a bundle, started and ready."""

    def __init__(self, bundle: Path, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        weakref.finalize(self, self._log.close)  # `log` is read after the end
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "containers.serve", "--bundle", str(bundle), "--name", "relu",
             "--port", str(self.port), "--host", "127.0.0.1", "--drain", "0s", *options],
            stderr=self._log,
        )  # fmt: skip
        while not self.is_open():
            if self.process.poll() is not None:
                raise AssertionError(self.log())
            time.sleep(0.01)
        self.started_s = time.perf_counter() - begin
        self.client = httpx.Client(base_url=self.url, timeout=30)
        weakref.finalize(self, self.client.close)

    def is_open(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def post(self, **content) -> httpx.Response:
        return self.client.post(INFER, **content)

    def metric(self, start: str) -> float:
        """Sum the metrics whose line begins so."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(start))

    def status_bytes(self, field: str) -> int:
        """Read a size from the process's status: VmRSS, or VmHWM, the largest it ever was."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith(f"{field}:")]
        return int(line.split()[1]) << 10

    def forget_peak(self) -> None:
        """Reset VmHWM to the resident memory of now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def log(self) -> str:
        """Return its log; reading keeps the pipe from blocking the server."""
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> list[dict]:
        """End it as Kubernetes does; return the log's lines."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        return [json.loads(line) for line in self.log().splitlines()]


def request(x: np.ndarray, **extra: object) -> dict:
    entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    return {"inputs": [entry | extra]}


def head(length: int, path: str = INFER) -> bytes:
    """Return the head of a request whose body has so many bytes."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
