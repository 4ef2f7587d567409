"""Usage records: listings alone add up, shared work counts once, and limits refuse with a reason."""

import json
import re
from datetime import date, timedelta

import pytest

from collage.cli import main
from collage.errors import LimitError
from collage.store import open_store
from collage.store.base import is_ours
from collage.store.usage import (
    Usage,
    UsageRecord,
    WorkOwner,
    day_prefix,
    label_value,
    list_run_usage,
    list_usage,
    record_usage,
    team_prefix,
    total,
    usage_by_place,
)
from collage.store.usage_limits import Limit, LimitCheck

DAY = date(2026, 11, 26)
OCR = WorkOwner("run-1", "resnet 18", "3", "ocr")


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path)


def use(store, owner=OCR, seconds=10.0, *, work="job-1", place="gpu", day=DAY):
    usage = Usage.of(seconds, cpus=2, gpus=1 if place == "gpu" else 0)
    record = UsageRecord(owner, place, work=work, usage=usage, ended=day)
    record_usage(store, record)
    return record


def test_a_listing_alone_adds_up(store, monkeypatch):
    use(store, seconds=10.5)
    use(store, seconds=2.25, work="job-2", place="gpu.build")
    use(store, WorkOwner("run-2", "other", "1", "speech"), 4.0, work="job-3")
    monkeypatch.setattr(store, "read", None)
    entries = list_usage(store, day_prefix(DAY))
    assert total(entries) == Usage(16.75, 33.5, 14.5)
    assert usage_by_place(list_run_usage(store, OCR, DAY, DAY)) == {
        "gpu": Usage(10.5, 21.0, 10.5), "gpu.build": Usage(2.25, 4.5, 0.0),
    }  # fmt: skip
    assert total(list_usage(store, team_prefix(DAY, "speech"))).node_s == 4.0
    assert total(list_usage(store, team_prefix(DAY, "none of them"))) == Usage()


def test_records_are_objects_of_the_store_with_full_names(store):
    record = use(store, WorkOwner("run-1", "Größe/é" * 40, "v 1", ""))
    assert is_ours(record.key)
    content = json.loads(store.read(record.key).data)
    assert (content["model"], content["team"], content["node_s"]) == ("Größe/é" * 40, "", 10.0)
    assert len(list_usage(store, day_prefix(DAY))) == 1


def test_work_that_two_runs_wait_for_counts_once(store):
    use(store, seconds=10.0)
    use(store, seconds=10.0)
    use(store, WorkOwner("run-2", "resnet 18", "3", "ocr"), 12.0)
    assert total(list_usage(store, day_prefix(DAY))).node_s == 12.0
    assert total(list_run_usage(store, OCR, DAY, DAY)).node_s == 10.0


def test_names_that_look_alike_are_told_apart(store):
    for number, team in enumerate(("a b", "a-b", "a/b", "A b")):
        use(store, WorkOwner("run", "m", "1", team), 1.0, work=f"job-{number}")
        assert total(list_usage(store, team_prefix(DAY, team))).node_s == 1.0


@pytest.mark.parametrize(
    "name", ["resnet18", "my model", "模型", "-", "x" * 63, "x" * 64, "a.", "_a", "a/b@c:d", " "]
)
def test_labels_are_valid_and_differ(name):
    value = label_value(name)
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)
    assert value != label_value(name + "!")


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (Limit("run", node_s=30.0), r"this run has used 30 of 30 node-seconds"),
        (Limit("model", gpu_s=39.0), r"the model 'resnet 18' has used 40 of 39 GPU-seconds"),
        (Limit("team", node_s=40.0, setting="X"), r"the team 'ocr' has used 42 of 40 .*raise X, or wait"),
        (Limit("day", node_s=42.0), r"all runs have used 43 of 42"),
        (Limit("run", node_s=30.1), ""),
        (Limit("model", node_s=40.1), ""),
        (Limit("team", gpu_s=42.1), ""),
        (Limit("day", node_s=43.1), ""),
    ],
)  # fmt: skip
def test_each_limit_refuses_what_reaches_it(store, limit, reason):
    use(store, seconds=30.0)
    use(store, WorkOwner("run-2", "resnet 18", "4", "ocr"), 10.0, work="job-2")
    use(store, WorkOwner("run-3", "other", "1", "ocr"), 2.0, work="job-3")
    use(store, WorkOwner("run-4", "third", "1", ""), 1.0, work="job-4")
    check = LimitCheck(store, OCR, (Limit("day", node_s=1e9), limit), DAY, lambda: DAY)
    if not reason:
        check.require_room()
        return
    with pytest.raises(LimitError, match=reason) as error:
        check.require_room()
    assert error.value.is_daily == (limit.scope != "run")


def test_a_new_day_has_room_and_a_run_keeps_its_days(store):
    use(store, seconds=30.0)
    tomorrow = DAY + timedelta(days=1)
    daily = Limit("team", node_s=30.0)
    LimitCheck(store, OCR, (daily,), DAY, lambda: tomorrow).require_room()
    with pytest.raises(LimitError):
        LimitCheck(store, OCR, (Limit("run", node_s=30.0),), DAY, lambda: tomorrow).require_room()


def test_the_command_prices_a_day(store, tmp_path, capsys):
    use(store, seconds=100.0)
    use(store, WorkOwner("run-2", "other", "1", "speech"), 50.0, work="job-2", place="cpu")
    command = ["usage", str(tmp_path), "--day", DAY.isoformat()]
    assert main([*command, "--price", "gpu=0.001", "--price", "cpu=0.0001", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["ocr"]["price"] == pytest.approx(0.1)
    assert rows["total"] == {
        "name": "total", "node_seconds": 150.0, "cpu_seconds": 300.0, "gpu_seconds": 100.0,
        "price": pytest.approx(0.105),
    }  # fmt: skip
    assert main([*command, "--by", "place", "--price", "gpu=0.001"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["cpu", "50.0", "100.0", "0.0"], ["gpu", "100.0", "200.0", "100.0", "0.1000"],
        ["total", "150.0", "300.0", "100.0"],
    ]  # fmt: skip
    assert main([*command, "--price", "gpu"]) == 2
