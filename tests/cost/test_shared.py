"""Costs of several machines in one store; each machine is a table with its own local folder."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import pytest

from collage.cost import Cost, CostKey, Environment, LocalCostTable, SharedCostTable
from collage.cost.batches import READ_EVERY_S, SEND_AT, SEND_EVERY_S, compact
from collage.cost.cost_records import cost_checksum
from collage.cost.shared import costs_prefix
from collage.errors import StoreError
from collage.store import open_store

ENVIRONMENT = Environment("cpu", "avx2", 4, 1, "", "1")
OTHER = Environment("cpu", "avx512", 4, 1, "", "1")
K = CostKey("k")


def cost(seconds, width=0.1, **fields):
    return Cost(seconds, seconds * (1 - width / 2), seconds * (1 + width / 2), (seconds,), **fields)


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


@pytest.fixture
def machine(store, tmp_path, clock):
    def make(name, environment=ENVIRONMENT):
        return SharedCostTable(store, LocalCostTable(tmp_path / name, environment), clock)

    return make


def batches(store, environment=ENVIRONMENT):
    return sorted(entry.key for entry in store.entries(costs_prefix(environment)))


@pytest.mark.parametrize(
    "put", [cost(2e-3), cost(2e-3, build_s=1.5), Cost.invalid("wrong numbers: 1e3"), Cost(1e-3)]
)
def test_flushed_costs_reach_another_machine(machine, put):
    writer, reader = machine("one"), machine("two")
    writer.put(K, put)
    writer.flush()
    cost_read = reader.get(K)
    assert repr(cost_read) == repr(put)  # NaN bounds are equal as text
    assert len(reader) == 1


def test_an_environment_sees_its_own_costs(machine):
    writer = machine("one")
    writer.put(K, cost(1.0))
    writer.within(OTHER).put(K, cost(2.0))
    writer.flush()
    reader = machine("two")
    assert reader.get(K).seconds == 1.0
    assert reader.within(OTHER).get(K).seconds == 2.0
    assert reader.within(ENVIRONMENT) is reader


def test_a_cost_is_on_the_local_disk_before_it_is_shared(machine, store, tmp_path):
    machine("one").put(K, cost(1.0))
    assert batches(store) == []
    assert LocalCostTable(tmp_path / "one", ENVIRONMENT).get(K).seconds == 1.0
    assert machine("one").get(K).seconds == 1.0


def test_costs_go_in_batches(machine, store, clock):
    table = machine("one")
    for number in range(SEND_AT + 1):
        table.put(CostKey(f"{number}"), cost(1.0))
    assert len(batches(store)) == 1
    clock.seconds += SEND_EVERY_S
    table.put(CostKey("late"), cost(1.0))
    assert len(batches(store)) == 2
    table.flush()
    assert len(batches(store)) == 2
    assert len(machine("two")) == SEND_AT + 2


def test_misses_are_looked_up_at_intervals(machine, store, clock, monkeypatch):
    listings = []
    entries = type(store).entries
    monkeypatch.setattr(
        type(store), "entries", lambda *args: (listings.append(1), entries(*args))[1]
    )
    writer, reader = machine("one"), machine("two")
    for number in range(100):
        assert reader.get(CostKey(f"{number}")) is None
    assert len(listings) == 1
    writer.put(K, cost(1.0))
    writer.flush()
    assert reader.get(K) is None
    clock.seconds += READ_EVERY_S
    assert reader.get(K).seconds == 1.0
    assert len(listings) == 2


def test_the_better_measurement_holds_in_any_order(store, tmp_path, clock):
    costs = [cost(1.0, 0.5), cost(2.0, 0.1), cost(1.9, 0.1), Cost(0.5), Cost.invalid("timeout")]
    seconds = set()
    for number, order in enumerate(permutations(costs)):
        fresh = open_store(tmp_path / f"store-{number}")
        for position, measured in enumerate(order):
            local = LocalCostTable(tmp_path / f"local-{number}-{position}", ENVIRONMENT)
            table = SharedCostTable(fresh, local, clock)
            table.put(K, measured)
            table.flush()
        reader = LocalCostTable(tmp_path / "reader", ENVIRONMENT)
        seconds.add(SharedCostTable(fresh, reader, clock).get(K).seconds)
    assert seconds == {1.9}


@pytest.mark.parametrize("width", [0.0, 1e-15])
def test_an_interval_without_width_does_not_win(store, tmp_path, clock, width):
    """A damaged cost without scatter loses against a measured one."""
    for number, measured in enumerate([cost(1e-3, width), cost(2e-3, 0.01), cost(5e-4, 5e-4)]):
        table = SharedCostTable(store, LocalCostTable(tmp_path / f"{number}", ENVIRONMENT), clock)
        table.put(K, measured)
        table.flush()
    reader = SharedCostTable(store, LocalCostTable(tmp_path / "reader", ENVIRONMENT), clock)
    assert reader.get(K) == cost(5e-4, 5e-4)


def test_sixteen_machines_lose_nothing(machine, store):
    def work(number):
        table = machine(f"machine-{number}")
        for position in range(20):
            table.put(CostKey(f"{number}-{position}"), cost(1.0 + number))
            if position % 5 == 4:
                table.flush()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    reader = machine("reader")
    assert len(reader) == 320
    assert reader.get(CostKey("7-19")).seconds == 8.0


def test_a_damaged_batch_is_a_miss_and_counted(machine, store, tmp_path):
    writer = machine("one")
    writer.put(K, cost(1.0))
    writer.flush()
    writer.put(CostKey("good"), cost(2.0))
    writer.flush()
    damaged = next(
        path
        for path in (tmp_path / "store" / "costs").rglob("*.jsonl")
        if b'"k"' in path.read_bytes()
    )
    damaged.write_bytes(damaged.read_bytes()[:-5])
    reader = machine("two")
    assert reader.get(K) is None
    assert reader.get(CostKey("good")).seconds == 2.0
    assert reader.corrupt == 1


def test_a_failed_flush_keeps_the_costs_for_the_next_one(machine, store, monkeypatch):
    table = machine("one")
    table.put(K, cost(1.0))

    def fail(*_):
        raise StoreError("503 SlowDown")

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "create", fail)
        with pytest.raises(StoreError, match="SlowDown"):
            table.flush()
    table.flush()
    assert machine("two").get(K).seconds == 1.0


def test_an_unknown_cost_is_refused(machine):
    with pytest.raises(ValueError, match="unknown"):
        machine("one").put(K, Cost.unknown())


def test_compaction_loses_nothing(machine, store):
    for number in range(10):
        table = machine(f"{number}")
        table.put(CostKey(f"{number}"), cost(1.0 + number))
        table.put(K, cost(1.0, 0.1 + number / 10))
        table.flush()
    lagging = machine("lagging")
    assert len(lagging) == 11
    assert compact(store, 0.0, at_least=11) == 0
    assert compact(store, 3600.0, at_least=2) == 0
    assert compact(store, 0.0, at_least=2) == 9
    assert len(batches(store)) == 1
    for reader in (machine("reader"), lagging):
        assert len(reader) == 11
        assert reader.get(CostKey("9")).seconds == 10.0
        assert math.isclose(reader.get(K).high - reader.get(K).low, 0.1)
    assert compact(store, 0.0, at_least=1) == 0
    assert len(batches(store)) == 1


def test_compaction_between_listing_and_reading(machine, store, monkeypatch):
    for number in range(4):
        table = machine(f"{number}")
        table.put(CostKey(f"{number}"), cost(1.0))
        table.flush()
    read = type(store).read
    compacted = []

    def compact_first(self, key):
        if not compacted:
            compacted.append(True)
            compact(store, 0.0, at_least=2)
        return read(self, key)

    monkeypatch.setattr(type(store), "read", compact_first)
    assert len(machine("reader")) == 4


def test_a_voided_cost_gives_way_to_the_next_best_and_a_new_one(machine):
    first, second, judge = machine("one"), machine("two"), machine("judge")
    bad, good = cost(1e-3, 0.05), cost(2e-3)
    first.put(K, bad)
    second.put(K, good)
    first.flush()
    second.flush()
    judge.refresh()
    assert judge.get(K) == bad
    assert not judge.was_voided(K)
    judge.void(K, cost_checksum(K, bad))
    judge.flush()
    for reader in (judge, machine("reader")):
        reader.refresh()
        assert reader.get(K) == good
        assert reader.was_voided(K)
        assert len(reader) == 1
    judge.void(K, cost_checksum(K, good))
    judge.flush()
    judge.refresh()
    assert judge.get(K) is None
    assert len(judge) == 0
    again = cost(3e-3)
    second.put(K, again)
    second.flush()
    judge.refresh()
    assert judge.get(K) == again


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_voided_cost_stays_void_in_any_order_of_batches(machine, store, order):
    bad, good = cost(1e-3, 0.05), cost(2e-3)
    acts = [
        lambda table: table.put(K, bad),
        lambda table: table.put(K, good),
        lambda table: table.void(K, cost_checksum(K, bad)),
    ]
    for number in order:
        table = machine(f"writer-{number}")
        acts[number](table)
        table.flush()
        assert machine(f"reader-{number}").get(K) in {None, bad, good}
    assert machine("before").get(K) == good
    assert compact(store, 0.0, at_least=2) == 2
    assert machine("after").get(K) == good


def test_a_checksum_is_the_same_after_the_store(machine):
    costs = [
        cost(1 / 3, 0.1, build_s=0.1 + 0.2),
        Cost(1e-3),
        Cost.invalid("no"),
        cost(2e-3, error=0.1),
    ]
    table = machine("one")
    for number, measured in enumerate(costs):
        table.put(CostKey(str(number)), measured)
    table.flush()
    reader = machine("two")
    for number, measured in enumerate(costs):
        key = CostKey(str(number))
        assert cost_checksum(key, reader.get(key)) == cost_checksum(key, measured)
    assert len({cost_checksum(K, measured) for measured in costs}) == len(costs)
