"""The measurer against every way in which a candidate can go wrong, with real worker processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collage.cost import Cost, LocalCostTable, SharedCostTable
from collage.cost.cost_records import cost_checksum
from collage.errors import MeasureError, StoreError
from collage.measure.cache_flush import CacheFlush
from collage.measure.kernel_file import kernel_name
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import KernelFolder
from collage.store import open_store
from tests.support.measurers import ENVIRONMENT, FAULTS, UNSTORED, make_measurer


@pytest.fixture
def measurer(tmp_path):
    measurer = make_measurer(tmp_path)
    yield measurer
    measurer.close()


def built(folder: Path) -> list[str]:
    return (folder / "reference" / "built").read_text().splitlines()


@pytest.mark.parametrize("workers", [1, 2])
def test_faults_are_invalid_costs_and_the_batch_goes_on(tmp_path, workers):
    faults = FAULTS | UNSTORED
    batch = []
    for number, fault in enumerate(faults):
        batch += [
            MeasurementRequest("f", 1 << number, fault),
            MeasurementRequest("f", 1 << number, "good"),
        ]
    measurer = make_measurer(tmp_path, workers=workers)
    costs = measurer.measure(batch)
    measurer.close()
    for cost, reason in zip(costs[::2], faults.values(), strict=True):
        assert cost.is_invalid
        assert reason in cost.reason
    assert all(cost.is_valid for cost in costs[1::2])
    assert (measurer.measured, measurer.invalid) == (len(batch), len(faults))
    again = make_measurer(tmp_path, workers=workers)
    repeated_costs = again.measure(batch)
    again.close()
    assert again.measured == len(UNSTORED)
    assert again.cached == len(batch) - len(UNSTORED)
    assert [cost.reason for cost in repeated_costs] == [cost.reason for cost in costs]


def test_a_failed_build_is_an_invalid_cost_without_a_kernel_file(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    faults = {name: FAULTS[name] for name in ("refusing", "raising", "segfault", "abort", "hang")}
    requests = [
        MeasurementRequest("f", 1 << number, fault)
        for number, fault in enumerate([*faults, "good"])
    ]
    builder = make_measurer(tmp_path, kernels=KernelFolder(folder, builds=True), workers=2)
    *bad, good = builder.measure(requests)
    builder.close()
    for cost, reason in zip(bad, faults.values(), strict=True):
        assert cost.is_invalid
        assert reason in cost.reason
    assert good.is_valid
    assert [file.name for file in folder.iterdir()] == [kernel_name(requests[-1])]
    assert (builder.measured, builder.built, builder.invalid) == (6, 1, 5)


def test_the_candidate_of_a_killed_worker_is_tried_again(measurer):
    [cost] = measurer.measure([MeasurementRequest("f", 1, "killed_once")])
    assert cost.is_valid


def test_what_libraries_print_does_not_reach_the_pipe(measurer):
    [cost] = measurer.measure([MeasurementRequest("f", 1, "noisy")])
    assert cost.is_valid


def test_equal_works_are_measured_once(measurer, tmp_path):
    heard = []
    requests = [
        MeasurementRequest("f", 1, "good"),
        MeasurementRequest("f", 2, "good"),
        MeasurementRequest("f", 1, "good"),
    ]
    costs = measurer.measure(requests, lambda work, cost, cached: heard.append((work, cached)))
    assert costs[0] is costs[2]
    assert len(built(tmp_path)) == 2
    assert sorted(heard) == sorted(
        [(requests[0], False), (requests[0], True), (requests[1], False)]
    )
    assert (measurer.measured, measurer.cached) == (2, 1)


def test_workers_live_across_batches(measurer, tmp_path):
    for nodes in (1, 2, 4):
        measurer.measure([MeasurementRequest("f", nodes, "good")])
    assert len({line.split()[-1] for line in built(tmp_path)}) == 1


def test_conflicting_backends_run_in_different_processes(tmp_path):
    measurer = make_measurer(tmp_path, conflicts=True)
    requests = [MeasurementRequest("f", 1 << n, ("good", "noisy")[n % 2], "") for n in range(6)]
    costs = measurer.measure([*requests, MeasurementRequest("f", 1 << 7, "alone", "")])
    measurer.close()
    assert all(cost.is_valid for cost in costs)
    hosted = {}
    for line in built(tmp_path):
        name, _, pid = line.split(" ")[0], *line.split(" ")[-2:]
        hosted.setdefault(pid, set()).add(name)
    assert not [names for names in hosted.values() if {"good", "noisy"} <= names]
    assert len(hosted) <= 3, "requests that fit a worker go there before another one is started"


def test_an_idle_worker_that_was_killed_costs_nothing(measurer, tmp_path):
    measurer.measure([MeasurementRequest("f", 1, "good")])
    os.kill(int(built(tmp_path)[0].split()[-1]), signal.SIGKILL)
    time.sleep(0.1)
    [cost] = measurer.measure([MeasurementRequest("f", 2, "good")])
    assert cost.is_valid


def test_a_hopeless_kernel_is_not_timed_for_long(measurer):
    first, slow = measurer.measure(
        [MeasurementRequest("f", 1, "good"), MeasurementRequest("f", 1, "good", "20")]
    )
    assert first.seconds < slow.seconds
    assert 0.02 <= min(slow.samples) <= 0.2  # a sleep is late where the machine is busy
    assert len(slow.samples) == 2


def test_only_one_kernel_is_timed_at_a_time(tmp_path):
    # Enough work for several seconds: on a busy machine the second worker starts late.
    batch = [MeasurementRequest("f", 1 << n, "alone", "60") for n in range(20)]
    with_turns = make_measurer(tmp_path, workers=2)
    costs = with_turns.measure(batch)
    with_turns.close()
    assert [cost.reason for cost in costs] == [""] * len(batch)
    assert len({line.split()[-1] for line in built(tmp_path)}) == 2


@pytest.mark.parametrize("fault", ["refusing", "segfault", "hang"])
def test_a_failure_that_repeats_after_a_void_stays(tmp_path, fault):
    """A void names a cost by its content: two failures of one key must not be equal."""
    store = open_store(tmp_path / "store")
    request = MeasurementRequest("f", 1, fault)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        table = SharedCostTable(store, LocalCostTable(tmp_path / name), time.monotonic)
        measurer = make_measurer(tmp_path / name, table)
        key = measurer.key(request)
        [cost] = measurer.measure([request])
        measurer.close()
        assert measurer.measured == 1
        table = table.within(ENVIRONMENT)
        if name == "one":
            table.void(key, cost_checksum(key, cost))
            table.flush()
    (tmp_path / "three").mkdir()
    table = SharedCostTable(store, LocalCostTable(tmp_path / "three"), time.monotonic)
    assert table.within(ENVIRONMENT).get(key) == cost


@pytest.mark.parametrize(
    ("loader", "reason"),
    [("refuse", "the model file is gone"), ("die", "exit code 7"), ("absent", "absent")],
)
def test_workers_that_cannot_start_are_an_error(tmp_path, loader, reason):
    measurer = make_measurer(tmp_path, loader=f"tests.measure.fakes:{loader}")
    with pytest.raises(MeasureError, match=reason):
        measurer.measure([MeasurementRequest("f", 1, "good")])
    measurer.close()


def test_a_full_disk_stops_the_run_and_loses_nothing(measurer, tmp_path, monkeypatch):
    measurer.measure([MeasurementRequest("f", 1, "good")])
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", _no_space)
        with pytest.raises(StoreError, match="No space left"):
            measurer.measure([MeasurementRequest("f", 2, "good")])
    costs = measurer.measure(
        [MeasurementRequest("f", 1, "good"), MeasurementRequest("f", 2, "good")]
    )
    assert all(cost.is_valid for cost in costs)
    assert (measurer.measured, measurer.cached) == (2, 1)


def _no_space(file):
    raise OSError(28, "No space left on device")


PARENT = """
import sys
from pathlib import Path
from tests.support.measurers import make_measurer
from collage.measure.measurement_request import MeasurementRequest
from collage.store import open_store
measurer = make_measurer(Path(sys.argv[1]), workers=2)
measurer.measure([MeasurementRequest("f", n, "good", "5") for n in range(1, 200)])
"""


def test_a_second_machine_measures_nothing(tmp_path):
    batch = [
        MeasurementRequest("f", 1, "good"),
        MeasurementRequest("f", 2, "good"),
        MeasurementRequest("f", 4, "refusing"),
    ]
    costs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        store = open_store(tmp_path / "store")
        table = SharedCostTable(store, LocalCostTable(tmp_path / name), time.monotonic)
        measurer = make_measurer(tmp_path / name, table)
        costs.append(measurer.measure(batch))
        measurer.close()
    assert (measurer.measured, measurer.cached, measurer.invalid) == (0, 3, 1)
    assert [cost.seconds for cost in costs[0]] == [cost.seconds for cost in costs[1]]


def test_recall_takes_the_cost_of_the_nearest_cache_flush(
    tmp_path,
):
    far, half, mine = (MeasurementRequest("f", nodes, "good") for nodes in (1, 2, 4))
    table = LocalCostTable(tmp_path, ENVIRONMENT)
    costs = {}
    for size, requests in ((1, [far, half, mine]), (2, [half, mine]), (4, [mine]), (64, [far])):
        measurer = make_measurer(tmp_path, table, cache_flush=CacheFlush(size << 20))
        for work in requests:
            costs[size, work] = Cost(size * 1e-3)
            table.put(measurer.key(work), costs[size, work])
    measurer = make_measurer(tmp_path, table, cache_flush=CacheFlush(4 << 20, (2 << 20, 1 << 20)))
    unknown = MeasurementRequest("f", 8, "good")
    recalled = measurer.recall([far, half, mine, unknown])
    assert recalled[:3] == [costs[1, far], costs[2, half], costs[4, mine]]
    assert recalled[3].is_unknown
    assert (measurer.cached, measurer.measured) == (3, 0)
    (anew,) = measurer.measure([half])  # whoever asks for a measurement gets one
    measurer.close()
    assert anew not in costs.values()
    assert measurer.recall([half]) == [anew]


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_leaves_no_worker_and_is_resumed(tmp_path, ending):
    (tmp_path / "reference").mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stderr=subprocess.DEVNULL
    )
    path = LocalCostTable(tmp_path, ENVIRONMENT).path
    while not path.exists() or path.read_bytes().count(b"\n") < 12:
        assert parent.poll() is None
        time.sleep(0.02)
    parent.send_signal(ending)
    parent.wait(60)
    workers = {int(line.split()[-1]) for line in built(tmp_path)}
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{worker}/fd").exists() for worker in workers):
        if all(_is_zombie(worker) for worker in workers):
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    done = len(LocalCostTable(tmp_path, ENVIRONMENT)) - 1  # the boundary has a line too
    measurer = make_measurer(tmp_path, workers=2)
    measurer.measure([MeasurementRequest("f", n, "good", "5") for n in range(1, done + 4)])
    measurer.close()
    assert done > 5
    assert measurer.cached >= done - 2
    assert measurer.measured <= 5


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
