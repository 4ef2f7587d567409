"""From runs of the real flow over Prefect and the exporter to a real Prometheus: every panel has data."""

import json
import math
import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager

import httpx
import pytest

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.errors import GivenUpError
from tests.documents import ROOT
from tests.flows.fake_compile_service import FakeCompileService
from tests.ports import free_port
from tests.servers.fixtures import running
from tests.servers.prometheus import Prometheus
from tests.servers.receiver import Receiver
from tests.support.models import small_model
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full

pytest.importorskip("prefect")

WAIT_S = 120.0
"""Of a busy machine; an idle one needs a second."""
PANELS = json.loads((ROOT / "helm/collage/dashboards/collage.json").read_text())["panels"]


@pytest.fixture
def service(settings, server, limit, tmp_path, monkeypatch):
    """One environment, `cpu`, of a fake cluster."""
    created = FakeCompileService(settings.store, tmp_path / "bundles")
    environments = {"cpu": MeasuringEnvironment(threads=1)}
    monkeypatch.setattr("flows.environments._environments", lambda settings: environments)
    monkeypatch.setattr("flows.environments._cluster_service", lambda settings: created)
    limit("cpu")
    return created


@pytest.fixture
def deployment(client):
    """A deployment of the test's own: no worker takes its runs."""
    flow = client.create_flow_from_name("optimize-model")
    identity = client.create_deployment(flow, name=f"metrics-{uuid.uuid4()}")
    yield client.read_deployment(identity)
    client.delete_deployment(identity)


@contextmanager
def exporter(server, deployment, folder):
    """The exporter as a process; yields its address."""
    port = free_port()
    environments = folder / "environments.yaml"
    environments.write_text("cpu: {threads: 1}\n")
    plain = {name: text for name, text in os.environ.items() if not name.startswith("COLLAGE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "containers.metrics_exporter"],
        env={
            **plain, "PREFECT_API_URL": server.url, "COLLAGE_METRICS__HOST": "127.0.0.1",
            "COLLAGE_METRICS__PORT": str(port), "COLLAGE_METRICS__EVERY_S": "0.5",
            "COLLAGE_DEPLOYMENT": f"optimize-model/{deployment.name}",
            "COLLAGE_ENVIRONMENTS_FILE": str(environments),
        },
    )  # fmt: skip
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(30) in (0, -signal.SIGTERM)


def run_deployment(client, deployment, model):
    """Run the deployment's flow here, as a worker's process would."""
    from prefect.flow_engine import run_flow

    from flows.optimize import optimize_model

    parameters = {"model": str(model), "version": None, "environments": None, "options": None}
    run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    return run_flow(optimize_model, flow_run=run, parameters=parameters, return_type="state")


def read_series(address):
    try:
        return httpx.get(f"http://{address}/metrics", timeout=5).text
    except httpx.HTTPError:
        return ""


def sample(address, name):
    lines = read_series(address).splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)


def test_every_panel_has_data_of_a_run(service, client, deployment, server, tmp_path):
    (tmp_path / "receiver").mkdir()
    receiver = Receiver(tmp_path / "receiver", server.url)
    try:
        with exporter(server, deployment, tmp_path) as address:
            wait_for(
                lambda: sample(address, "collage_metrics_last_read_timestamp_seconds") > 0, WAIT_S
            )
            targets = [address, receiver.status_url.removeprefix("http://")]
            labels = {"namespace": "ns"}
            with running(Prometheus, tmp_path / "prometheus", targets, labels) as prometheus:
                wait_for(lambda: len(prometheus.query("up == 1")) == 2, WAIT_S)
                _end_runs(service, client, deployment, tmp_path)
                for result in ("optimized", "given_up"):
                    series = f'collage_runs_ended_total{{result="{result}"}}'
                    wait_for(lambda series=series: prometheus.query(f"{series} == 1"), WAIT_S)
                wait_for(lambda: prometheus.query('collage_runs{state="waiting"} == 1'), WAIT_S)
                for panel in PANELS:
                    _check_panel(prometheus, panel)
    finally:
        receiver.stop()


def _end_runs(service, client, deployment, folder):
    """End a run with a bundle and one whose Job was given up, and let a third one wait."""
    model = small_model(folder / "small.onnx")
    state = run_deployment(client, deployment, model)
    assert state.is_completed(), state
    service.driver["cpu"] = "another"  # a node without a result of this request
    service.errors["cpu", "finish"] = [GivenUpError("the Job j was given up: no quota")]
    state = run_deployment(client, deployment, model)
    assert state.is_failed(), state
    client.create_flow_run_from_deployment(deployment.id, parameters={"model": "waits"})


def _check_panel(prometheus, panel):
    for target in panel["targets"]:
        expression = target["expr"].replace("$namespace", "ns")
        result = prometheus.query(expression)
        assert result, (panel["title"], expression)
        values = [float(item["value"][1]) for item in result]
        assert all(map(math.isfinite, values)), (panel["title"], values)
    if panel["title"] in ("Given up, 24 h", "Ended runs by result, each hour"):
        assert max(values) > 0, panel["title"]
