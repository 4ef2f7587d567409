"""Teams and limits of cost in the chart: what the values say reaches the settings of the flows."""

import json

import pytest
import yaml

pytest.importorskip("prefect")

from flows.settings import CostLimits
from flows.teams import Team, parse_teams
from tests.helm import charts

TEAMS = {
    "ocr": {"prefixes": ["ocr-"], "runs": 3, "nodeSecondsPerDay": 36000, "environments": ["cpu"]},
    "default": {"runs": 1},
}


def rendered(**values):
    """Return the variables of each container of Deployments that has COLLAGE_RUNS, and the teams' file."""
    manifests = charts.render({**charts.ENOUGH, **values})
    configs = [manifest["data"] for manifest in manifests if manifest["kind"] == "ConfigMap"]
    containers = [
        container
        for manifest in manifests
        if manifest["kind"] == "Deployment"
        for container in manifest["spec"]["template"]["spec"]["containers"]
    ]
    variables = [
        {item["name"]: item.get("value") for item in container.get("env", ())}
        for container in containers
    ]
    files = [config["teams.yaml"] for config in configs if "teams.yaml" in config]
    return [names for names in variables if "COLLAGE_RUNS" in names], files


def test_teams_and_limits_reach_the_flows():
    limits = {"runNodeSeconds": 7200, "teamGpuSeconds": 1e6, "dayNodeSeconds": None}
    workers, (file,) = rendered(teams=TEAMS, limits=limits, measuring={"runs": 32})
    assert workers
    for variables in workers:
        assert variables["COLLAGE_RUNS"] == "32"
        assert variables["COLLAGE_TEAMS_FILE"] == "/etc/collage/teams.yaml"
        stated = {
            name.removeprefix("COLLAGE_LIMITS__").lower(): value
            for name, value in variables.items()
            if name.startswith("COLLAGE_LIMITS__")
        }
        assert CostLimits.model_validate(stated) == CostLimits(
            run_node_seconds=7200, team_gpu_seconds=1e6
        )
    teams = parse_teams(yaml.safe_load(file), "the chart")
    assert teams.of("ocr").node_seconds_per_day == 36000
    assert teams.of("another").runs == 1


def test_without_teams_there_is_no_file():
    workers, files = rendered()
    assert files == []
    assert all("COLLAGE_TEAMS_FILE" not in variables for variables in workers)


def test_the_schema_has_exactly_the_fields_of_the_settings():
    properties = json.loads((charts.CHART / "values.schema.json").read_text())["properties"]
    team = properties["teams"]["additionalProperties"]["properties"]
    assert team.keys() == {field.alias for field in Team.model_fields.values()}
    limits = {name.replace("_", "") for name in CostLimits.model_fields}
    assert {name.lower() for name in properties["limits"]["properties"]} == limits
