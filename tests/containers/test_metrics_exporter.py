"""The exporter of runs' metrics before a Prefect API of the test's own; tests/flows has the real server."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from prometheus_client import generate_latest

from collage.errors import OptionError
from containers.metrics_exporter import MetricsSettings, RunWatcher, make_app
from containers.run_metrics import EndedRun, EnvironmentRecord, RunMetrics
from containers.run_reader import PAGE, ReadError, RunReader

DEPLOYMENT = "optimize-model/optimize"
ROW = {"environment": "cpu", "status": "optimized", "given up": "no"}


class Prefect:
    """Prefect's API of one deployment, with runs that a test adds; it filters as the server does."""

    def __init__(self):
        self.runs, self.artifacts, self.down = [], {}, False
        self.asked = []

    def end(self, name, state="COMPLETED", state_name=None, ago_s=0.0, rows=None):
        ended = datetime.now(UTC) - timedelta(seconds=ago_s)
        self.runs.append({
            "id": name, "state_type": state, "state_name": state_name or state.capitalize(),
            "end_time": ended.isoformat(), "expected_start_time": ended.isoformat(), "total_run_time": 90.0,
        })  # fmt: skip
        if rows is not None:
            self.artifacts[name] = json.dumps(rows)

    def wait(self, name, due_ago_s):
        due = datetime.now(UTC) - timedelta(seconds=due_ago_s)
        self.runs.append(
            {"id": name, "state_type": "SCHEDULED", "end_time": None, "expected_start_time": due.isoformat()}
        )  # fmt: skip

    def answer(self, request):
        if self.down:
            return httpx.Response(503)
        if request.method == "GET":
            assert request.url.path == "/api/deployments/name/optimize-model/optimize"
            return httpx.Response(200, json={"id": "d1"})
        body = json.loads(request.content)
        self.asked.append((request.url.path, body))
        if request.url.path.endswith("/artifacts/filter"):
            (name,) = body["artifacts"]["flow_run_id"]["any_"]
            data = self.artifacts.get(name)
            return httpx.Response(200, json=[{"data": data}] if data else [])
        chosen = self._chosen(body["flow_runs"])
        if request.url.path.endswith("/count"):
            return httpx.Response(200, json=len(chosen))
        start = body.get("offset", 0)
        return httpx.Response(200, json=chosen[start : start + body["limit"]])

    def _chosen(self, selected):
        assert selected["deployment_id"] == {"any_": ["d1"]}
        states = selected.get("state", {}).get("type", {}).get("any_")
        after = selected.get("end_time", {}).get("after_")
        before = selected.get("expected_start_time", {}).get("before_")
        runs = [
            run for run in self.runs
            if (states is None or run["state_type"] in states)
            and (after is None or (run["end_time"] or "") >= after)
            and (before is None or run["expected_start_time"] <= before)
        ]  # fmt: skip
        return sorted(runs, key=lambda run: run["expected_start_time"])


@pytest.fixture
def prefect():
    return Prefect()


@pytest.fixture
def metrics():
    return RunMetrics()


@pytest.fixture
def watcher(prefect, metrics):
    client = httpx.AsyncClient(transport=httpx.MockTransport(prefect.answer))
    return RunWatcher(RunReader(client, "http://prefect/api/", DEPLOYMENT), metrics)


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def ended(metrics, result):
    return value(metrics, "collage_runs_ended_total", result=result)


def test_a_run_counts_once_after_the_first_read(watcher, prefect, metrics):
    prefect.end("before", rows=[ROW])
    asyncio.run(watcher.read())
    assert ended(metrics, "optimized") == 0
    prefect.end(
        "after", rows=[ROW, {**ROW, "environment": "gpu", "node seconds": 7, "GPU seconds": "14"}]
    )
    for _ in range(3):
        asyncio.run(watcher.read())
    assert ended(metrics, "optimized") == 1
    assert value(metrics, "collage_run_seconds_sum", result="optimized") == 90
    expected = {"environment": "gpu", "status": "optimized"}
    assert value(metrics, "collage_run_environments_total", **expected) == 1
    assert value(metrics, "collage_run_node_seconds_total", environment="gpu") == 7
    assert value(metrics, "collage_run_gpu_seconds_total", environment="gpu") == 14
    assert value(metrics, "collage_run_node_seconds_total", environment="cpu") == 0


def test_an_end_that_prefect_learns_late_counts(watcher, prefect, metrics):
    asyncio.run(watcher.read())
    prefect.end("late", ago_s=300, rows=[ROW])
    asyncio.run(watcher.read())
    assert ended(metrics, "optimized") == 1


def test_a_run_that_is_tried_again_ends_twice(watcher, prefect, metrics):
    asyncio.run(watcher.read())
    prefect.end("run", "FAILED", ago_s=20)
    asyncio.run(watcher.read())
    prefect.runs.clear()
    prefect.end("run", rows=[ROW])
    asyncio.run(watcher.read())
    assert (ended(metrics, "failed"), ended(metrics, "optimized")) == (1, 1)


