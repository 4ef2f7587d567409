"""Debian's Prometheus for tests, with targets that it reads every half second."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.ports import free_port
from tests.servers import debian

START_S = 60.0


class Prometheus:
    """A server with its data in `folder`; `labels` are added to every series, as a cluster's would be."""

    def __init__(self, folder: Path, targets: list[str], labels: Mapping[str, str]) -> None:
        program = debian.find_program("prometheus", "prometheus")
        folder.mkdir(parents=True, exist_ok=True)
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        jobs = [
            {
                "job_name": "collage",
                "static_configs": [{"targets": targets, "labels": dict(labels)}],
            }
        ]
        every = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
        config = folder / "prometheus.yaml"
        config.write_text(yaml.safe_dump({"global": every, "scrape_configs": jobs}))
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={address}"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self._wait(folder / "prometheus.log")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the vector of an expression at present."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=10)
        content = answer.json()
        assert content["status"] == "success", content
        return content["data"]["result"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def _wait(self, log: Path) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            assert self._process.poll() is None, log.read_text(errors="replace")[-500:]
            try:
                if httpx.get(f"{self.url}/-/ready", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        self.close()
        raise AssertionError(f"no Prometheus within {START_S:.0f} s")
