"""The chart in Argo CD and Flux: the page's examples install it, and two renderings are equal."""

import re

import pytest
import yaml

from tests.documents import shown_files
from tests.helm import charts

FILES = shown_files("docs/gitops.md")
DOCUMENTS = {
    document["kind"]: document for text in FILES.values() for document in yaml.safe_load_all(text)
}
ARGO_HOOKS = {"post-install": "PostSync", "post-upgrade": "PostSync", "pre-delete": "PreDelete"}
"""What Argo CD makes of Helm's hooks; it leaves the others out."""
RANDOM = ("rand", "uuid", "now", "date", "gen", "lookup", "htpasswd", "env", "getHostByName")


def test_the_page_shows_an_application_and_a_release():
    assert sorted(DOCUMENTS) == ["Application", "GitRepository", "HelmRelease"]


@pytest.mark.parametrize("kind", ["Application", "HelmRelease"])
def test_an_example_installs_the_chart(kind):
    spec = DOCUMENTS[kind]["spec"]
    helm = spec["source"]["helm"] if kind == "Application" else spec
    path = spec["source"]["path"] if kind == "Application" else spec["chart"]["spec"]["chart"]
    assert (charts.CHART.parents[1] / path).samefile(charts.CHART)
    values = helm["valuesObject"] if kind == "Application" else helm["values"]
    manifests = charts.render(values, name=helm["releaseName"], namespace="collage")
    assert "collage-worker" in dict(charts.pods(manifests))


def test_names_of_the_examples_agree():
    application = DOCUMENTS["Application"]
    helm = application["spec"]["source"]["helm"]
    assert helm["releaseName"] == application["metadata"]["name"]
    reference = DOCUMENTS["HelmRelease"]["spec"]["chart"]["spec"]["sourceRef"]
    assert reference["name"] == DOCUMENTS["GitRepository"]["metadata"]["name"]


@pytest.mark.parametrize("name", [*charts.EXAMPLES, *charts.HOSTILE])
def test_two_renderings_are_equal(name):
    values = charts.HOSTILE.get(name) or charts.example(name)
    assert charts.render(values) == charts.render(values)


def test_templates_are_neither_random_nor_ask_the_cluster():
    functions = re.compile(rf"[({{|]-?\s*({'|'.join(RANDOM)})[A-Za-z0-9]*\s")
    for file in (charts.CHART / "templates").rglob("*"):
        if file.is_file():
            assert not functions.search(file.read_text()), file.name
    assert functions.search("{{ randAlphaNum 8 }}")
    assert functions.search("{{- (lookup ...")


def test_argo_cd_runs_the_set_up_and_the_clean_up():
    phases = {}
    for manifest in charts.render(charts.ENOUGH):
        annotations = manifest["metadata"].get("annotations", {})
        if hooks := annotations.get("helm.sh/hook"):
            known = {ARGO_HOOKS[hook] for hook in hooks.split(",") if hook in ARGO_HOOKS}
            phases[manifest["metadata"]["name"]] = known
    assert phases.pop("collage-set-up") == {"PostSync"}
    assert phases.pop("collage-clean-up") == {"PreDelete"}
    assert set(map(frozenset, phases.values())) == {frozenset()}  # those of `helm test`
