"""A missing server skips a test, but fails it in CI."""

import pytest

from tests.servers.binaries import NotAsked, Unavailable
from tests.servers.fixtures import or_skip, running


@pytest.mark.parametrize(
    ("ci", "error", "outcome"),
    [
        ("", Unavailable, pytest.skip.Exception),
        ("true", Unavailable, pytest.fail.Exception),
        ("", NotAsked, pytest.skip.Exception),
        ("true", NotAsked, pytest.skip.Exception),
    ],
)
def test_a_missing_server_skips_but_fails_in_ci(monkeypatch, ci, error, outcome):
    monkeypatch.setenv("CI", ci)

    def start():
        raise error("no Go")

    with pytest.raises(outcome, match="no Go"), or_skip():
        start()
    with pytest.raises(outcome, match="no Go"), running(start):
        pass
