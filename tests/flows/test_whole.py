"""A real model through the real flow: real measuring, real S3, real Prefect (kills: test_kills.py)."""

import time

import pytest

pytest.importorskip("prefect")

from tests.flows.leaks import Places
from tests.flows.runs import Runs

pytestmark = pytest.mark.full


@pytest.fixture
def runs(server, limit, s3_address, tmp_path):
    return Runs(server, s3_address, tmp_path)


def test_a_second_run_measures_nothing_and_publishes_nothing(runs, capsys):
    first, first_s = timed(runs)
    assert first["state"] == "Completed", first
    (outcome,) = first["outcomes"]
    runs.check_one_bundle(outcome)
    before = runs.costs()
    assert len(before) > 10
    assert set(before) == set(runs.measured())
    second, second_s = timed(runs, "elsewhere")
    assert second["outcomes"][0]["result"] == outcome["result"]
    assert runs.costs() == before
    again = len(runs.measured("elsewhere"))
    with capsys.disabled():
        print(
            f"\n  first run {first_s:.0f} s, {len(before)} costs; second {second_s:.0f} s, {again}"
        )
    assert again == 0
    assert second_s < 60


def timed(runs, cache="cache"):
    start = time.monotonic()
    return runs.end(runs.start(cache)), time.monotonic() - start


def test_two_concurrent_runs_measure_once_and_publish_one_bundle(runs):
    pair = [runs.start("one"), runs.start("two")]
    first, two = (runs.end(process) for process in pair)
    assert (first["state"], two["state"]) == ("Completed", "Completed")
    assert first["outcomes"][0]["result"] == two["outcomes"][0]["result"]
    runs.check_one_bundle(first["outcomes"][0])
    assert set(runs.costs().values()) == {1}


def test_a_store_that_is_away_fails_the_run_with_what_to_do(server, limit, bucket, tmp_path):
    address = bucket.address("http://127.0.0.1:1", attempts=1)
    runs = Runs(server, address, tmp_path)
    actual = runs.end(runs.start())
    assert actual["state"] == "Failed"
    assert bucket.name in actual["message"]


def test_wrong_credentials_fail_the_run_and_are_written_nowhere(
    server, limit, client, s3_address, tmp_path, monkeypatch
):
    """Where something fails, tracebacks and requests are written: here at the level DEBUG."""
    marked = "marked-wrong-secret-key-93bd"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", marked)
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    runs = Runs(server, s3_address, tmp_path / "runs")
    actual = runs.end(runs.start())
    assert actual["state"] == "Failed"
    assert "secret key is wrong" in actual["message"]
    assert marked not in actual["message"]
    places = Places()
    places.add_folder("run", runs.folder)
    places.add_folder("server", server.folder)
    places.add_prefect("prefect", client)
    assert {"prefect/logs", "prefect/flow_runs", "run/cache.log"} <= places.with_word(
        "secret key is wrong"
    )
    assert not places.with_word(marked)
