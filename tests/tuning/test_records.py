"""Tuning records: what is written is there, whatever else happens to the file or the store."""

import math

import pytest

from collage.cost.batches import compact
from collage.store import open_store
from collage.tuning.records import TuningRecord, TuningRecords, workload_digest
from tests.support.costs import KEYS
from tests.tuning.regions import ENVIRONMENT, trace

W, OTHER = workload_digest("region", "tvm 1"), workload_digest("region", "tvm 2")


def record(latency_s, text=None, workload=W, reason=""):
    return TuningRecord(workload, trace(1) if text is None else text, latency_s, 0.5, reason)


def test_the_fastest_trial_is_the_best_and_failed_ones_are_kept(tmp_path):
    records = TuningRecords(tmp_path, ENVIRONMENT)
    records.add(record(math.inf, trace(0), reason="wrong numbers"), "tvm 1")
    assert records.best(W) is None
    records.add(record(3e-6, trace(1)), "tvm 1")
    records.add(record(2e-6, trace(2)), "tvm 1")
    again = TuningRecords(tmp_path, ENVIRONMENT)
    assert again.best(W) == record(2e-6, trace(2))
    assert [record.trace for record in again.of(W)] == [trace(2), trace(1), trace(0)]
    assert again.of(W)[-1].reason == "wrong numbers"


def test_two_records_at_once_see_each_other(tmp_path):
    first, second = (TuningRecords(tmp_path, ENVIRONMENT) for _ in range(2))
    first.add(record(2e-6), "tvm 1")
    assert second.best(W) == record(2e-6)
    second.add(record(1e-6, trace(7)), "tvm 1")
    assert first.best(W).trace == trace(7)


def test_another_toolchain_or_environment_is_a_miss(tmp_path):
    TuningRecords(tmp_path, ENVIRONMENT).add(record(2e-6), "tvm 1")
    assert TuningRecords(tmp_path, ENVIRONMENT).best(OTHER) is None
    environment = type(ENVIRONMENT)("cpu", "", 1, 1, "", "")
    assert TuningRecords(tmp_path, environment).best(W) is None


def test_equal_latencies_have_one_best_whatever_the_order(tmp_path):
    best = []
    for name, traces in (("a", (trace(2), trace(1))), ("b", (trace(1), trace(2)))):
        records = TuningRecords(tmp_path / name, ENVIRONMENT)
        for text in traces:
            records.add(record(2e-6, text), "tvm 1")
        best.append(records.best(W))
    assert best[0] == best[1]


def test_the_end_of_a_workload_is_told(tmp_path):
    records = TuningRecords(tmp_path, ENVIRONMENT)
    assert records.ended(W) == ""
    records.add(record(2e-6), "tvm 1")
    records.add(record(math.inf, "", reason="crashed: SIGSEGV"), "tvm 1")
    again = TuningRecords(tmp_path, ENVIRONMENT)
    assert again.ended(W) == "crashed: SIGSEGV"
    assert again.best(W) == record(2e-6)
    assert len(again.of(W)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:-9],
        lambda line: line.replace(b"latency_s", b"latency_x"),
        lambda line: b"00000000" + line[8:],
        lambda line: b"\xff\xfe" + line,
        lambda line: b"",
    ],
)
def test_a_damaged_line_is_a_miss_and_reaches_no_other(tmp_path, damage):
    records = TuningRecords(tmp_path, ENVIRONMENT)
    records.add(record(1e-6, trace(1)), "tvm 1")
    records.add(record(2e-6, trace(2)), "tvm 1")
    (file,) = (tmp_path / "tuning").iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    changed = damage(lines[1])
    file.write_bytes(
        b"".join([lines[0], changed, *([] if changed[-1:] == b"\n" else [b"\n"]), lines[2]])
    )
    again = TuningRecords(tmp_path, ENVIRONMENT)
    assert again.best(W) == record(2e-6, trace(2))
    assert len(again.of(W)) == 1
    assert again.corrupt == (1 if changed else 0)


@pytest.mark.parametrize(
    "entry",
    [
        {"workload": W},
        {"workload": W, "trace": [[], []], "latency_s": -1.0, "trial_s": 0.1},
        {"workload": W, "trace": [[], []], "latency_s": "soon", "trial_s": 0.1},
        {"workload": W, "trace": [[], []], "latency_s": 1e-6},
    ],
)
def test_a_whole_line_that_is_no_record_is_a_miss(tmp_path, entry):
    from collage.cost.lines import LineFile, encode_entry

    records = TuningRecords(tmp_path, ENVIRONMENT)
    LineFile(tmp_path / "tuning" / f"{ENVIRONMENT.digest}.jsonl", "x").append(encode_entry(entry))
    assert records.best(W) is None
    assert records.corrupt == 1


def test_machines_share_records_through_a_store(tmp_path):
    store = open_store(str(tmp_path / "shared"))
    first = TuningRecords(tmp_path / "one", ENVIRONMENT, store, keys=KEYS)
    two = TuningRecords(tmp_path / "two", ENVIRONMENT, store, keys=KEYS)
    first.add(record(2e-6), "tvm 1")
    first.flush()
    assert two.best(W) == record(2e-6)
    assert not (tmp_path / "two").exists()


def test_batches_of_records_are_merged_and_nothing_is_lost(tmp_path):
    store = open_store(str(tmp_path / "shared"))
    first = TuningRecords(tmp_path / "one", ENVIRONMENT, store, keys=KEYS)
    for number in range(4):
        first.add(record((4 - number) * 1e-6, trace(number)), "tvm 1")
        first.flush()
    assert compact(store, 0.0, at_least=2) == 3
    assert len(TuningRecords(tmp_path / "two", ENVIRONMENT, store, keys=KEYS).of(W)) == 4


def test_a_damaged_batch_is_a_miss(tmp_path):
    store = open_store(str(tmp_path / "shared"))
    first = TuningRecords(tmp_path / "one", ENVIRONMENT, store, keys=KEYS)
    for text in (trace(1), trace(2)):
        first.add(record(2e-6, text), "tvm 1")
        first.flush()
    file = sorted((tmp_path / "shared").rglob("tuning/**/*.jsonl"))[0]
    file.write_bytes(file.read_bytes()[:-20])
    two = TuningRecords(tmp_path / "two", ENVIRONMENT, store, keys=KEYS)
    assert len(two.of(W)) == 1
    assert two.corrupt == 1