@pytest.mark.parametrize(
    ("state", "name", "rows", "result"),
    [
        ("COMPLETED", "Completed", [ROW, {**ROW, "status": "not-faster"}], "not_faster"),
        ("COMPLETED", "Completed", None, "unknown"),
        ("COMPLETED", "Completed", [{"columns": "of a newer flow"}], "unknown"),
        ("FAILED", "Rejected", [{**ROW, "status": "failed"}], "rejected"),
        ("FAILED", "Failed", [{**ROW, "status": "failed"}], "failed"),
        ("FAILED", "Failed", [ROW, {**ROW, "status": "failed", "given up": "yes"}], "given_up"),
        ("FAILED", "TimedOut", None, "failed"),
        ("CRASHED", "Crashed", None, "crashed"),
        ("CANCELLED", "Cancelled", None, "cancelled"),
    ],
)
def test_the_result_follows_from_state_and_records(
    watcher, prefect, metrics, state, name, rows, result
):
    asyncio.run(watcher.read())
    prefect.end("run", state, name, rows=rows)
    asyncio.run(watcher.read())
    assert ended(metrics, result) == 1


def test_more_runs_than_a_page_all_count(watcher, prefect, metrics):
    asyncio.run(watcher.read())
    for number in range(2 * PAGE + 1):
        prefect.end(str(number), "CRASHED")
    asyncio.run(watcher.read())
    assert ended(metrics, "crashed") == 2 * PAGE + 1


def test_the_oldest_waiting_run_is_one_that_is_due(watcher, prefect, metrics):
    prefect.wait("due", 120)
    prefect.wait("later", -3600)
    asyncio.run(watcher.read())
    assert value(metrics, "collage_runs", state="waiting") == 1
    assert value(metrics, "collage_run_oldest_waiting_seconds") == pytest.approx(120, abs=5)
    prefect.runs.clear()
    asyncio.run(watcher.read())
    assert value(metrics, "collage_run_oldest_waiting_seconds") == 0


def test_what_ended_while_prefect_was_down_counts_later(watcher, prefect, metrics):
    asyncio.run(watcher.read())
    read_at = value(metrics, "collage_metrics_last_read_timestamp_seconds")
    prefect.end("run", rows=[ROW])
    prefect.down = True
    with pytest.raises(ReadError, match="Prefect answered 503"):
        asyncio.run(watcher.read())
    assert value(metrics, "collage_metrics_last_read_timestamp_seconds") == read_at
    prefect.down = False
    asyncio.run(watcher.read())
    assert ended(metrics, "optimized") == 1


@pytest.mark.parametrize("answer", [httpx.Response(503), httpx.Response(200, json={"detail": "?"})])
def test_a_read_that_fails_is_counted_and_repeated(metrics, answer):
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: answer))
    failing = RunWatcher(RunReader(client, "http://prefect/api", DEPLOYMENT), metrics)

    async def watch():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(failing.run(0.01), 0.5)

    asyncio.run(watch())
    assert value(metrics, "collage_metrics_read_failures_total") >= 2


def test_the_page_has_the_series(watcher, prefect, metrics):
    app = make_app(metrics, watcher, 30.0)

    async def read():
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://exporter") as client,
        ):
            return await client.get("/healthz"), await client.get("/metrics")

    health, page = asyncio.run(read())
    assert health.text == "ok"
    assert page.headers["content-type"].startswith("text/plain")
    assert 'collage_runs_ended_total{result="optimized"} 0.0' in page.text
    assert generate_latest(metrics.registry).decode().splitlines()[0] in page.text


def test_settings_are_those_of_prefect(monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(OptionError, match="PREFECT_API_URL"):
        MetricsSettings.load()
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect/api")
    monkeypatch.setenv("COLLAGE_DEPLOYMENT", "optimize-model/mine")
    settings = MetricsSettings.load()
    assert (settings.optimize_deployment, settings.prefect_api_key) == ("optimize-model/mine", None)
    monkeypatch.delenv("COLLAGE_DEPLOYMENT")
    monkeypatch.setenv("COLLAGE_RELEASE", "team.collage")
    assert MetricsSettings.load().optimize_deployment == "optimize-model/optimize@team.collage"
    monkeypatch.setenv("COLLAGE_METRICS__EVERY", "1")
    with pytest.raises(OptionError, match="COLLAGE_METRICS__EVERY_S"):
        MetricsSettings.load()


def test_series_of_environments_begin_at_zero(monkeypatch, tmp_path):
    """Prometheus sees no increase in a series that begins with its first run."""
    file = tmp_path / "environments.yaml"
    file.write_text("cpu: {threads: 2}\ngpu: {gpuResource: nvidia.com/gpu}\n")
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect/api")
    monkeypatch.setenv("COLLAGE_ENVIRONMENTS_FILE", str(file))
    metrics = RunMetrics(MetricsSettings.load().environment_names())
    for name in ("cpu", "gpu"):
        for status in ("optimized", "not-faster", "failed"):
            labels = {"environment": name, "status": status}
            assert value(metrics, "collage_run_environments_total", **labels) == 0
        assert value(metrics, "collage_run_node_seconds_total", environment=name) == 0


def test_a_negative_or_missing_cost_adds_nothing():
    metrics = RunMetrics()
    run = EndedRun("r", "COMPLETED", "Completed", "", 1.0, (EnvironmentRecord("cpu", "optimized"),))
    metrics.count(run)
    metrics.count(replace(run, id="again"))
    assert value(metrics, "collage_run_node_seconds_total", environment="cpu") == 0
