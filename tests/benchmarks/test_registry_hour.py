"""The simulated hour of a registry: every version runs once, and a noisy team does not starve others."""

import pytest

pytest.importorskip("prefect")

from benchmarks.registry_hour import NOISY, QUIET, report, simulate
from tests.documents import ROOT


@pytest.fixture(scope="module")
def figures():
    return simulate(versions=60, at_once=2, total=6)


@pytest.mark.parametrize("policy", ["all at once", "turns"])
def test_every_version_runs_once(figures, policy):
    counts = {team: len(waited) for team, waited in figures[policy].waited_s.items()}
    assert counts == {NOISY: 48, **dict.fromkeys(QUIET, 3)}
    assert min(min(waited) for waited in figures[policy].waited_s.values()) >= 0


def test_turns_shorten_the_wait_of_quiet_teams(figures):
    longest = {
        policy: max(max(actual.waited_s[team]) for team in QUIET)
        for policy, actual in figures.items()
    }
    assert longest["turns"] < longest["all at once"] / 2
    assert figures["turns"].drained_s < 1.2 * figures["all at once"].drained_s


def test_the_tables_say_what_was_counted(figures):
    text = report(figures)
    assert f"| turns | {NOISY} | 48 |" in text
    assert "calls in the hour: registry read" in text
    assert figures["turns"].store_objects > 0


@pytest.mark.full
def test_the_document_has_the_tables_of_its_command():
    assert (
        report(simulate(versions=1000, at_once=8, total=32))
        in (ROOT / "docs" / "teams.md").read_text()
    )
