"""The kernel feed: every kernel is fetched once, and the wait for absent kernels ends."""

import threading
import time
from itertools import chain
from types import SimpleNamespace

import pytest

from collage.cluster.kernel_records import KernelIndex, shard_name
from collage.cluster.pod import kernel_feed
from collage.cluster.pod.kernel_feed import KernelFeed
from collage.cluster.shards import Batch, ShardRequest
from collage.cost import Cost, CostKey, Environment, LocalCostTable, SharedCostTable
from collage.store import open_store
from collage.store.blobs import put_blob
from tests.support.costs import KEYS

ENVIRONMENT = Environment("cpu", "features", 4, 1, "a GPU", "cuda-cold-1")
REQUESTS = tuple(
    ShardRequest(
        nodes=hex(1 << number), backend="cudnn", variant="", label="", key=f"{number:064x}"
    )
    for number in range(40)
)


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def shard(store, tmp_path):
    """What a measuring pod has open; `kernels` and `table` are its own views of the store."""
    table = SharedCostTable(store, LocalCostTable(tmp_path / "mine", ENVIRONMENT), time.monotonic)
    return SimpleNamespace(
        store=store, requests=REQUESTS, batch=SimpleNamespace(function="main"), table=table,
        kernels=KernelIndex(store, ENVIRONMENT, KEYS),
    )  # fmt: skip


@pytest.fixture
def builder(store, tmp_path):
    """The kernels as another machine sees and puts them."""
    index = KernelIndex(store, ENVIRONMENT, KEYS)

    def put(requests):
        for request in requests:
            file = tmp_path / request.key
            file.write_text(request.key)
            index.put(CostKey(request.key), file)
        index.flush()

    return SimpleNamespace(put=put, end=index.end)


@pytest.fixture
def builds(store):
    """A Job that builds in two shards, by its token."""
    batch = Batch(
        purpose="build", request="r", function="main", environment=ENVIRONMENT,
        backends={"cudnn": "cudnn 9"}, shards=(REQUESTS[:20], REQUESTS[20:]),
    )  # fmt: skip
    return {"token": put_blob(store, batch.model_dump_json().encode())}


def drain(feed, folder):
    """Read the whole feed; return the keys of each batch, and check that its kernels are in the folder."""
    batches = []
    for batch in feed.batches():
        assert len(list(folder.iterdir())) <= kernel_feed.KERNELS_AT_ONCE
        batches.append([request.key for request in batch])
    assert not folder.exists() or not list(folder.iterdir())
    return batches


def test_stored_kernels_come_in_batches_that_fit_the_disk(shard, builder, tmp_path):
    builder.put(REQUESTS)
    feed = KernelFeed(shard, tmp_path / "kernels", {})
    batches = drain(feed, tmp_path / "kernels")
    assert [len(batch) for batch in batches] == [32, 8]
    assert sorted(chain.from_iterable(batches)) == [request.key for request in REQUESTS]
    assert (feed.waited_s, feed.absent) == (0.0, [])


def test_each_kernel_is_fetched_once_after_its_build(shard, builder, builds, tmp_path):
    def build():
        for start in range(0, 40, 10):
            time.sleep(0.3)
            builder.put(REQUESTS[start : start + 10])
        builder.end([shard_name("token", 0), shard_name("token", 1)])

    thread = threading.Thread(target=build)
    thread.start()
    feed = KernelFeed(shard, tmp_path / "kernels", builds, poll_s=0.02)
    batches = drain(feed, tmp_path / "kernels")
    thread.join()
    assert len(batches) >= 3, "not all at the end"
    assert sorted(chain.from_iterable(batches)) == [request.key for request in REQUESTS]
    assert feed.waited_s > 0
    assert feed.absent == []


def test_the_feed_does_not_wait_for_a_candidate_with_a_cost(shard, builder, builds, tmp_path):
    builder.put(REQUESTS[:-1])
    shard.table.put(CostKey(REQUESTS[-1].key), Cost.invalid("nvcc refuses it"))
    feed = KernelFeed(shard, tmp_path / "kernels", builds)
    assert len(list(chain.from_iterable(drain(feed, tmp_path / "kernels")))) == 40
    assert feed.absent == []


def test_the_feed_waits_only_for_open_build_shards(shard, builder, builds, tmp_path):
    builder.put(REQUESTS[:15])
    builder.end([shard_name("token", 0)])
    late = threading.Timer(
        0.5, lambda: (builder.put(REQUESTS[20:]), builder.end([shard_name("token", 1)]))
    )
    late.start()
    feed = KernelFeed(shard, tmp_path / "kernels", builds, poll_s=0.02)
    keys = list(chain.from_iterable(drain(feed, tmp_path / "kernels")))
    assert sorted(keys) == [request.key for request in (*REQUESTS[:15], *REQUESTS[20:])]
    assert feed.absent == list(REQUESTS[15:20])


def test_the_feed_waits_for_a_recreated_build_job(shard, builder, builds, tmp_path):
    builder.end([shard_name("the token before", 0), shard_name("the token before", 1)])
    late = threading.Timer(0.3, lambda: builder.put(REQUESTS))
    late.start()
    feed = KernelFeed(shard, tmp_path / "kernels", builds, poll_s=0.02)
    assert len(list(chain.from_iterable(drain(feed, tmp_path / "kernels")))) == 40


def test_the_feed_stops_without_a_new_kernel(shard, builder, builds, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_feed, "NO_KERNEL_LIMIT_S", 0.3)
    builder.put(REQUESTS[:5])
    feed = KernelFeed(shard, tmp_path / "kernels", builds, poll_s=0.02)
    assert len(list(chain.from_iterable(drain(feed, tmp_path / "kernels")))) == 5
    assert feed.absent == list(REQUESTS[5:])
