"""A real MLflow server for tests: on a free port, with its database and artifacts in a folder."""

import base64
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from collage.telemetry import TELEMETRY_OFF
from tests.ports import free_port
from tests.servers.binaries import Unavailable

START_S = 120.0


class Server:
    """`mlflow server`, which may send webhooks to this machine.

    `url` is its address, `address` the same for `open_registry`.
    """

    def __init__(self, folder: Path, extra: Mapping[str, str] | None = None) -> None:
        try:
            import mlflow.server  # noqa: F401
        except ImportError:
            raise Unavailable(
                "no MLflow server: pip install 'collage[services]' brings it"
            ) from None
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.address = f"mlflow+{self.url}"
        self._log = (folder / "mlflow.log").open("wb")
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
                "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
                "--artifacts-destination", str(folder / "artifacts"), "--workers", "1",
            ],
            cwd=folder,
            env={
                **os.environ, **TELEMETRY_OFF,
                "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
                "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
                "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": base64.urlsafe_b64encode(b"k" * 32).decode(),
                "MLFLOW_WEBHOOK_CACHE_TTL": "1",
                **(extra or {}),
            },
            stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        self._wait()

    def close(self) -> None:
        """Stop the server and its workers: they share a session of their own."""
        for number, patience_s in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(patience_s)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._log.close()

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                text = (self.folder / "mlflow.log").read_text(errors="replace")[-500:]
                raise Unavailable(f"no MLflow server: it ended at once: {text}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)
        self.close()
        raise Unavailable(f"no MLflow server: it does not answer within {START_S:.0f} s")
