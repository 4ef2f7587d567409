"""Lines that are no lines of `collage`: of make, pip, pytest, helm and kubectl."""

import re
import shlex
import subprocess
import sys
import tomllib

import pytest
import yaml
from kubernetes.client import ApiClient

from collage.cluster.kubernetes.manifests import job_manifest
from tests.cluster.test_manifests import MEASURE, PLAIN, SETTINGS
from tests.command_lines.listed import ELSEWHERE, HELM_INSTALL, MAKE, PIP, PYTEST
from tests.documents import ROOT
from tests.helm import charts


def listed(test):
    return [line for line, place in ELSEWHERE.items() if place == test]


@pytest.mark.parametrize("line", listed(MAKE))
def test_make_has_the_target(line):
    """What the target does takes hours or is what CI does itself: make tells what it would run."""
    done = subprocess.run(
        [*line.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("line", listed(PYTEST))
def test_pytest_finds_the_tests_of_the_line(line):
    """The tests themselves run with the others; here, files and folders have some, and `-k` selects some."""
    _, *options = shlex.split(line)
    paths = [ROOT / option for option in options if option.startswith("tests/")]
    assert all(path.is_file() or any(path.glob("test_*.py")) for path in paths)
    if "-k" in options:
        collected = subprocess.run(
            [sys.executable, *options, "--collect-only", "-q", "-p", "no:cacheprovider"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert collected.returncode == 0, collected.stdout + collected.stderr


@pytest.mark.parametrize("line", listed(PIP))
def test_pip_is_given_extras_and_packages_that_exist(line):
    """Collage is on no index; its extras are those of pyproject.toml, other packages those of the pins."""
    _, _, requirement = shlex.split(line)
    name, extras = re.fullmatch(r"([\w-]+)(?:\[([\w,-]+)\])?", requirement).groups()
    if name == "collage":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    else:
        assert f"\n{name}==" in (ROOT / "constraints.txt").read_text()


@pytest.mark.parametrize("line", listed(HELM_INSTALL))
def test_helm_renders_what_the_line_installs(line):
    """Real installations are those of tests/helm/test_api_server.py and tests/e2e."""
    _, _, release, chart, *options = shlex.split(line)
    assert (ROOT / chart).samefile(charts.CHART)
    values, namespace = {}, "default"
    while options:
        option = options.pop(0)
        if option in ("-n", "--namespace"):
            namespace = options.pop(0)
        elif option == "--set":
            path, _, value = options.pop(0).partition("=")
            *folders, name = path.split(".")
            place = values
            for folder in folders:
                place = place.setdefault(folder, {})
            place[name] = value
        else:
            assert option == "--create-namespace"
    manifests = charts.render(values, release, namespace)
    images = {
        container["image"] for _, pod in charts.pods(manifests) for container in pod["containers"]
    }
    assert images
    assert all(image.startswith(values["image"]["repository"] + "/") for image in images)
    text = yaml.safe_dump_all(manifests, width=1000)
    assert values["prefect"]["apiUrl"] in text
    assert values["store"]["uri"] in text


def test_jobs_and_pods_have_the_label_that_is_asked_for():
    with ApiClient() as api:
        job = api.sanitize_for_serialization(job_manifest(MEASURE, PLAIN, SETTINGS))
    run = MEASURE.labels["run"]
    assert job["metadata"]["labels"]["collage.dev/run"] == run
    assert job["spec"]["template"]["metadata"]["labels"]["collage.dev/run"] == run


def test_deployments_have_the_names_that_are_asked_for():
    manifests = charts.render(charts.ALL, "collage")
    names = {
        manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "Deployment"
    }
    assert {"collage-worker", "collage-receiver"} <= names
