"""Values: four are enough, typos are refused, and the page about them is current."""

import importlib.util
import re

import helm_python
import jsonschema
import pytest
import yaml

from tests.helm import charts


def merged(*path_and_value):
    """The four values, and one more at a path."""
    *path, value = path_and_value
    values = {key: dict(content) for key, content in charts.ENOUGH.items()}
    inner = values
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    return values


@pytest.mark.parametrize("missing", ["image", "store", "prefect", "signing"])
def test_each_of_the_four_is_asked_for(missing):
    values = {key: content for key, content in charts.ENOUGH.items() if key != missing}
    with pytest.raises(helm_python.HelmError, match=rf"{missing}\.\w+ is required"):
        charts.render(values)


def test_without_a_key_it_says_how_one_is_made():
    values = {key: content for key, content in charts.ENOUGH.items() if key != "signing"}
    with pytest.raises(helm_python.HelmError) as raised:
        charts.render(values, namespace="team")
    for command in (
        "openssl genpkey -algorithm ed25519 -out key.pem",
        "kubectl create secret generic collage-signing --namespace team --from-file=key.pem=key.pem",
        "--set signing.existingSecret=collage-signing",
        "--set signing.enabled=false",
    ):
        assert command in str(raised.value)


def _objects(schema, path=()):
    """All closed objects of the schema."""
    if schema.get("type") == "object" and "properties" in schema:
        yield path, schema
        for key, inner in schema["properties"].items():
            yield from _objects(inner, (*path, key))


SCHEMA = yaml.safe_load((charts.CHART / "values.schema.json").read_text())
CLOSED = dict(_objects(SCHEMA))


@pytest.mark.parametrize("path", CLOSED, ids=lambda path: ".".join(path) or "top")
def test_a_typo_is_refused_everywhere(path):
    values = merged(*path, "tpyo", True)
    with pytest.raises(helm_python.HelmError, match="tpyo"):
        charts.render(values)


@pytest.mark.parametrize(
    "wrong",
    [
        ("measuring", "environments", "cpu", "treads", 4),
        ("measuring", "environments", "Upper_Case", {}),
        ("measuring", "environments", "cpu", "cpu", "2"),
        ("measuring", "environments", "cpu", "memory", "4 GB"),
        ("measuring", "environments", "cpu", "device", "gpu"),
        ("measuring", "environments", "gpu", {"device": "cuda"}),
        ("measuring", "environments", "gpu", {"device": "cuda", "gpuResource": ""}),
        ("receiver", "device", "gpu"),
        ("schedules", "reconcile", "often"),
        ("store", "uri", "s3://key:secret@bucket/prefix"),
        ("store", "uri", "minio:9000"),
        ("prefect", "apiUrl", "http://user:password@prefect/api"),
        ("worker", "replicas", "two"),
        ("worker", "extraEnv", [{"name": "A", "valeu": "b"}]),
        ("receiver", "existingSecret", "Not A Name"),
        ("image", "pullPolicy", "always"),
        ("externalSecrets", [{"name": "a", "data": {"K": {"key": "k"}}}]),
    ],
    ids=lambda wrong: ".".join(map(str, wrong[:-1])),
)
def test_a_wrong_value_is_refused(wrong):
    with pytest.raises(helm_python.HelmError):
        charts.render(merged(*wrong))


def test_the_schema_knows_every_value_and_every_default_fits():
    values = yaml.safe_load((charts.CHART / "values.yaml").read_text())
    jsonschema.validate(values, SCHEMA)
    for path, schema in CLOSED.items():
        inner = values
        for key in path:
            inner = (inner or {}).get(key, {})
        if isinstance(inner, dict) and inner and "properties" in schema:
            before = set(schema["properties"]) - {"global"}
            assert (path and set(inner) <= before) or set(inner) == before, path


def test_environments_are_those_that_the_cluster_reads():
    """A field of the schema is a field of collage.cluster, and the other way round."""
    environments = pytest.importorskip("collage.cluster.controller.environments")
    fields = environments.MeasuringEnvironment.model_fields
    pattern = SCHEMA["properties"]["measuring"]["properties"]["environments"]["patternProperties"]
    (schema,) = pattern.values()
    assert set(schema["properties"]) == {field.alias or name for name, field in fields.items()}


def test_the_readme_is_current_and_complete():
    spec = importlib.util.spec_from_file_location("readme", charts.CHART.parent / "readme.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["readme"] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        assert (charts.CHART / "README.md").read_text() == module.readme(), "run make chart-docs"
        assert module.DEFAULTS.read_text() == module.defaults(), "run make chart-docs"
        described = {described_value.path for described_value in module.values()}
    finally:
        del sys.modules["readme"]
    keys = re.findall(r"^(\w+):", (charts.CHART / "values.yaml").read_text(), re.M)
    assert {path.split(".")[0] for path in described} == set(keys)
