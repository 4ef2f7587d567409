"""Prefect's lines of docs/ on a real server: a run is asked for, limits and deployments change."""

import os
import subprocess
import sys

import pytest

from tests.command_lines.listed import ELSEWHERE, PREFECT

pytest.importorskip("prefect")

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId

MORE = {
    "prefect gcl inspect": ["collage-local"],
    "prefect gcl update --active-slots": ["0", "collage-local"],
    "prefect gcl delete": ["collage-local"],
    "prefect deployment delete": ["collect-garbage/garbage"],
}
"""Arguments that a reader adds to a documented line."""


@pytest.fixture
def deployed(server, own_deployments, limit, settings, monkeypatch):
    from flows import setup

    monkeypatch.setenv("COLLAGE_WORK_POOL", "command-lines")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    assert setup.main() == 0


def test_prefects_lines_of_the_documents_run(deployed, client):
    lines = [line for line, test in ELSEWHERE.items() if test == PREFECT]
    assert len(lines) == 5
    for line in lines:
        command = [sys.executable, "-m", *line.split(), *MORE.get(line, [])]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    deployment = client.read_deployment_by_name("optimize-model/optimize")
    by_deployment = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]))
    (run,) = client.read_flow_runs(flow_run_filter=by_deployment)
    assert run.parameters["model"] == "/path/model.onnx"
