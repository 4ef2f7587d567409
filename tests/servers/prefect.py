"""A real Prefect server for tests, and a worker that runs deployments as processes beside it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from collage.telemetry import TELEMETRY_OFF
from tests.ports import free_port
from tests.servers.binaries import Unavailable

START_S = 600.0
"""A server that runs is waited for: on a busy machine its start takes minutes, and a skip would hide that."""
_QUIET = {
    **TELEMETRY_OFF,
    "PREFECT_CLI_COLORS": "false",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}


class Server:
    """`prefect server start` on a free port, with its database and settings in `folder`.

    `environment` is what a client needs; nothing of the user's own Prefect profile is read.
    """

    def __init__(self, folder: Path, extra: Mapping[str, str] | None = None) -> None:
        try:
            import prefect  # noqa: F401
        except ImportError:
            raise Unavailable("no Prefect server: pip install 'collage[flows]' brings it") from None
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ui = f"http://127.0.0.1:{free_port()}"
        self.url = f"{self.ui}/api"
        self.environment = {
            **_QUIET, "PREFECT_HOME": str(folder / "home"), "PREFECT_PROFILES_PATH": str(folder / "none"),
            "PREFECT_API_URL": self.url,
        }  # fmt: skip
        database = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
        port = self.ui.rpartition(":")[2]
        self._log = (folder / "server.log").open("wb")
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
        self._process = subprocess.Popen(
            [*command, "--port", port],
            env={
                **os.environ, **self.environment, "PREFECT_API_DATABASE_CONNECTION_URL": database,
                "PREFECT_UI_API_URL": self.url, **(extra or {}),
            },
            stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        self._wait()

    def close(self) -> None:
        _stop(self._process)
        self._log.close()

    @contextmanager
    def worker(self, pool: str, environment: Mapping[str, str]) -> Iterator[Path]:
        """Run a process worker of the pool; yields the file with its log."""
        log = self.folder / f"worker-{pool}.log"
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool]
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*command, "--type", "process"],
                env={**os.environ, **self.environment, "PREFECT_WORKER_QUERY_SECONDS": "1",
                     **environment},
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
            try:
                yield log
            finally:
                _stop(process)

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                text = (self.folder / "server.log").read_text(errors="replace")[-500:]
                raise Unavailable(f"no Prefect server: it ended at once: {text}")
            try:
                if httpx.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        self.close()
        raise Unavailable(f"no Prefect server: it does not answer within {START_S:.0f} s")


def _stop(process: subprocess.Popen) -> None:
    """Stop the process and its children: they share one session."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(15)
    except ProcessLookupError:
        return
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
