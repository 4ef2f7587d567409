"""kill -9 of the flow and of the S3 server at random moments of a whole run; then the flow is run again.

Every round has a bucket of its own. What the second run finds there decides what it may measure: half of
the second runs are on another machine (another local folder), which knows nothing but the store.

There are `KILLS` rounds of each (`tests.kills`). What is compared is what assembled plans cost, interleaved
with the baselines: the sum of its kernels' costs is shown, but one kernel that was timed while others
worked makes it six times as large.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass

import pytest

pytest.importorskip("prefect")

from tests.flows.runs import Runs
from tests.kills import ALONE, KILLS, NOISE
from tests.servers.fixtures import running
from tests.store import versitygw
from tests.store.conftest import Bucket
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full

BUDGET_S = 180
"""Enough to measure all candidates: the test compares plans, not the progress of searches."""

AWAY_S = (0.5, 3.0, 20.0)
"""How long the S3 server is away: retries get over the shorter times."""


@dataclass(frozen=True)
class Round:
    """One kill: `first` is the end of the disturbed run, `known_costs` the number of costs after it."""

    moment_s: float
    first: str
    known_costs: int
    again: int
    total: int
    plan_s: float
    whole_s: float

    def line(self, number):
        return (
            f"  {number:5} {self.moment_s:7.1f} s  {self.first:10} {self.known_costs:8} {self.again:9} "
            f"{self.total:6} {self.plan_s * 1e6:8.1f} us {self.whole_s * 1e6:8.1f} us"
        )


HEAD = "  round    moment  first run     known  measured  total   predicted   assembled"


@pytest.fixture
def s3(tmp_path, credentials):
    """A server that may be killed: no other test uses it."""
    pytest.importorskip("boto3")
    with running(versitygw.Server, tmp_path / "s3") as created:
        yield created


@pytest.fixture
def make_runs(server, limit, s3, tmp_path):
    """Make runs against an empty bucket, with no slot of the environment taken."""
    import boto3

    client = boto3.client("s3", endpoint_url=s3.url, region_name="us-east-1")

    def make(name):
        client.create_bucket(Bucket=name)
        limit(slots=2)  # a killed run keeps its slot until its lease ends
        address = Bucket(name, client).address(s3.url, timeout_s=20)
        return Runs(server, address, tmp_path / name, measure_budget_s=BUDGET_S)

    yield make
    client.close()


@pytest.fixture
def undisturbed(make_runs):
    """Duration of an undisturbed run, and the latency of its bundle."""
    runs = make_runs("undisturbed")
    start = time.monotonic()
    reported = runs.end(runs.start())
    assert reported["state"] == "Completed", reported
    return time.monotonic() - start, reported["outcomes"][0]["result"]["functions"][0]["latency_s"][
        "collage"
    ]


def killed_flow(runs, moment_s, s3, chance):
    """Kill the flow; returns how it ended, "" where it was faster."""
    process = runs.start()
    time.sleep(moment_s)
    if process.poll() is not None:
        return ""
    runs.kill(process)
    return "killed"


def killed_server(runs, moment_s, s3, chance):
    """Kill the server under the flow, and start it again; the flow may survive that, or fail."""
    process = runs.start()
    time.sleep(moment_s)
    before = runs.costs()
    if process.poll() is not None:
        return ""
    s3.kill()
    time.sleep(chance.choice(AWAY_S))
    s3.start()
    assert set(before) <= set(runs.costs()), "costs are lost"
    reported = runs.end(process)
    assert reported["state"] == "Completed" or runs.address.split("/")[2] in reported["message"], (
        reported
    )
    return reported["state"]


@pytest.mark.slow
@pytest.mark.timeout(300 + 180 * KILLS)
@pytest.mark.parametrize("kill", [killed_flow, killed_server], ids=["flow", "S3 server"])
def test_killed_at_any_moment_it_goes_on_where_it_was(kill, make_runs, undisturbed, s3, capsys):
    run_s, whole_s = undisturbed
    chance = random.Random(os.getpid())
    say(
        capsys,
        f"\n  undisturbed: {run_s:.1f} s, assembled {whole_s * 1e6:.1f} us; seed {os.getpid()}",
    )
    say(capsys, HEAD)
    for number in range(KILLS):
        first = one_round(kill, make_runs, s3, number, run_s, chance)
        say(capsys, first.line(number + 1))
        if ALONE:
            assert whole_s / NOISE < first.whole_s < whole_s * NOISE, (first, whole_s)


def say(capsys, line):
    """Show a line at once: a round takes half a minute."""
    with capsys.disabled():
        print(line, flush=True)


def one_round(kill, make_runs, s3, number, run_s, chance):
    """Disturb a run, run it again, and check measurements and files of the second one."""
    first, latest_s = "", run_s
    while not first:  # a moment after the end is none
        moment_s = chance.uniform(1.0, latest_s)
        runs = make_runs(f"round-{number}-{moment_s:.3f}")
        first = kill(runs, moment_s, s3, chance)
        latest_s = min(latest_s, moment_s)
    before, own = runs.costs(), runs.measured()
    cache = "cache" if number % 2 else "elsewhere"
    reported = runs.end(runs.start(cache))
    assert reported["state"] == "Completed", reported
    (outcome,) = reported["outcomes"]
    again = runs.measured(cache) - (own if cache == "cache" else Counter())
    assert not again.keys() & before.keys(), "what was in the store was measured again"
    if cache == "cache":
        assert not again.keys() & own.keys(), "what was on this disk was measured again"
    assert set(again.values()) <= {1}, "the second run measured something twice"
    total = runs.costs()
    assert before.keys() <= total.keys(), "costs are lost"
    assert before.keys() | again.keys() <= total.keys()
    assert len(total) > 10
    runs.check_one_bundle(outcome)
    result = outcome["result"]
    return Round(
        moment_s, first, len(before), len(again), len(total), result["functions"][0]["predicted_s"],
        result["functions"][0]["latency_s"]["collage"],
    )  # fmt: skip


HOLDER = """
import time
from flows.settings import flow_settings
from flows.tasks import _slot
with _slot("local", flow_settings()):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_run_returns_its_slot_in_the_documented_time(
    server, limit, client, settings, capsys
):
    limit(slots=1)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], env={**os.environ, **server.environment},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "held\n"
    finally:
        process.kill()
        process.communicate()
    start = time.monotonic()
    held = lambda: client.read_global_concurrency_limit_by_name("collage-local").active_slots  # noqa: E731
    assert held() == 1
    wait_for(lambda: not held(), 90)
    seconds = time.monotonic() - start
    say(capsys, f"\n  the slot of a killed run was free after {seconds:.0f} s")
    assert seconds < settings.lease_s + 15 + 5
