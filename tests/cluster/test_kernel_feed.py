"""Kernels that come while a pod waits: all are taken, none twice, and nobody waits for what never comes."""

import threading
import time
from itertools import chain
from types import SimpleNamespace

import pytest

from collage.cluster.kernel_records import KernelIndex, shard_name
from collage.cluster.pod.answers import kernel_feed as arrivals_module
from collage.cluster.pod.kernel_feed import Arrivals
from collage.cluster.shards import Batch, ShardWork
from collage.cost import Cost, CostKey, CostTable, Environment, SharedCostTable
from collage.store import open_store
from collage.store.blobs import put_blob
from tests.support.costs import KEYS

ENVIRONMENT = Environment("cpu", "features", 4, 1, "a GPU", "cuda-cold-1")
WORKS = tuple(
    ShardWork(nodes=hex(1 << number), backend="cudnn", variant="", key=f"{number:064x}")
    for number in range(40)
)


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def shard(store, tmp_path):
    """What a measuring pod has open; `kernels` and `table` are its own views of the store."""
    table = SharedCostTable(store, CostTable(tmp_path / "mine", ENVIRONMENT), time.monotonic)
    return SimpleNamespace(
        store=store, works=WORKS, batch=SimpleNamespace(function="main"), table=table,
        kernels=KernelIndex(store, ENVIRONMENT, KEYS),
    )  # fmt: skip


@pytest.fixture
def builder(store, tmp_path):
    """The kernels as another machine sees and puts them."""
    made = KernelIndex(store, ENVIRONMENT, KEYS)

    def put(works):
        for one in works:
            file = tmp_path / one.key
            file.write_text(one.key)
            made.put(CostKey(one.key), file)
        made.flush()

    return SimpleNamespace(put=put, end=made.end)


@pytest.fixture
def builds(store):
    """A Job that builds in two shards, by its token."""
    batch = Batch(
        purpose="build", request="r", function="main", environment=ENVIRONMENT,
        backends={"cudnn": "cudnn 9"}, shards=(WORKS[:20], WORKS[20:]),
    )  # fmt: skip
    return {"token": put_blob(store, batch.model_dump_json().encode())}


def taken(arrivals, folder):
    """Take all; return the keys of each part, and check that its kernels lie there."""
    parts = []
    for part in arrivals.parts():
        assert len(list(folder.iterdir())) <= arrivals_module.KERNELS_AT_ONCE
        parts.append([one.key for one in part])
    assert not folder.exists() or not list(folder.iterdir())
    return parts


def test_what_is_there_already_comes_in_parts_that_fit_the_disk(shard, builder, tmp_path):
    builder.put(WORKS)
    arrivals = Arrivals(shard, tmp_path / "kernels", {})
    parts = taken(arrivals, tmp_path / "kernels")
    assert [len(one) for one in parts] == [32, 8]
    assert sorted(chain.from_iterable(parts)) == [one.key for one in WORKS]
    assert (arrivals.waited_s, arrivals.absent) == (0.0, [])


def test_kernels_are_taken_as_they_are_built_and_each_once(shard, builder, builds, tmp_path):
    def build():
        for start in range(0, 40, 10):
            time.sleep(0.3)
            builder.put(WORKS[start : start + 10])
        builder.end([shard_name("token", 0), shard_name("token", 1)])

    thread = threading.Thread(target=build)
    thread.start()
    arrivals = Arrivals(shard, tmp_path / "kernels", builds, looked_s=0.02)
    parts = taken(arrivals, tmp_path / "kernels")
    thread.join()
    assert len(parts) >= 3, "not all at the end"
    assert sorted(chain.from_iterable(parts)) == [one.key for one in WORKS]
    assert arrivals.waited_s > 0
    assert arrivals.absent == []


def test_a_candidate_that_cannot_be_built_has_its_cost_and_is_not_waited_for(
    shard, builder, builds, tmp_path
):
    builder.put(WORKS[:-1])
    shard.table.put(CostKey(WORKS[-1].key), Cost.invalid("nvcc refuses it"))
    arrivals = Arrivals(shard, tmp_path / "kernels", builds)
    assert len(list(chain.from_iterable(taken(arrivals, tmp_path / "kernels")))) == 40
    assert arrivals.absent == []


def test_a_shard_that_is_over_brings_no_more_and_the_other_is_waited_for(
    shard, builder, builds, tmp_path
):
    builder.put(WORKS[:15])
    builder.end([shard_name("token", 0)])
    late = threading.Timer(
        0.5, lambda: (builder.put(WORKS[20:]), builder.end([shard_name("token", 1)]))
    )
    late.start()
    arrivals = Arrivals(shard, tmp_path / "kernels", builds, looked_s=0.02)
    found = list(chain.from_iterable(taken(arrivals, tmp_path / "kernels")))
    assert sorted(found) == [one.key for one in (*WORKS[:15], *WORKS[20:])]
    assert arrivals.absent == list(WORKS[15:20])


def test_a_job_that_was_made_again_is_waited_for_though_the_first_is_over(
    shard, builder, builds, tmp_path
):
    builder.end([shard_name("the token before", 0), shard_name("the token before", 1)])
    late = threading.Timer(0.3, lambda: builder.put(WORKS))
    late.start()
    arrivals = Arrivals(shard, tmp_path / "kernels", builds, looked_s=0.02)
    assert len(list(chain.from_iterable(taken(arrivals, tmp_path / "kernels")))) == 40


def test_nobody_waits_for_ever(shard, builder, builds, tmp_path, monkeypatch):
    monkeypatch.setattr(arrivals_module, "PATIENCE_S", 0.3)
    builder.put(WORKS[:5])
    arrivals = Arrivals(shard, tmp_path / "kernels", builds, looked_s=0.02)
    assert len(list(chain.from_iterable(taken(arrivals, tmp_path / "kernels")))) == 5
    assert arrivals.absent == list(WORKS[5:])
