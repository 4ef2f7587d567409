"""The simulated day of the dashboard's picture: a queue with so many places, in Prometheus' own form."""

import re
from collections import Counter

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("httpx")

from benchmarks import run_dashboard


def test_no_more_runs_than_places_run_at_once():
    runs = run_dashboard.simulate()
    assert len(runs) == run_dashboard.RUNS
    for run in runs:
        assert run.due_s <= run.begun_s < run.ended_s
        beside = sum(other.begun_s <= run.begun_s < other.ended_s for other in runs)
        assert beside <= run_dashboard.PLACES
    assert any(run.begun_s > run.due_s for run in runs)


def test_a_simulated_day_is_one_that_prometheus_reads():
    lines = run_dashboard.openmetrics(0).splitlines()
    assert lines[-1] == "# EOF"
    line = re.compile(r'collage_runs_ended_total\{result="(\w+)",namespace="collage"\} (\S+) (\d+)')
    ended = Counter()
    for result, value, _ in filter(
        None, (match and match.groups() for match in map(line.match, lines))
    ):
        assert float(value) >= ended[result]  # a counter
        ended[result] = float(value)
    results = Counter(
        run.result for run in run_dashboard.simulate() if run.ended_s <= run_dashboard.DAY_S - 240
    )
    assert results["given_up"] > 2
    assert all(ended[result] >= count for result, count in results.items())
