"""A real S3 server for tests: versitygw, built once from its Go module and kept under the user's cache."""

import os
import socket
import subprocess
import time
from pathlib import Path

from tests.ports import free_port
from tests.servers.binaries import Unavailable, find

ACCESS, SECRET = "collage-tests", "not-a-real-secret-0123456789"
USERS = {"measure": "not-a-secret-of-measure", "finish": "not-a-secret-of-finish"}
"""Access keys and secrets of users who may do nothing until a bucket's policy says so."""


class Server:
    """versitygw on a free port of this machine, with its data in `folder`; started again after `kill`."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "versitygw.log"
        self._log = self.log.open("ab")
        self._users = folder / "users"
        self._users.mkdir()
        self.start()
        for access, secret in USERS.items():
            self._add_user(access, secret)

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                find("versitygw"),
                "--port",
                f"127.0.0.1:{self.port}",
                "--iam-dir",
                self._users,
                "posix",
                self.data,
            ],
            env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET},
            stdout=self._log,
            stderr=self._log,
        )
        self._wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _add_user(self, access: str, secret: str) -> None:
        root = ["--access", ACCESS, "--secret", SECRET, "--endpoint-url", self.url]
        user = ["--access", access, "--secret", secret, "--role", "user"]
        subprocess.run(
            [find("versitygw"), "admin", *root, "create-user", *user],
            check=True, stdout=self._log, stderr=self._log,
        )  # fmt: skip

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
