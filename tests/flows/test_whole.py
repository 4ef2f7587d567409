"""A real model through the real flow: real measuring, real S3, real Prefect (kills: test_kills.py)."""

import time

import pytest

pytest.importorskip("prefect")

from tests.flows.runs import Runs


@pytest.fixture
def runs(server, limit, s3_address, tmp_path):
    return Runs(server, s3_address, tmp_path)


def test_a_second_run_measures_nothing_and_publishes_nothing(runs, capsys):
    first, first_s = timed(runs)
    assert first["state"] == "Completed", first
    (outcome,) = first["outcomes"]
    runs.check_one_bundle(outcome)
    known = runs.costs()
    assert len(known) > 10
    assert set(known) == set(runs.measured())
    second, second_s = timed(runs, "elsewhere")
    assert second["outcomes"][0]["result"] == outcome["result"]
    assert runs.costs() == known
    again = len(runs.measured("elsewhere"))
    with capsys.disabled():
        print(
            f"\n  first run {first_s:.0f} s, {len(known)} costs; second {second_s:.0f} s, {again}"
        )
    assert again == 0
    assert second_s < 60


def timed(runs, cache="cache"):
    start = time.monotonic()
    return runs.end(runs.start(cache)), time.monotonic() - start


def test_two_at_once_measure_nothing_twice_and_publish_one_bundle(runs):
    both = [runs.start("one"), runs.start("two")]
    one, two = (runs.end(process) for process in both)
    assert (one["state"], two["state"]) == ("Completed", "Completed")
    assert one["outcomes"][0]["result"] == two["outcomes"][0]["result"]
    runs.check_one_bundle(one["outcomes"][0])
    assert set(runs.costs().values()) == {1}


def test_a_store_that_is_away_fails_the_run_with_what_to_do(server, limit, bucket, tmp_path):
    address = bucket.address("http://127.0.0.1:1", attempts=1)
    runs = Runs(server, address, tmp_path)
    found = runs.end(runs.start())
    assert found["state"] == "Failed"
    assert bucket.name in found["message"]
