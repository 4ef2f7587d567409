"""Alerts and dashboard: alerts fire when they must (promtool), the dashboard is one that Grafana reads."""

import json
import re
import subprocess

import pytest
import yaml

from tests.helm import charts
from tests.servers import debian
from tests.servers.fixtures import or_skip

VALUES = {**charts.ALL, "metrics": {"enabled": True}}
NAMESPACE = {"namespace": "ns"}
DASHBOARD = charts.CHART / "dashboards" / "collage.json"


def monitoring(values=VALUES):
    """Return the manifests by kind and name."""
    manifests = charts.render(values)
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}


@pytest.fixture(scope="module")
def promtool():
    with or_skip():
        return debian.find_program("promtool", "prometheus")


def series(name, values, **labels):
    pairs = ", ".join(f'{key}="{value}"' for key, value in {**NAMESPACE, **labels}.items())
    return {"series": f"{name}{{{pairs}}}", "values": values}


def ended(result, values):
    return series("collage_runs_ended_total", values, result=result)


FRESH = series("collage_metrics_last_read_timestamp_seconds", "0+60x2000")
"""An exporter that reads every minute: without it CollageMetricsStale fires."""
CASES = {
    "CollageWorkerDown": (
        [series("kube_deployment_status_replicas_available", "1 0x20", deployment="collage-worker")],
        "15m",
    ),
    "CollageReceiverDown": (
        [series("kube_deployment_status_replicas_available", "1 0x20", deployment="collage-receiver")],
        "15m",
    ),
    "CollageMeasuringJobFailed": (
        [series("kube_job_status_failed", "1x20", job_name="collage-a"),
         series("kube_job_status_active", "0x20", job_name="collage-a")],
        "10m",
    ),
    "CollageRunsFailed": ([ended("failed", "0x10 1x10"), ended("crashed", "0x20")], "15m"),
    "CollageRunsGivenUp": ([ended("given_up", "0x10 1x10")], "15m"),
    "CollageRunsWaiting": ([series("collage_run_oldest_waiting_seconds", "3000+60x40")], "30m"),
    "CollageExpensive": (
        [series("collage_run_node_seconds_total", "0+400x1440", environment="cpu")], "20h",
    ),
    "CollageMetricsStale": ([series("collage_metrics_last_read_timestamp_seconds", "0x60")], "30m"),
    "CollageWebhookRejected": (
        [series("collage_receiver_webhooks_total", "0x5 0+3x15", result="forged")], "15m",
    ),
}  # fmt: skip
"""Series that let an alert fire, and when."""
QUIET = [
    series("kube_deployment_status_replicas_available", "1x60", deployment="collage-worker"),
    series("kube_deployment_status_replicas_available", "1x60", deployment="collage-receiver"),
    series("kube_job_status_failed", "1x60", job_name="collage-a"),
    series("kube_job_status_active", "2x60", job_name="collage-a"),
    *(ended(result, "0x60") for result in ("failed", "crashed", "given_up")),
    ended("rejected", "0x10 5x50"),
    series("collage_run_oldest_waiting_seconds", "0+30x60"),
    series("collage_run_node_seconds_total", "0+60x60", environment="cpu"),
    series("collage_receiver_webhooks_total", "0x5 1x55", result="forged"),
    FRESH,
]
"""Series of an installation where all is well: a few rejected models, a Job with running shards."""


def unit_test(alert, inputs, at, fires, rules):
    """Return the case of `promtool test rules`; labels and annotations of what fires are the rule's."""
    labels = {"severity": rules[alert]["labels"]["severity"]}
    return {
        "interval": "1m",
        "input_series": inputs,
        "alert_rule_test": [
            {"alertname": alert, "eval_time": at, "exp_alerts": [{"exp_labels": labels}] * fires}
        ],
    }


def test_alerts_fire_when_they_must_and_not_otherwise(promtool, tmp_path):
    spec = monitoring()["PrometheusRule", "collage"]["spec"]
    rules = {rule["alert"]: rule for group in spec["groups"] for rule in group["rules"]}
    assert rules.keys() == CASES.keys()
    for rule in rules.values():  # the test below compares when they fire, not their texts
        rule["labels"] = {"severity": rule["labels"]["severity"]}
        rule.pop("annotations")
        rule["expr"] = f"min({rule['expr']}) without (namespace, deployment, job_name)"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    cases = [
        unit_test(
            alert, inputs if alert == "CollageMetricsStale" else [*inputs, FRESH], at, 1, rules
        )
        for alert, (inputs, at) in CASES.items()
    ]
    cases += [unit_test(alert, QUIET, "45m", 0, rules) for alert in CASES]
    cases.append(unit_test("CollageMetricsStale", [], "10m", 1, rules))
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(content))
    done = subprocess.run(
        [promtool, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_no_fault_in_the_rules(promtool, tmp_path):
    spec = monitoring()["PrometheusRule", "collage"]["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", "rules.yaml"], cwd=tmp_path,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES)} rules found" in done.stdout


def test_a_limit_of_zero_is_no_alert():
    none = {"enabled": True, "alerts": {"waitingSeconds": 0, "nodeHoursPerDay": 0}}
    spec = monitoring({**charts.ALL, "metrics": none})["PrometheusRule", "collage"]["spec"]
    alerts = {rule["alert"] for group in spec["groups"] for rule in group["rules"]}
    assert alerts == CASES.keys() - {"CollageRunsWaiting", "CollageExpensive"}


def test_the_dashboard_is_loaded_by_its_label():
    config = monitoring()["ConfigMap", "collage-dashboard"]
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["collage.json"]) == json.loads(DASHBOARD.read_text())
    without = {"enabled": True, "dashboard": {"enabled": False}}
    manifests = monitoring({**charts.ALL, "metrics": without})
    assert ("ConfigMap", "collage-dashboard") not in manifests
    assert ("Deployment", "collage-metrics") in manifests
    assert not [name for kind, name in monitoring(charts.ALL) if "metrics" in name]


def test_grafanas_own_types_read_the_dashboard_whole():
    """What they do not know would be lost on the way through them."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    content = json.loads(DASHBOARD.read_text())
    dashboard = Dashboard.from_json(content)
    encoded = json.loads(JSONEncoder().encode(dashboard))
    assert lost(content, encoded) == []
    assert len(encoded["panels"]) >= 10


def lost(before, after, path=""):
    """List the paths of what `before` says and `after` does not."""
    if isinstance(before, dict):
        after = after if isinstance(after, dict) else {}
        return [
            problem
            for key, value in before.items()
            for problem in lost(value, after.get(key), f"{path}.{key}")
        ]
    if isinstance(before, list):
        after = after if isinstance(after, list) else []
        padded = [*after, *[None] * (len(before) - len(after))]
        pairs = zip(before, padded, strict=False)
        return [
            problem
            for number, (value, other) in enumerate(pairs)
            for problem in lost(value, other, f"{path}[{number}]")
        ]
    return [] if before == after else [path]


def test_panels_have_titles_and_do_not_overlap():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken = set()
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + row)
            for column in range(place["w"])
            for row in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert re.search(r"node", " ".join(panel["title"].lower() for panel in panels))
