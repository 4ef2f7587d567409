"""The teams' file, and what a team changes for its versions."""

import pytest

pytest.importorskip("prefect")

from collage.errors import OptionError
from collage.pipeline.version_options import VersionOptions
from collage.registry import UserTags, VersionStatus
from collage.store import open_store
from collage.store.usage import Usage, UsageRecord, WorkOwner, record_usage, today
from collage.store.usage_limits import DayUsage
from flows.reconcile_policy import RunFact
from flows.start_plan import plan_starts, version_team
from flows.teams import (
    Teams,
    parse_teams,
    read_teams,
    run_limits,
    team_environments,
    team_queues,
)
from tests.flows.fake_compile_service import registered

FILE = """
ocr: {prefixes: [ocr-], runs: 2, nodeSecondsPerDay: 100, environments: [gpu]}
text: {prefixes: [ocr-text-]}
default: {runs: 1}
"""


@pytest.fixture
def team_settings(settings, tmp_path, monkeypatch):
    (tmp_path / "teams.yaml").write_text(FILE)
    monkeypatch.setenv("COLLAGE_TEAMS_FILE", str(tmp_path / "teams.yaml"))
    monkeypatch.setenv("COLLAGE_LIMITS__TEAM_NODE_SECONDS", "5")
    monkeypatch.setenv("COLLAGE_LIMITS__TEAM_GPU_SECONDS", "7")
    from flows.settings import flow_settings

    return flow_settings()


@pytest.mark.parametrize(
    ("model", "tags", "team"),
    [
        ("other", UserTags(), ""),
        ("ocr-det", UserTags(), "ocr"),
        ("ocr-text-rec", UserTags(), "text"),
        ("ocr-det", UserTags(team="speech"), "speech"),
        ("ocr-det", UserTags('{"team": "vision"}', team="speech"), "vision"),
        ("ocr-det", UserTags("{"), "ocr"),
    ],
)
def test_a_versions_team(team_settings, model, tags, team):
    assert version_team(model, tags, read_teams(team_settings.teams_file)) == team


def test_a_team_has_limits_of_its_own(team_settings):
    limits = {(limit.node_s, limit.gpu_s) for limit in run_limits("ocr", team_settings)}
    assert limits == {(100.0, None), (None, 7.0)}
    assert run_limits("text", team_settings) == team_settings.limits.limits
    assert "nodeSecondsPerDay of the team 'ocr'" in run_limits("ocr", team_settings)[0].setting


def test_a_team_stays_in_its_environments(team_settings):
    assert team_environments(VersionOptions(), "ocr", team_settings) == ("gpu",)
    assert team_environments(VersionOptions(environments=("cpu",)), "text", team_settings) == (
        "cpu",
    )
    with pytest.raises(OptionError, match="'ocr' may not use the environment 'cpu', only gpu"):
        team_environments(VersionOptions(environments=("gpu", "cpu")), "ocr", team_settings)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "write a mapping"),
        ({1: {}}, "write a mapping"),
        ({"a": {"runs": 0}}, r"a\.runs"),
        ({"a": {"typo": 1}}, r"a\.typo"),
        ({"a": 3}, "a: "),
        ({"a": {"queue": "reconcile"}}, r"a\.queue"),
    ],
)
def test_a_wrong_file_names_its_place(content, reason):
    with pytest.raises(OptionError, match=f"teams.yaml: .*{reason}|teams.yaml: {reason}"):
        parse_teams(content, "teams.yaml")


def test_queues_stand_in_order_of_priority():
    teams = {"a": {"queue": "q2"}, "b": {"queue": "q1"}, "c": {"queue": "q3", "priority": 3}, "d": {},
             "e": {"queue": "q2", "priority": 9}}  # fmt: skip
    assert team_queues(parse_teams(teams, "")) == ["q3", "q2", "q1"]


def test_a_file_is_read_again_after_a_change(team_settings):
    file = team_settings.teams_file
    assert read_teams(file).of("ocr").runs == 2
    file.write_text("ocr: {runs: 7}\n# longer")
    assert read_teams(file).of("ocr").runs == 7
    file.unlink()
    with pytest.raises(OptionError, match="COLLAGE_TEAMS_FILE"):
        read_teams(file)


@pytest.fixture
def plan(team_settings, tmp_path):
    """Plan the starts of versions of these models."""
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")

    def make(*names, runs=None, usage=None):
        for name in names:
            registry = registered(team_settings, model, name)
        teams = read_teams(team_settings.teams_file)
        return plan_starts(registry, runs or {}, {}, team_settings, teams=teams, usage=usage)

    return make


def labels(versions):
    return [due.label for due in versions]


def test_runs_under_way_count_for_their_team(plan):
    live = {
        ("ocr-0", "1"): [RunFact("1", "RUNNING", team="ocr")],
        ("ocr-1", "1"): [RunFact("2", "SCHEDULED")],
        ("gone", "1"): [RunFact("3", "COMPLETED", team="ocr")],
    }
    actual = plan("ocr-0", "ocr-1", "ocr-2", "ocr-text-0", "other", "another", runs=live)
    assert sorted(labels(actual.starts)) == ["ocr-text-0 1", "other 1"]
    assert sorted(labels(actual.waiting)) == ["another 1", "ocr-2 1"]


def test_a_team_over_its_day_is_refused_and_others_go_on(plan, team_settings):
    store = open_store(team_settings.store)
    owner = WorkOwner("run", "ocr-9", "1", "ocr")
    usage = Usage.of(100.0, 1, 0)
    record_usage(store, UsageRecord(owner, "gpu", work="job", usage=usage, ended=today()))
    actual = plan("ocr-0", "other", usage=DayUsage(store, today()))
    assert labels(actual.starts) == ["other 1"]
    assert list(actual.refused) == ["ocr-0 1"]
    assert "the team 'ocr' has used 100 of 100 node-seconds" in actual.refused["ocr-0 1"]


def test_without_a_file_all_are_one_team(settings, tmp_path):
    assert Teams().of("anything").runs is None
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    registry = registered(settings, model, "a")
    registry.record_status(registry.find("a"), VersionStatus(status="optimized"))
    registered(settings, model, "b")
    plan = plan_starts(registry, {}, {}, settings, teams=Teams(), usage=None)
    assert labels(plan.starts) == ["b 1"]
