"""The cost table against kills, full disks, damage and several writers at once."""

import json
import math
import os
import signal
import subprocess
import sys
import zlib
from dataclasses import fields, replace

import pytest

from collage.cost import Cost, CostKey, Environment, LocalCostTable, cost_key
from collage.cost.cost_records import encode_line
from collage.cost.lines import encode_entry
from collage.errors import StoreError
from tests.support.costs import ENVIRONMENT, MEASURED


@pytest.fixture
def table(tmp_path):
    return LocalCostTable(tmp_path, ENVIRONMENT)


def reopened(table):
    return LocalCostTable(table.root, table.environment)


COSTS = {
    "measured": MEASURED,
    "no interval": Cost(1e-6),
    "invalid": replace(Cost.invalid("crashed: SIGSEGV"), build_s=0.5),
    "a reason with lines": Cost.invalid('two\nlines, "quotes" and ünïcode'),
    "the least": Cost(1e-9, 1e-9, 1e-9),
}


@pytest.mark.parametrize("name", COSTS)
def test_another_process_reads_stored_costs(table, name):
    table.put(CostKey(name), COSTS[name])
    cost = reopened(table).get(CostKey(name))
    for field in fields(Cost):
        ours, theirs = getattr(COSTS[name], field.name), getattr(cost, field.name)
        assert ours == theirs or (math.isnan(ours) and math.isnan(theirs)), field.name


def test_each_line_is_flushed_before_the_put_returns(table, monkeypatch):
    flushed = []
    real = os.fdatasync

    def spy(file):
        real(file)
        flushed.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fdatasync", spy)
    sizes = []
    for number in range(3):
        table.put(CostKey(str(number)), MEASURED)
        sizes.append(table.path.stat().st_size)
    assert flushed == sizes
    assert sorted(set(sizes)) == sizes


def test_nothing_is_created_before_the_first_put(table):
    assert table.get(CostKey("k")) is None
    assert len(table) == 0
    assert not list(table.root.iterdir())


def test_unknown_costs_are_refused(table):
    with pytest.raises(ValueError, match="unknown"):
        table.put(CostKey("k"), Cost.unknown())
    assert not table.path.exists()


def test_the_later_line_of_a_key_holds(table):
    table.put(CostKey("k"), MEASURED)
    table.put(CostKey("k"), Cost.invalid("the driver changed"))
    assert reopened(table).get(CostKey("k")).reason == "the driver changed"
    assert len(reopened(table)) == 1


def test_two_open_tables_see_each_others_costs(table):
    second_table = reopened(table)
    assert second_table.get(CostKey("k")) is None
    table.put(CostKey("k"), MEASURED)
    assert second_table.get(CostKey("k")) == MEASURED


OTHER_ENVIRONMENTS = {
    "cpu": "another cpu",
    "cpu_features": "more",
    "cores": 4,
    "threads": 2,
    "driver": "12.4",
    "protocol": "cold-2",
}


def test_every_field_of_the_environment_is_varied_below():
    assert set(OTHER_ENVIRONMENTS) == {field.name for field in fields(Environment)}


@pytest.mark.parametrize("field", OTHER_ENVIRONMENTS)
def test_another_environment_is_a_miss(table, field):
    table.put(CostKey("k"), MEASURED)
    environment = replace(ENVIRONMENT, **{field: OTHER_ENVIRONMENTS[field]})
    assert table.within(environment).get(CostKey("k")) is None
    assert table.within(ENVIRONMENT).get(CostKey("k")) == MEASURED
    assert cost_key("r", "b", environment) != cost_key("r", "b", ENVIRONMENT)


def test_keys_are_stable_and_distinguish_their_parts():
    key = cost_key("region", "onnxruntime 1.31", ENVIRONMENT)
    # A store outlives this process: a changed key would forget every cost.
    assert key == "15de7f78b25281c79853efbd5119e9a459cf7759da224330d52ab89b32f6620a"
    assert key == cost_key("region", "onnxruntime 1.31", replace(ENVIRONMENT))
    parts = [("region", "onnxruntime 1.31"), ("regionon", "nxruntime 1.31"), ("region", "")]
    assert len({cost_key(*part, ENVIRONMENT) for part in parts}) == len(parts)


