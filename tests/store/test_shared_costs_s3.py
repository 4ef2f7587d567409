"""Shared costs on a real S3 server, with and without faults."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from collage.cost import Cost, CostKey, Environment, LocalCostTable, SharedCostTable
from collage.cost.batches import compact
from collage.errors import StoreError
from collage.store import open_store
from tests.store.proxy import FOREVER, Fault

ENVIRONMENT = Environment("cpu", "avx2", 4, 1, "", "1")
COST = Cost(2e-3, 1e-3, 3e-3, (2e-3, 2e-3))


@pytest.fixture
def machine(tmp_path):
    def make(name, address):
        local = LocalCostTable(tmp_path / name, ENVIRONMENT)
        return SharedCostTable(open_store(address, writes=False), local, lambda: 0.0)

    return make


def test_machines_share_costs(machine, s3_address):
    def work(number):
        table = machine(f"{number}", s3_address)
        for position in range(6):
            table.put(CostKey(f"{number}-{position}"), COST)
            table.flush()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    reader = machine("reader", s3_address)
    assert reader.get(CostKey("7-5")) == COST
    assert len(reader) == 48
    assert compact(open_store(s3_address), 0.0) == 0
    assert compact(open_store(s3_address), 0.0, at_least=2) == 47
    assert len(machine("later", s3_address)) == 48


@pytest.mark.parametrize("kind", ["lost", "reset", "truncate", "flip"])
def test_passing_faults_lose_no_cost(machine, bucket, proxy, kind):
    method = "PUT" if kind == "lost" else "PUT|GET"
    proxy.faults = [Fault(kind, method, "/costs/", times=2)]
    address = bucket.address(proxy.url, checksum="when_required")
    table = machine("one", address)
    table.put(CostKey("a"), COST)
    table.flush()
    assert machine("two", address).get(CostKey("a")) == COST


def test_wrong_bytes_are_a_miss(machine, bucket, proxy):
    address = bucket.address(proxy.url, checksum="when_required")
    table = machine("one", address)
    table.put(CostKey("a"), COST)
    table.flush()
    reader = machine("two", address)
    proxy.faults = [Fault("flip", "GET", ".jsonl", FOREVER)]
    assert reader.get(CostKey("a")) is None
    assert reader.corrupt == 1


def test_a_lost_store_is_an_error_and_the_costs_stay(machine, bucket, proxy, tmp_path):
    table = machine("one", bucket.address(proxy.url))
    table.put(CostKey("a"), COST)
    proxy.faults = [Fault("status", "PUT", "/costs/", FOREVER, 404, "NoSuchBucket")]
    with pytest.raises(StoreError, match=rf"s3://{bucket.name}/team/collage/costs/.*create it"):
        table.flush()
    assert LocalCostTable(tmp_path / "one", ENVIRONMENT).get(CostKey("a")) == COST
    proxy.faults = []
    table.flush()
    assert math.isclose(machine("two", bucket.address(proxy.url)).get(CostKey("a")).seconds, 2e-3)
