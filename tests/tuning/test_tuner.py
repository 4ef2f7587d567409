"""The tuner against crashes, hangs and kills: every finished trial stays, and nothing else is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collage.cost.lines import decode_entries
from collage.tuning.tuner import MAX_LOST_CONTEXTS, TuningLimits
from tests.backends.regions import _function, _weight, helper
from tests.support.waiting import wait_until
from tests.tuning.regions import ENVIRONMENT, place, trace

TRIALS = 4


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A place whose first convolution has had four trials."""
    folder = tmp_path_factory.mktemp("tuned")
    workspace = place(folder / "place", folder / "store")
    tuner = workspace.tuner()
    heard = []
    try:
        tuner.tune(workspace.work("Conv", "Relu"), TRIALS, on_trial=heard.append)
    finally:
        tuner.close()
    assert (tuner.trials, len(heard)) == (TRIALS, TRIALS)
    return workspace


def test_every_trial_is_recorded_and_one_worked(tuned):
    work = tuned.work("Conv", "Relu")
    records = tuned.records
    trials = records.of(tuned.tuner().workload(work))
    assert len(trials) == TRIALS
    assert trials[0].worked
    assert all(trial.trial_s > 0 and json.loads(trial.trace) for trial in trials)
    assert records.corrupt == 0


def test_a_second_search_tries_other_schedules(tuned, tmp_path):
    work, workload = tuned.work("Conv", "Relu"), tuned.tuner().workload(tuned.work("Conv", "Relu"))
    before = {record.trace for record in tuned.records.of(workload)}
    tuner = tuned.tuner()
    try:
        tuner.tune(work, 2)
    finally:
        tuner.close()
    assert len({record.trace for record in tuned.records.of(workload)} - before) == 2


def test_equal_kernels_of_two_models_share_records(tuned, tmp_path):
    nodes = [
        helper.make_node("Sigmoid", ["image"], ["first"]),
        helper.make_node("Conv", ["first", "other", "bias"], ["sum"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    weights = [_weight("other", 8, 3, 3, 3), _weight("bias", 8)]
    shapes = {"image": (1, 3, 10, 10)}, {"y": (1, 8, 10, 10)}
    (tmp_path / "other").mkdir()
    function = _function(tmp_path / "other", nodes, *shapes, weights)
    workspace = place(tmp_path / "other", tuned.store, function)
    mine = tuned.tuner().workload(tuned.work("Conv", "Relu"))
    theirs = workspace.tuner().workload(workspace.work("Conv", "Relu"))
    assert mine == theirs
    assert workspace.records.best(theirs) == tuned.records.best(mine)
    assert workspace.tuner().workload(workspace.work("Conv")) != mine


def test_the_deadline_ends_a_search(tmp_path):
    workspace = place(tmp_path / "place", tmp_path / "store")
    tuner = workspace.tuner()
    start = time.monotonic()
    try:
        tuner.tune(workspace.work("Conv"), 10_000, start + 8.0)
        assert time.monotonic() - start < 10.0
        assert tuner.trials == len(workspace.records.of(tuner.workload(workspace.work("Conv"))))
        tuner.tune(workspace.work("Conv"), 1, time.monotonic() - 1.0)
        assert time.monotonic() - start < 30.0
    finally:
        tuner.close()


@pytest.mark.parametrize(
    ("child", "ended"),
    [
        ("crash", "crashed: SIGABRT"),
        ("hang", "timed out after 1 s"),
        ("eat", "needs more than 0.5 GiB of memory"),
        ("be_killed", ""),
    ],
)
def test_a_faulty_worker_ends_the_trials_of_its_workload(tmp_path, child, ended):
    workspace = place(tmp_path / "place", tmp_path / "store")
    limits = TuningLimits(silence_s=60.0 if child == "eat" else 1.0, memory_bytes=1 << 29)
    tuner = workspace.tuner(limits=limits, child=f"tests.tuning.children.{child}")
    work = workspace.work("Conv")
    try:
        tuner.tune(work, 8)
    finally:
        tuner.close()
    workload = tuner.workload(work)
    assert [record.trace for record in workspace.records.of(workload)] == [trace(2), trace(1)]
    assert workspace.records.ended(workload).startswith(ended)
    assert bool(workspace.records.ended(workload)) == bool(ended)


@pytest.mark.parametrize(
    ("trials", "worked", "lost"),
    [(5, 3, 2), (100, MAX_LOST_CONTEXTS, MAX_LOST_CONTEXTS)],
    ids=["some", "all"],
)
def test_a_schedule_that_loses_the_gpu_is_one_failed_trial(tmp_path, trials, worked, lost):
    """New children go on with the rest; a workload whose schedules all do it is given up."""
    workspace = place(tmp_path / "place", tmp_path / "store")
    tuner = workspace.tuner(child="tests.tuning.children.lose")
    work = workspace.work("Conv")
    try:
        tuner.tune(work, trials)
    finally:
        tuner.close()
    workload = tuner.workload(work)
    records = workspace.records.of(workload)
    assert [record.worked for record in records] == [True] * worked + [False] * lost
    assert (tuner.trials, tuner.failed) == (worked + lost, lost)
    assert {record.reason for record in records[worked:]} == {"an illegal address (700)"}
    gave_up = f"{MAX_LOST_CONTEXTS} schedules crashed, the last: an illegal address (700)"
    assert workspace.records.ended(workload) == ("" if trials == 5 else gave_up)


PROGRAM = """
import sys
from pathlib import Path
from tests.tuning.regions import place
here = place(Path(sys.argv[1]), Path(sys.argv[2]))
tuner = here.tuner()
print(tuner.workload(here.work("Conv", "Relu")), flush=True)
tuner.tune(here.work("Conv", "Relu"), 10_000)
"""


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def whole_lines(file: Path) -> int:
    if not file.is_file():
        return 0
    return sum(bool(line) and "workload" in line for line in decode_entries(file.read_bytes()))


@pytest.mark.parametrize(
    "after", [1, *(pytest.param(count, marks=pytest.mark.full) for count in (5, 12))]
)
def test_records_of_a_killed_tuner_are_complete_and_continued(tmp_path, after):
    """Killed for real (SIGKILL), at whatever it is doing some moments after so many trials."""
    store = tmp_path / "store"
    file = store / "tuning" / f"{ENVIRONMENT.digest}.jsonl"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "place"), str(store)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    workload = running.stdout.readline().strip()
    wait_until(lambda: whole_lines(file) >= after, 60, every_s=0.003)
    line_count, (child,) = whole_lines(file), children_of(running.pid)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    running.stdout.close()
    assert wait_until(lambda: is_gone(child), 60, every_s=0.01)
    workspace = place(tmp_path / "again", store)
    records = workspace.records
    before = {record.trace for record in records.of(workload)}
    assert len(before) >= line_count >= after
    tuner = workspace.tuner(records)
    try:
        tuner.tune(workspace.work("Conv", "Relu"), 3)
    finally:
        tuner.close()
    assert tuner.trials == 3
    assert before < {record.trace for record in workspace.records.of(workload)}
    assert workspace.records.corrupt <= 1
