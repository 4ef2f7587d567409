"""What pods say of their work: which time counts as measuring, and which pace is unusual."""

import pytest

from collage.cluster.shard_reports import MIN_REPORTS, ShardReport, ShardReports, worked_s
from collage.cost import CostKey, Environment
from collage.store import open_store

ENVIRONMENT = Environment("cpu", "features", 4, 1, "", "cold-1")


def record(index, began=0.0, ended=10.0, before_s=1e-4, after_s=1e-4, gpu_s=None, **fields):
    gpu = {} if gpu_s is None else {"cuda": gpu_s}
    before, after = ({"cpu": time_s, **gpu} if time_s else {} for time_s in (before_s, after_s))
    return ShardReport(
        **{
            "batch": "b", "index": index, "pod": f"pod-{index}", "node": "n", "began": began,
            "ended": ended, "before_s": before, "after_s": after, "costs": {}, "built": 0,
            **fields,
        }
    )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path))


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0),
        ([(0, 10)], 10),
        ([(0, 10), (0, 10), (2, 5)], 10),
        ([(50, 60), (0, 10)], 20),  # a queue between them is free
        ([(0, 10), (9, 20), (30, 31)], 21),
    ],
)
def test_worked_time_is_the_union_of_intervals(spans, seconds):
    reports = [record(number, began, ended) for number, (began, ended) in enumerate(spans)]
    assert worked_s(reports) == seconds


def test_records_of_all_pods_are_found_by_batch(store):
    mine = ShardReports(store, ENVIRONMENT)
    first = record(0, costs={CostKey("k"): "0123abcd"})
    mine.put(first)
    mine.put(record(1, batch="other"))
    theirs = ShardReports(store, ENVIRONMENT)
    theirs.refresh()
    assert theirs.of({"b"}) == [first]
    assert [report.index for report in theirs.of({"b", "other"})] == [0, 1]
    nothing = ShardReports(store, Environment("cpu", "features", 8, 1, "", "cold-1"))
    nothing.refresh()
    assert nothing.of({"b"}) == []


def test_what_is_usual_takes_some_pods_and_none_that_build(store):
    records = ShardReports(store, ENVIRONMENT)
    for number in range(MIN_REPORTS - 1):
        records.put(record(number))
    records.put(record(7, before_s=0.0, after_s=0.0))
    records.refresh()
    assert records.typical_s() == {}
    records.put(record(8, before_s=5e-4, after_s=5e-4))
    records.refresh()
    assert records.typical_s() == {"cpu": 1e-4}
    for number in range(MIN_REPORTS):
        records.put(record(9 + number, gpu_s=3e-5))
    records.refresh()
    assert records.typical_s() == {"cpu": 1e-4, "cuda": 3e-5}


@pytest.mark.parametrize(
    ("before_s", "after_s", "change"),
    [(1.0, 1.0, 0.0), (1.0, 1.3, 0.3), (1.3, 1.0, 0.3), (0.5, 1.0, 1.0), (2.0, 0.5, 1.0)],
)
def test_control_times_before_and_after_count(before_s, after_s, change):
    actual, device = record(0, before_s=before_s, after_s=after_s).change({"cpu": 1.0})
    assert actual == pytest.approx(change)
    assert device == "cpu"


@pytest.mark.parametrize(
    ("cpu_s", "gpu_s", "change"),
    [(1.0, 3.0, (0.0, "cuda")), (1.0, 4.5, (0.5, "cuda")), (1.2, 3.3, (0.2, "cpu"))],
)
def test_the_worse_of_processor_and_gpu_counts(cpu_s, gpu_s, change):
    slow = record(0, before_s=cpu_s, after_s=cpu_s, gpu_s=gpu_s)
    actual, device = slow.change({"cpu": 1.0, "cuda": 3.0})
    assert actual == pytest.approx(change[0])
    assert device == change[1]
    assert slow.change({}) == (0.0, ""), "while nothing is usual, nothing is unusual"
