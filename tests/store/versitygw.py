"""A real S3 server for tests: versitygw, built once from its Go module and kept under the user's cache."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

VERSION = "v1.8.0"
ACCESS, SECRET = "collage-tests", "not-a-real-secret-0123456789"


class Unavailable(Exception):
    """Why there is no server on this machine."""


def build() -> Path:
    """Return the server's binary. Raises Unavailable with one line that says why there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "collage-tests" / f"versitygw-{VERSION}"
    binary = folder / "versitygw"
    if binary.is_file():
        return binary
    go = shutil.which("go")
    if go is None:
        raise Unavailable(
            f"no S3 server: versitygw is built with Go, which is not here, and not in {folder}"
        )
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    module = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
    made = subprocess.run(
        [go, "install", module],
        env={**os.environ, "GOBIN": str(partial), "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    if made.returncode:
        raise Unavailable(
            f"no S3 server: `go install {module}` failed: {made.stderr.strip()[-300:]}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (partial / "versitygw").replace(binary)
    shutil.rmtree(partial)
    return binary


class Server:
    """versitygw on a free port of this machine, with its data in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (folder / "versitygw.log").open("wb")
        self._process = subprocess.Popen(
            [build(), "--port", f"127.0.0.1:{self.port}", "posix", self.data],
            env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET},
            stdout=self._log,
            stderr=self._log,
        )
        self._wait()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise Unavailable(f"no S3 server: versitygw ended with {self._process.returncode}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self.close()
        raise Unavailable("no S3 server: versitygw does not answer")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
