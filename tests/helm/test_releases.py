"""The chart's names on a Prefect server of several releases, and the container that runs reconcile."""

import pytest
import yaml

from tests.helm import charts
from tests.servers.fixtures import or_skip

PREFECT = charts.ENOUGH["prefect"]


def environment(values, pod, **placed):
    containers = dict(charts.pods(charts.render(values, **placed)))[pod]["containers"]
    return [{entry["name"]: entry.get("value") for entry in one["env"]} for one in containers]


@pytest.mark.parametrize(
    ("release", "expected"),
    [("", "ns.collage"), ("eu", "eu"), ("-", ""), (None, "ns.collage")],
    ids=["default", "given", "plain", "null"],
)
def test_every_program_has_the_releases_name(release, expected):
    values = {**charts.ALL, "prefect": {**PREFECT, "release": release}}
    for pod in ("collage-worker", "collage-set-up", "collage-receiver", "collage-test-prefect"):
        for variables in environment(values, pod):
            assert variables["COLLAGE_RELEASE"] == expected


def test_releases_have_names_of_their_own():
    names = {
        environment(charts.ENOUGH, "collage-worker", namespace=namespace)[0]["COLLAGE_RELEASE"]
        for namespace in ("a", "b")
    }
    assert names == {"a.collage", "b.collage"}


def test_the_notes_name_the_releases_deployment():
    assert "prefect deployment run optimize-model/optimize@ns.collage" in charts.notes(
        charts.ENOUGH
    )


def test_a_container_runs_reconcile_alone():
    worker = dict(charts.pods(charts.render(charts.ENOUGH)))["collage-worker"]
    main, reconcile = worker["containers"]
    assert main["command"][:3] == reconcile["command"][:3] == ["python", "-m", "flows.worker"]
    assert "--work-queue" not in main["command"]
    assert reconcile["command"][-4:] == ["--limit", "1", "--work-queue", "reconcile"]
    assert "signing" in {mount["name"] for mount in main["volumeMounts"]}
    assert "signing" not in {mount["name"] for mount in reconcile["volumeMounts"]}


@pytest.mark.parametrize(
    ("arguments", "adopts"),
    [
        ((), False),
        (("--is-upgrade",), True),
        (("--is-upgrade", "--set", "prefect.release=-"), False),
    ],
    ids=["install", "upgrade", "upgrade with plain names"],
)
def test_an_upgrade_adopts_what_was_there_before(tmp_path, arguments, adopts):
    with or_skip():
        helm = charts.helm3()
    file = charts.write_values(tmp_path, charts.ENOUGH)
    arguments = ("-f", str(file), "--kube-version", "1.34.0", *arguments)
    text = charts.run(helm, "template", "collage", str(charts.CHART), *arguments)
    manifests = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    (container,) = dict(charts.pods(manifests))["collage-set-up"]["containers"]
    assert container["command"] == ["python", "-m", "flows.setup", *["--adopt"] * adopts]
