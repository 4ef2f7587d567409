"""Which candidates need a run: a table of states of the registry and of Prefect."""

import pytest

pytest.importorskip("prefect")

from collage.registry import ModelVersion, VersionStatus
from flows.reconcile_policy import (
    RunFact,
    options_tag,
    reason_to_start,
    start_key,
    version_nodes,
)

DONE = RunFact("9", "COMPLETED", "Completed")
BROKEN = RunFact("8", "CRASHED", "Crashed")
FAILED = RunFact("7", "FAILED", "Failed")
REJECTED = RunFact("6", "FAILED", "Rejected")
CANCELLED = RunFact("5", "CANCELLED", "Cancelled")
LIVE = RunFact("4", "RUNNING", "Running")
QUEUED = RunFact("3", "SCHEDULED", "Late")

OPTIMIZED = VersionStatus(status="optimized", environment="a=1,b=2")
RUNNING = VersionStatus(status="running")
BAD = VersionStatus(status="failed", reason="no such operator")
NEW = VersionStatus()
SAME, ASLEEP = {"a": "1", "b": "2"}, {"a": "", "b": ""}


@pytest.mark.parametrize(
    ("status", "runs", "nodes", "reason"),
    [
        (NEW, [], ASLEEP, "no run has taken it up"),
        (NEW, [LIVE], ASLEEP, ""),
        (NEW, [QUEUED, BROKEN], ASLEEP, ""),
        (RUNNING, [LIVE, DONE], ASLEEP, ""),
        (RUNNING, [BROKEN], ASLEEP, "interrupted (1 of 3"),
        (RUNNING, [FAILED, BROKEN, DONE], ASLEEP, "interrupted (2 of 3"),
        (RUNNING, [FAILED, BROKEN, BROKEN, DONE], ASLEEP, ""),
        (RUNNING, [DONE], ASLEEP, "its status was lost"),
        (BAD, [FAILED], ASLEEP, "interrupted"),
        (BAD, [REJECTED], SAME, ""),
        (BAD, [], SAME, ""),
        (NEW, [CANCELLED], ASLEEP, ""),
        (OPTIMIZED, [DONE], ASLEEP, ""),
        (OPTIMIZED, [], SAME, ""),
        (OPTIMIZED, [DONE], {"a": "1", "b": "3"}, "the environment changed: b"),
        (OPTIMIZED, [DONE], {"a": "1", "b": "2", "c": ""}, "not measured yet on c"),
        (OPTIMIZED, [LIVE], {"a": "1", "b": "3"}, ""),
        (OPTIMIZED, [DONE], {"a": "1"}, ""),
        (VersionStatus(status="not-faster", environment="a=1"), [DONE], {"a": "2"}, "changed: a"),
    ],
)
def test_reason_to_start(status, runs, nodes, reason):
    actual = reason_to_start(status, runs, nodes, attempts=3)
    assert reason in actual
    assert bool(actual) == bool(reason)


OLD = VersionStatus(status="failed", options_digest="old")
OTHER = RunFact("2", "FAILED", "Failed", options_tag("old"))
NEWER = RunFact("1", "CRASHED", "Crashed", options_tag("new"))


@pytest.mark.parametrize(
    ("status", "runs", "options", "reason"),
    [
        (OLD, [REJECTED], "old", ""),
        (OLD, [REJECTED], "new", "its options changed"),
        (OLD, [REJECTED], "", "its options changed"),
        (OLD, [CANCELLED, OTHER], "new", "its options changed"),
        (OLD, [LIVE, OTHER], "new", ""),
        (OLD, [NEWER, OTHER, OTHER, OTHER], "new", "interrupted (1 of 3"),
        (OLD, [NEWER, NEWER, NEWER, OTHER], "new", ""),
        (OPTIMIZED, [DONE], "new", "its options changed"),
        (VersionStatus(status="failed"), [REJECTED], "", ""),
        (NEW, [], "new", "no run has taken it up"),
    ],
)
def test_changed_options_are_a_reason(status, runs, options, reason):
    actual = reason_to_start(status, runs, SAME, attempts=3, options=options)
    assert reason in actual
    assert bool(actual) == bool(reason)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", SAME),
        ('{"dims": {"batch": 1}}', SAME),
        ("{", SAME),
        ('{"environments": ["b", "c"]}', {"b": "2", "c": ""}),
    ],
)
def test_only_environments_of_the_version_count(text, nodes):
    assert version_nodes(text, SAME) == nodes


def test_the_same_conclusion_has_the_same_key():
    version = ModelVersion("folder", "m", "1", "")
    assert start_key(version, [BROKEN], "") == start_key(version, [BROKEN, DONE], "")
    keys = {start_key(version, runs, "") for runs in ([], [BROKEN], [DONE])}
    keys.add(start_key(version, [], "models.collage"))
    assert len(keys) == 4
