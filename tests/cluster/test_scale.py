"""1,000 shards of 10,000 candidates on 200 fake nodes: what the controller needs stays flat."""

import hashlib
import resource
import threading
import time

import pytest

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.job_submission import SearchTask
from collage.cluster.controller.measurer import ClusterMeasurer
from collage.cluster.kubernetes.api import Jobs
from collage.cluster.kubernetes.jobs import JobRunner
from collage.cluster.shards import Batch
from collage.cost import Cost, CostKey, Environment, LocalCostTable, SharedCostTable
from collage.cost.shared import costs_prefix
from collage.measure.measurement_request import MeasurementRequest
from collage.store import open_store
from collage.store.blobs import get_blob
from tests.cluster.conftest import named_keys
from tests.servers.fixtures import running
from tests.servers.kwok import Fleet
from tests.support.costs import KEYS, signed_cost

pytestmark = pytest.mark.full

ENVIRONMENT = Environment("cpu", "features", 4, 1, "", "cold-1")
BACKENDS = {"onednn": "onednn 1", "onnxruntime": "ort 1"}


@pytest.fixture
def fleet(plane, tmp_path_factory):
    with running(Fleet, plane, tmp_path_factory.mktemp("kwok"), 200, {"pool": "fake"}) as kwok:
        yield kwok


def requests(count):
    return [
        MeasurementRequest("main", 0b11 << (number // 2), sorted(BACKENDS)[number % 2])
        for number in range(count)
    ]


class PlayedPods(threading.Thread):
    """Puts the costs of every batch into the store: what the pods of fake nodes cannot do."""

    def __init__(self, jobs, store):
        super().__init__(daemon=True)
        self._jobs, self._store = jobs, store
        self._ended = threading.Event()
        self.shards = 0
        self.start()

    def run(self):
        done = set()
        while not self._ended.wait(0.5):
            for job in self._jobs.find({"app.kubernetes.io/component": "measure"}):
                if job.name not in done:
                    done.add(job.name)
                    self._play(job.notes["collage.dev/batch"])

    def _play(self, digest):
        batch = Batch.model_validate_json(get_blob(self._store, digest))
        self.shards += len(batch.shards)
        for shard in batch.shards:
            cost = Cost(1e-3, 1e-3, 1e-3, (1e-3,), "", 0.5)
            data = b"".join(
                signed_cost(CostKey(request.key), cost, ENVIRONMENT) for request in shard
            )
            name = hashlib.sha256(data).hexdigest()
            self._store.create(f"{costs_prefix(ENVIRONMENT)}{name}.jsonl", data)

    def end(self):
        self._ended.set()
        self.join()


@pytest.mark.slow
@pytest.mark.parametrize(("candidates", "shards"), [(1000, 100), (10_000, 1000)])
def test_api_calls_and_memory_stay_flat(
    plane, fleet, jobs, namespace, settings, tmp_path, notices, candidates, shards
):
    environment = MeasuringEnvironment(
        memory="1Gi", node_selector={"pool": "fake"}, parallelism=200, seconds_per_shard=13.5
    )
    store = open_store(str(tmp_path / "store"))
    table = SharedCostTable(store, LocalCostTable(tmp_path / "mine"), time.monotonic)
    groups = dict.fromkeys(BACKENDS, "all")
    task = SearchTask("r" * 64, "main", "s", "fake", ENVIRONMENT, BACKENDS, groups, "s3://bucket")
    runner = JobRunner(
        jobs, environment, settings.model_copy(update={"poll_s": 1.0}), notices.append
    )
    measurer = ClusterMeasurer(
        task, runner, store, table, keys=named_keys(BACKENDS, ENVIRONMENT), signing=KEYS
    )
    with plane.client() as api:
        pods = PlayedPods(Jobs(namespace, api), store)
        before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start = time.monotonic()
        costs = measurer.measure(requests(candidates))
        taken_s = time.monotonic() - start
        after_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        pods.end()
    print(
        f"{candidates} candidates, {pods.shards} shards: {taken_s:.1f} s, {jobs.calls} API calls "
        f"({jobs.calls / taken_s:.2f} a second), peak memory {before_mib:.0f} -> {after_mib:.0f} MiB"
    )
    assert all(cost.is_valid for cost in costs)
    assert measurer.measured == candidates
    assert pods.shards == pytest.approx(shards, rel=0.15)
    assert jobs.calls <= 10 + 3 * taken_s
    assert after_mib - before_mib < 200
