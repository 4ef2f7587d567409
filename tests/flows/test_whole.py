"""A real model through the real flow: real measuring, real S3, real Prefect, processes that die.

COLLAGE_KILLS=10 kills ten times instead of three (a variable of this test alone).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from collage.cost.table import decode_lines
from collage.store import open_store
from collage.store.aliases import list_aliases
from collage.store.bundles import fetch_bundle, list_bundles
from tests.flows.conftest import OPTIONS
from tests.pipeline.test_compile import small_model

pytest.importorskip("prefect")

KILLS = int(os.environ.pop("COLLAGE_KILLS", "3"))


class Runs:
    """Runs of one model against one store, each in a process and with a local folder of its own."""

    def __init__(self, server, address, folder):
        self.address, self.folder = address, folder
        self.model = small_model(folder / "small.onnx")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("COLLAGE_")},
            **server.environment, "COLLAGE_STORE": address, "COLLAGE_THREADS": "1",
            "COLLAGE_PROGRESS_EVERY_S": "1", "COLLAGE_RETRY_DELAY_S": "0.1",
            "TEST_OPTIONS": json.dumps(OPTIONS),
        }  # fmt: skip

    def start(self, cache="cache"):
        return subprocess.Popen(
            [sys.executable, "-m", "tests.flows.runner", str(self.model)],
            env={**self._environment, "COLLAGE_CACHE_DIR": str(self.folder / cache)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip

    def end(self, process):
        text, _ = process.communicate(timeout=240)
        return json.loads(text.splitlines()[-1])

    def costs(self):
        """How often each cost is in the store."""
        store = open_store(self.address, writes=False)
        found = Counter()
        for entry in store.entries("costs/"):
            lines = decode_lines(store.read(entry.key).data)
            found.update({line[0] for line in lines if line})
        return found


@pytest.fixture
def runs(server, limit, s3_address, tmp_path):
    return Runs(server, s3_address, tmp_path)


def check_one_bundle(runs, outcome, tmp_path):
    store = open_store(runs.address)
    assert [*list_bundles(store)] == [outcome["result"]["bundle"]]
    if outcome["status"] == "optimized":
        (alias,) = list_aliases(store)
        assert (alias.name, alias.bundle) == (outcome["alias"], outcome["bundle"])
    import collage

    fetch_bundle(store, outcome["result"]["bundle"], tmp_path / "fetched")
    collage.load(tmp_path / "fetched").check()


def test_a_second_run_measures_nothing_and_publishes_nothing(runs, tmp_path):
    first = runs.end(runs.start())
    assert first["state"] == "Completed", first
    (outcome,) = first["outcomes"]
    check_one_bundle(runs, outcome, tmp_path)
    known = runs.costs()
    assert len(known) > 10
    start = time.monotonic()
    second = runs.end(runs.start("elsewhere"))
    assert time.monotonic() - start < 60
    assert second["outcomes"][0]["result"] == outcome["result"]
    assert runs.costs() == known
    assert not list(tmp_path.glob("elsewhere/costs/*.jsonl")), "nothing was measured there"


def test_two_at_once_measure_nothing_twice_and_publish_one_bundle(runs, tmp_path):
    both = [runs.start("one"), runs.start("two")]
    one, two = (runs.end(process) for process in both)
    assert (one["state"], two["state"]) == ("Completed", "Completed")
    assert one["outcomes"][0]["result"] == two["outcomes"][0]["result"]
    check_one_bundle(runs, one["outcomes"][0], tmp_path)
    assert set(runs.costs().values()) == {1}


def test_killed_at_any_moment_it_goes_on_where_it_was(runs, limit, tmp_path):
    limit(slots=KILLS + 1)  # a killed run keeps its slot until its lease ends
    chance = random.Random(os.getpid())
    for _ in range(KILLS):
        process = runs.start()
        time.sleep(chance.uniform(3.0, 16.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    last = runs.end(runs.start())
    assert last["state"] == "Completed", last
    check_one_bundle(runs, last["outcomes"][0], tmp_path)
    measured = Counter(
        key
        for file in tmp_path.glob("cache/costs/*.jsonl")
        for key in (line[0] for line in decode_lines(file.read_bytes()) if line)
    )
    assert len(measured) > 10
    assert set(measured.values()) == {1}, "a cost that was known was measured again"
    assert set(runs.costs()) <= set(measured)


def test_a_store_that_is_away_fails_the_run_with_what_to_do(server, limit, bucket, tmp_path):
    address = bucket.address("http://127.0.0.1:1", attempts=1)
    runs = Runs(server, address, tmp_path)
    found = runs.end(runs.start())
    assert found["state"] == "Failed"
    assert bucket.name in found["message"]
