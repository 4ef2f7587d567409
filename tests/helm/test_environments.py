"""The measuring environments of the chart: those of the values alone, and their fields."""

import json
import re

import pytest
import yaml

from collage.cluster.controller.environments import (
    BuildSettings,
    MeasuringEnvironment,
    parse_environments,
)
from tests.helm import charts

DEFAULT_ENVIRONMENTS = {"cpu": {"threads": 1, "cpu": 2, "memory": "4Gi"}}


def rendered_environments(values):
    configs = [manifest for manifest in charts.render(values) if manifest["kind"] == "ConfigMap"]
    (file,) = [config for config in configs if "environments.yaml" in config["data"]]
    return yaml.safe_load(file["data"]["environments.yaml"])


@pytest.mark.parametrize("name", charts.EXAMPLES)
def test_an_example_has_its_own_environments_alone(name):
    """Helm merges maps: a default in values.yaml would be measured beside the user's."""
    example = charts.example(name)
    environments = example.get("measuring", {}).get("environments") or DEFAULT_ENVIRONMENTS
    assert rendered_environments(example) == environments
    listed = re.search(r"measures in: (.*)\.$", charts.notes(example), re.M)[1]
    assert listed.split(", ") == sorted(environments)


def test_without_environments_there_is_one_for_processors():
    assert rendered_environments(charts.ENOUGH) == DEFAULT_ENVIRONMENTS
    without = {**charts.ENOUGH, "measuring": {"environments": {"cpu": None}}}
    assert rendered_environments(without) == DEFAULT_ENVIRONMENTS
    others = {**charts.ENOUGH, "measuring": {"environments": {"cpu": None, "pool": {"threads": 4}}}}
    assert rendered_environments(others) == {"pool": {"threads": 4}}


def test_the_environments_reach_the_worker_as_given():
    content = rendered_environments(charts.example("nvidia-gpu"))
    devices = {
        name: parse_environment.device
        for name, parse_environment in parse_environments(content, "here").items()
    }
    assert devices == {"h200": "cuda", "cpu": "cpu"}


def test_the_schema_has_exactly_the_fields_of_an_environment():
    schema = json.loads((charts.CHART / "values.schema.json").read_text())
    environments = schema["properties"]["measuring"]["properties"]["environments"]
    (first,) = environments["patternProperties"].values()
    for fields, model in (
        (first["properties"], MeasuringEnvironment),
        (first["properties"]["build"]["properties"], BuildSettings),
    ):
        assert fields.keys() == {field.alias for field in model.model_fields.values()}
