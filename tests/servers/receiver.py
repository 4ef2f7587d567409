"""The real receiver process, and a Prefect API that only records its requests."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from tests.ports import free_ports

SECRET = "a-test-secret-of-some-length"


class Receiver:
    """`python -m containers.receiver` with its journal in `folder`; started again after `kill`."""

    def __init__(self, folder: Path, prefect_url: str, **settings: str) -> None:
        self.folder = folder
        self.port, status_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.status_url = f"http://127.0.0.1:{status_port}"
        self.log = folder / "receiver.log"
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("COLLAGE_", "PREFECT_"))}
        self._environment = {
            **plain, "COLLAGE_RECEIVER__SECRET": SECRET, "COLLAGE_RECEIVER__HOST": "127.0.0.1",
            "COLLAGE_RECEIVER__PORT": str(self.port),
            "COLLAGE_RECEIVER__STATUS_PORT": str(status_port),
            "COLLAGE_RECEIVER__JOURNAL": str(folder / "journal.db"),
            "COLLAGE_RECEIVER__DRAIN_S": "0",
            "PREFECT_API_URL": prefect_url, **settings,
        }  # fmt: skip
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "containers.receiver"],
                env=self._environment, stdout=log, stderr=log,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip
        end = time.monotonic() + 30
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{self.status_url}/readyz", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(15)

    def count(self, name: str, result: str) -> float:
        expected = f'collage_receiver_{name}_total{{result="{result}"}}'
        for line in httpx.get(f"{self.status_url}/metrics").text.splitlines():
            if line.startswith(expected):
                return float(line.split()[1])
        raise AssertionError(f"no metric {expected}")


class PrefectRecorder:
    """Answers the two requests of the receiver; a real server is used in the tests of the flows."""

    def __init__(self) -> None:
        self.runs: list[dict] = []
        self.paths: list[str] = []
        self.down = False
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def _answer(self, body: dict | None) -> None:
                recorder.paths.append(self.path)
                if not recorder.down and body is not None:
                    recorder.runs.append(body)
                data = json.dumps({"id": "d0"}).encode()
                self.send_response(500 if recorder.down else 200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/api"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
