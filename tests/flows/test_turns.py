"""Turns of teams: a noisy team leaves room, and no place stays empty."""

from dataclasses import dataclass

import pytest

pytest.importorskip("prefect")

from flows.teams import Team, Teams
from flows.turns import take_turns


@dataclass(frozen=True)
class Version:
    team: str
    registered_s: float


def due(**counts):
    return [
        Version(team, float(number)) for team, count in counts.items() for number in range(count)
    ]


def started(versions, under_way=None, total=100, **teams):
    return take_turns(versions, under_way or {}, Teams(teams), total)


def names(versions):
    return "".join(version.team for version in versions)


def test_teams_take_turns_and_the_oldest_goes_first():
    starts = started([*reversed(due(a=3)), *due(b=2)], total=4)
    assert names(starts) == "abab"
    assert [version.registered_s for version in starts if version.team == "a"] == [0.0, 1.0]


def test_a_team_alone_fills_the_total():
    assert names(started(due(a=9), total=6)) == "aaaaaa"
    assert names(started(due(a=9), {"a": 4}, total=6)) == "aa"
    assert started(due(a=9), {"a": 7}, total=6) == []


def test_a_full_total_leaves_another_team_its_share():
    assert names(started(due(a=9, b=9), {"a": 6}, total=6)) == "bbb"
    assert names(started(due(b=9), {"a": 6, "b": 2}, total=6)) == "b"
    assert names(started(due(b=1, c=1, d=1), {"a": 2}, total=2)) == "bcd", "one each at least"


@pytest.mark.parametrize(("limit", "order"), [(1, "abbb"), (2, "ababb"), (None, "ababab")])
def test_a_team_has_at_most_its_runs(limit, order):
    assert names(started(due(a=3, b=3), a=Team(runs=limit))) == order


def test_a_team_with_priority_goes_first():
    order = names(started(due(a=2, b=2), b=Team(priority=1)))
    assert order == "bbaa"


def test_default_settings_are_for_every_other_team():
    assert names(started(due(a=3, b=1), default=Team(runs=2))) == "aba"


def test_nothing_due_starts_nothing():
    assert started([], {"a": 3}) == []