def flip(line):
    return line[:20] + bytes([line[20] ^ 1]) + line[21:]


def without_samples(line):
    """Return a line of another version: with a valid checksum but without a field."""
    entry = json.loads(line[9:])
    del entry["samples"]
    text = json.dumps(entry).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def not_an_object(line):
    return b"%08x []\n" % zlib.crc32(b"[]")


def not_a_number(line):
    text = line[9:].strip().replace(b'"seconds": 0.002', b'"seconds": NaN')
    return b"%08x %s\n" % (zlib.crc32(text), text)


def with_fields(**fields):
    """Return a change of a line to impossible values, with a valid checksum."""

    def change(line):
        text = json.dumps(json.loads(line[9:]) | fields).encode()
        return b"%08x %s\n" % (zlib.crc32(text), text)

    return change


def nested(line):
    text = b'{"key": "b", "samples": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return b"%08x %s\n" % (zlib.crc32(text), text)


DAMAGE = {
    "negative": with_fields(seconds=-5),
    "zero": with_fields(seconds=0, low=0, high=0),
    "a picosecond": with_fields(seconds=1e-12, low=1e-12, high=1e-12),
    "a year": with_fields(seconds=3e7),
    "more digits than a float has": with_fields(seconds=10**400),
    "a truth": with_fields(seconds=True),
    "a text": with_fields(seconds="soon"),
    "below its interval": with_fields(seconds=1e-4),
    "above its interval": with_fields(seconds=1e-2),
    "a negative sample": with_fields(samples=[2e-3, -1]),
    "samples that are none": with_fields(samples={"0": 1}),
    "a negative error": with_fields(error=-1.0),
    "a negative build": with_fields(build_s=-1.0),
    "a list for a key": with_fields(key=["b"]),
    "a number for a key": with_fields(key=7),
    "nested deeply": nested,
    "a flipped bit": flip,
    "a wrong checksum": lambda line: b"00000000" + line[8:],
    "no checksum": lambda line: line[9:],
    "zeros": lambda line: b"\0" * (len(line) - 1) + b"\n",
    "binary": lambda line: b"\xff\xfe\x85\x0b\n",
    "cut short": lambda line: line[: len(line) // 2] + b"\n",
    "another version": without_samples,
    "not an object": not_an_object,
    "not a number": not_a_number,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_line_is_counted_and_affects_no_other_line(table, kind, caplog):
    for key in "abc":
        table.put(CostKey(key), MEASURED)
    head, a, b, c = table.path.read_bytes().splitlines(keepends=True)
    table.path.write_bytes(head + a + DAMAGE[kind](b) + c)
    damaged = reopened(table)
    assert damaged.get(CostKey("a")) == MEASURED
    assert damaged.get(CostKey("b")) is None
    assert damaged.get(CostKey("c")) == MEASURED
    assert damaged.corrupt == 1
    assert [record.message.count("1 damaged records") for record in caplog.records] == [1]
    damaged.put(CostKey("b"), MEASURED)
    assert reopened(table).get(CostKey("b")) == MEASURED


def test_the_damage_of_a_batch_is_logged_in_one_line(table, caplog):
    table.put(CostKey("a"), MEASURED)
    table.path.write_bytes(table.path.read_bytes() + b"00000000 {}\n" * 500)
    assert len(reopened(table)) == 1
    (line,) = [record.message for record in caplog.records]
    assert "500 damaged records count as absent; the first: a line that does not check" in line


def test_a_line_of_a_newer_version_is_skipped_silently(table, caplog):
    table.put(CostKey("a"), MEASURED)
    table.path.write_bytes(table.path.read_bytes() + encode_entry({"histogram": [1], "of": "a"}))
    read_table = reopened(table)
    assert (len(read_table), read_table.corrupt, caplog.records) == (1, 0, [])


def test_further_fields_of_a_newer_version_are_ignored(table):
    table.path.parent.mkdir()
    line = with_fields(watts=40)(encode_line(CostKey("a"), MEASURED))
    table.path.write_bytes(line)
    assert reopened(table).get(CostKey("a")) == MEASURED


def test_a_truncated_line_is_a_miss_and_the_next_put_is_intact(table):
    table.put(CostKey("a"), MEASURED)
    first_size = table.path.stat().st_size
    table.put(CostKey("b"), MEASURED)
    content = table.path.read_bytes()
    for end in range(first_size, len(content) - 1, 7):
        table.path.write_bytes(content[:end])
        after = reopened(table)
        assert after.get(CostKey("b")) is None
        after.put(CostKey("c"), MEASURED)
        read_table = reopened(table)
        assert [read_table.get(CostKey(key)) is not None for key in "abc"] == [True, False, True]


def test_a_file_replaced_by_a_shorter_one_is_read_again(table):
    for key in "ab":
        table.put(CostKey(key), MEASURED)
    assert table.get(CostKey("b"))
    table.path.write_bytes(b"")
    second_table = reopened(table)
    second_table.put(CostKey("c"), MEASURED)
    assert table.get(CostKey("c")) == MEASURED


def test_a_folder_in_the_files_place_is_a_store_error(table):
    table.path.mkdir(parents=True)
    with pytest.raises(StoreError, match="--cache-dir"):
        table.get(CostKey("k"))
    with pytest.raises(StoreError, match="--cache-dir"):
        table.put(CostKey("k"), MEASURED)


WRITER = """
import sys
from pathlib import Path
from collage.cost import CostKey, LocalCostTable
from tests.support.costs import ENVIRONMENT, MEASURED
table = LocalCostTable(Path(sys.argv[1]), ENVIRONMENT)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    table.put(CostKey(f"{sys.argv[2]}-{number}"), MEASURED)
    print(number, flush=True)
"""


def writer(table, name, count):
    """Start a process that stores costs once it reads a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(table.root), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def start(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def test_two_processes_append_at_once(table):
    running = [writer(table, name, 300) for name in ("left", "right")]
    for process in running:
        start(process)
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert len(table) == 600
    assert table.corrupt == 0
    order = [json.loads(line[9:]).get("key", "") for line in table.path.read_bytes().splitlines()]
    sides = [key.partition("-")[0] for key in order if key]
    assert sides != sorted(sides), "the writers did not overlap: the test proves nothing"


@pytest.mark.parametrize("after", [1, 20, 90])
def test_a_kill_during_puts_loses_no_finished_line(table, after):
    with writer(table, "k", 100_000) as process:
        start(process)
        for line in process.stdout:
            if int(line) >= after:
                process.send_signal(signal.SIGKILL)
                break
        finished = max([after, *(int(line) for line in process.stdout.read().split())])
    assert [table.get(CostKey(f"k-{number}")) for number in range(finished + 1)] == (
        [MEASURED] * (finished + 1)
    )
    assert table.corrupt <= 1
    table.put(CostKey("next"), MEASURED)
    assert reopened(table).get(CostKey("next")) == MEASURED


FULL_DISK = """
import resource, sys
from pathlib import Path
from collage.cost import CostKey, LocalCostTable
from collage.errors import StoreError
from tests.support.costs import ENVIRONMENT, MEASURED
table = LocalCostTable(Path(sys.argv[1]), ENVIRONMENT)
limit = table.path.stat().st_size + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    table.put(CostKey("new"), MEASURED)
except StoreError as error:
    assert table.get(CostKey("new")) is None
    assert table.get(CostKey("old")) == MEASURED
    sys.exit(str(error))
"""


@pytest.mark.parametrize("room", [0, 1, 30])
def test_a_full_disk_is_a_store_error_and_changes_nothing(table, room):
    table.put(CostKey("old"), MEASURED)
    before = table.path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(table.root), str(room)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "cannot be written" in done.stderr
    assert "--cache-dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert table.path.read_bytes() == before
    table.put(CostKey("new"), MEASURED)
    assert reopened(table).get(CostKey("new")) == MEASURED


def test_a_full_disk_at_the_first_put_leaves_no_half_file(table, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fdatasync", full)
    with pytest.raises(StoreError, match="No space left"):
        table.put(CostKey("k"), MEASURED)
    assert table.path.stat().st_size == 0
    assert table.get(CostKey("k")) is None


def test_a_warm_lookup_reads_the_file_once(table):
    for number in range(200):
        table.put(CostKey(str(number)), MEASURED)
    fresh = reopened(table)
    assert len(fresh) == 200
    table.path.rename(table.path.with_suffix(".moved"))
    assert all(fresh.get(CostKey(str(number))) for number in range(200))
