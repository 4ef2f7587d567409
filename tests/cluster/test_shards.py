"""Batches cut into shards: balanced, whole regions, the same for everybody, and fast."""

import random
import time

import pytest

from collage.cluster.shards import Batch, DurationEstimate, KeyedRequest, plan_shards, write_batch
from collage.cost import CostKey, Environment
from collage.measure.measurement_request import MeasurementRequest

ENVIRONMENT = Environment("cpu", "features", 4, 2, "", "cold-1")
BACKENDS = {"onednn": "onednn 1", "onnxruntime": "ort 1", "tvm": "tvm 1"}


def candidates(count, regions=None, seed=0):
    draw = random.Random(seed)
    names = sorted(BACKENDS)
    return [
        KeyedRequest(
            CostKey(f"{number:064x}"),
            MeasurementRequest(
                "main", 1 << (number % (regions or count)), draw.choice(names), str(number)
            ),
        )
        for number in range(count)
    ]


def seconds(backend):
    return {"onednn": 1.0, "onnxruntime": 2.0, "tvm": 8.0}[backend]


def total(shard):
    return sum(seconds(candidate.work.backend) for candidate in shard)


@pytest.mark.parametrize(
    ("count", "seconds_per_shard", "parallelism", "shards"),
    [
        (1, 60, 8, 1),
        (3, 60, 8, 1),  # not worth a second pod
        (60, 60, 8, 8),  # as many as there are nodes, each worth its start
        (2000, 60, 8, 121),
        (20, 0.5, 2, 20),  # never fewer than one candidate
    ],
)
def test_shards_are_sized_by_expected_seconds(count, seconds_per_shard, parallelism, shards):
    planned = plan_shards(
        candidates(count), seconds, seconds_per_shard=seconds_per_shard, parallelism=parallelism
    )
    assert len(planned) == pytest.approx(shards, abs=2 if shards > 1 else 0)
    keys = [candidate.key for shard in planned for candidate in shard]
    assert sorted(keys) == sorted(candidate.key for candidate in candidates(count))
    assert all(planned)


def test_shards_are_balanced():
    planned = plan_shards(candidates(2000), seconds, seconds_per_shard=60, parallelism=8)
    totals = [total(shard) for shard in planned]
    assert max(totals) <= 60 * 1.15
    assert max(totals) - min(totals) <= 8


def test_a_region_stays_together_unless_it_is_more_than_a_shard():
    planned = plan_shards(candidates(300, regions=60), seconds, seconds_per_shard=60, parallelism=4)
    homes = [{candidate.work.nodes for candidate in shard} for shard in planned]
    assert sum(map(len, homes)) == 60
    large = plan_shards(candidates(300, regions=1), seconds, seconds_per_shard=60, parallelism=4)
    assert len(large) > 10
    assert max(total(shard) for shard in large) <= 60 * 4 / 3


def test_the_batch_is_independent_of_the_order():
    contents = set()
    for seed in range(3):
        planned = candidates(200, regions=40)
        random.Random(seed).shuffle(planned)
        shards = plan_shards(planned, seconds, seconds_per_shard=60, parallelism=4)
        contents.add(
            write_batch(
                shards,
                request="r" * 64,
                function="main",
                environment=ENVIRONMENT,
                backends=BACKENDS,
            )
        )
    assert len(contents) == 1
    batch = Batch.model_validate_json(contents.pop())
    requests = {(request.key, request.work("main")) for shard in batch.shards for request in shard}
    assert requests == {
        (candidate.key, candidate.work) for candidate in candidates(200, regions=40)
    }


def test_ten_thousand_candidates_are_planned_in_seconds():
    planned = candidates(10_000, regions=2500)
    start = time.monotonic()
    shards = plan_shards(planned, seconds, seconds_per_shard=60, parallelism=64)
    text = write_batch(
        shards, request="r" * 64, function="main", environment=ENVIRONMENT, backends=BACKENDS
    )
    taken_s = time.monotonic() - start
    print(f"10,000 candidates: {len(shards)} shards, {len(text)} bytes, {taken_s:.2f} s")
    assert taken_s < 5
    assert len(shards) > 500


def test_estimates_follow_what_builds_take():
    estimate = DurationEstimate()
    before = estimate.seconds("onednn")
    for _ in range(50):
        estimate.learn("onednn", 6.0)
    assert estimate.seconds("onednn") == pytest.approx(6.8, rel=0.05)
    assert before < 2
