"""Prefect's lines of docs/ on a real server: a run is asked for, a limit is read and changed."""

import os
import subprocess
import sys

import pytest

from tests.command_lines.listed import ELSEWHERE, PREFECT

pytest.importorskip("prefect")

MORE = {
    "prefect gcl inspect": ["collage-local"],
    "prefect gcl update --active-slots": ["0", "collage-local"],
}
"""Arguments that a reader adds to a documented line."""


@pytest.fixture
def deployed(server, limit, settings, monkeypatch):
    from flows import setup

    monkeypatch.setenv("COLLAGE_WORK_POOL", "command-lines")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    assert setup.main() == 0


def test_prefects_lines_of_the_documents_run(deployed, client):
    lines = [line for line, test in ELSEWHERE.items() if test == PREFECT]
    assert len(lines) == 3
    for line in lines:
        command = [sys.executable, "-m", *line.split(), *MORE.get(line, [])]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    (run,) = client.read_flow_runs(limit=1)
    assert run.parameters["model"] == "/path/model.onnx"
    client.delete_flow_run(run.id)  # other tests count the runs of this deployment
