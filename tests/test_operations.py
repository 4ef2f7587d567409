"""docs/operations.md names the metrics, alerts and events that there are, and no others."""

import re

import pytest

from tests.documents import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
METRIC = re.compile(r"\bcollage_(?:receiver|serve|runs?|metrics)_?[a-z_]*")
FOREIGN = {"kube_deployment_status_replicas_available", "kube_job_status_failed",
           "kube_job_status_active"}  # fmt: skip
"""Of kube-state-metrics: the chart's rules say so."""


def receiver_page(folder):
    pytest.importorskip("prometheus_client")
    pytest.importorskip("starlette")
    from containers.receiver import Receiver, ReceiverSettings

    settings = ReceiverSettings(
        secret="x" * 16, prefect_api_url="http://prefect/api", journal=folder / "journal.db"
    )

    async def start(_):
        raise AssertionError("nothing is started here")

    from prometheus_client import generate_latest

    return generate_latest(Receiver(settings, start).metrics).decode()


def server_page():
    from collage.runtime.dispatch import DispatchCounts
    from containers.serving.metrics import Metrics

    metrics = Metrics("m", "1")
    metrics.count("model", 200, 0.01)
    ways = DispatchCounts({"main": 2}, {}, 1, {}, fallback_shapes={"x: [3, 8]": 1})
    return metrics.text(
        dict.fromkeys(("under_way", "places", "memory_reserved_bytes", "memory_bytes", "ready"), 1),
        {"model": [ways]},
    )


def exporter_page():
    from prometheus_client import generate_latest

    from containers.run_metrics import EndedRun, EnvironmentRecord, RunMetrics

    metrics = RunMetrics()
    record = EnvironmentRecord("cpu", "optimized")
    metrics.count(EndedRun("r", "COMPLETED", "Completed", "", 1.0, (record,)))
    metrics.show({"waiting": 0, "running": 0}, 0.0, 1.0)
    return generate_latest(metrics.registry).decode()


@pytest.fixture
def exposed(tmp_path):
    """The pages of all parts that have metrics."""
    return receiver_page(tmp_path) + server_page() + exporter_page()


def families(page):
    """Names of metrics as people know them: of a histogram, and without when a counter was made."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    return {name for name in kinds if not name.endswith("_created")}


def test_metrics_and_their_descriptions_match(exposed):
    assert set(METRIC.findall(PAGE)) == families(exposed)


def test_no_other_part_has_metrics():
    """Whoever adds some lets the test above know of them."""
    users = {
        str(file.relative_to(ROOT))
        for folder in ("collage", "containers", "flows")
        for file in (ROOT / folder).rglob("*.py")
        if re.search(r"prometheus_client|# TYPE collage_", file.read_text())
    }
    assert users == {
        "containers/metrics_exporter.py", "containers/receiver.py", "containers/run_metrics.py",
        "containers/serving/metrics.py",
    }  # fmt: skip


def test_every_result_that_is_counted_is_described(exposed):
    results = set(re.findall(r'result="(\w+)"', exposed))
    assert len(results) == 20
    assert results <= set(re.findall(r"`(\w+)`", PAGE))


def rules(metrics=None):
    """Return the alerts of the chart, in its order."""
    pytest.importorskip("helm_python")
    from tests.helm import charts

    values = {**charts.ALL, "metrics": {"enabled": True, **(metrics or {})}}
    (rule_object,) = [
        manifest for manifest in charts.render(values) if manifest["kind"] == "PrometheusRule"
    ]
    return [rule for group in rule_object["spec"]["groups"] for rule in group["rules"]]


def test_the_alerts_of_the_page_are_those_of_the_chart():
    described = re.findall(r"^### (Collage\w+)$", PAGE, re.MULTILINE)
    assert sorted(described) == sorted(rule["alert"] for rule in rules())


def test_every_runbook_url_has_its_anchor_in_the_page():
    anchors = {
        re.sub(r"[^\w-]+", "-", title.lower()).strip("-")
        for title in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    }
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (ROOT / page).is_file()
        assert anchor in anchors, rule["alert"]
    (first, *_) = rules({"runbooks": "https://runbooks.example.com/collage"})
    expected = "https://runbooks.example.com/collage#collageworkerdown"
    assert first["annotations"]["runbook_url"] == expected


def test_alerts_ask_for_metrics_and_results_that_exist(exposed):
    samples = set(re.findall(r"^(collage_\w+)", exposed, re.MULTILINE))
    results = set(re.findall(r'result="(\w+)"', exposed))
    for rule in rules():
        metrics = set(re.findall(r"([a-z_]+)\{", rule["expr"]))
        assert metrics, rule
        assert metrics <= samples | FOREIGN, rule["alert"]
        for values in re.findall(r'result=~?"([^"]+)"', rule["expr"]):
            assert set(values.split("|")) <= results, rule["alert"]


def test_every_event_is_described_and_every_described_one_exists():
    event = re.compile(r"\bcollage\.(?:plan|artifact)\.[a-z]+")
    described = {
        name for file in (ROOT / "flows").glob("*.py") for name in event.findall(file.read_text())
    }
    assert len(described) == 3
    assert set(event.findall((ROOT / "docs" / "flows.md").read_text())) == described
