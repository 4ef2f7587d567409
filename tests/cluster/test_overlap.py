"""What it saves to measure while kernels are still built, on pods that are played in simulated time."""

import hashlib
from dataclasses import dataclass, field

import pytest

from collage.cluster.controller.environments import BuildSettings, MeasuringEnvironment
from collage.cluster.controller.job_submission import SearchTask
from collage.cluster.controller.measurer import ClusterMeasurer
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kernel_records import KernelIndex
from collage.cluster.kubernetes.api import JobView
from collage.cluster.kubernetes.jobs import JobRunner
from collage.cluster.pod.shard_context import read_batch
from collage.cost import Cost, CostKey, Environment, LocalCostTable, SharedCostTable
from collage.cost.shared import costs_prefix
from collage.measure.measurement_request import MeasurementRequest
from collage.store import open_store
from tests.cluster.conftest import named_keys
from tests.support.costs import KEYS, signed_cost

pytestmark = pytest.mark.full

ENVIRONMENT = Environment("cpu", "features", 4, 1, "a GPU", "cuda-cold-1")
BACKENDS = {"tvm-cuda": "tvm-cuda 1"}
START_S, TIMING_S = 10.0, 1.2


@dataclass
class PlayedCluster:
    """Jobs whose pods take START_S to start, `build_s` for a kernel, and TIMING_S for a cost.

    Attributes:
        waited_s: time of measuring pods without a kernel, in seconds.
    """

    store: object
    folder: object
    build_s: float
    clock_s: float = 0.0
    waited_s: float = 0.0
    costs: list = field(default_factory=list)
    calls: int = 0

    def __post_init__(self):
        self._jobs, self._events, self._built = {}, [], {}
        self._kernels = KernelIndex(self.store, ENVIRONMENT, KEYS)

    def sleep(self, seconds):
        self.clock_s += seconds
        due = [event for event in self._events if event[0] <= self.clock_s]
        self._events = [event for event in self._events if event[0] > self.clock_s]
        for _, happen, key in sorted(due, key=lambda event: event[0]):
            happen(key)
        self._kernels.flush()

    def create(self, manifest):
        name, notes = manifest.metadata.name, manifest.metadata.annotations
        if name in self._jobs:
            return False
        batch = read_batch(self.store, notes["collage.dev/batch"])
        play = self._build if batch.purpose == "build" else self._measure
        free = [self.clock_s + START_S] * manifest.spec.parallelism
        for shard in batch.shards:
            free.sort()
            free.append(play([request.key for request in shard], free.pop(0)) + START_S)
        self._jobs[name] = (notes, self.clock_s + START_S, max(free) - START_S)
        return True

    def read(self, name):
        notes, begin, end = self._jobs[name]
        up = int(begin <= self.clock_s < end)
        return JobView(name, notes, complete=self.clock_s >= end, started=True, active=1, ready=up)

    def find(self, labels):
        return [self.read(name) for name in sorted(self._jobs)]

    def pod_problems(self, name):
        return []

    def main_ends(self, name):
        return []

    def failures(self, name):
        return []

    def _build(self, keys, at):
        for key in keys:
            at += self.build_s
            self._built[key] = at
            self._events.append((at, self._put_kernel, key))
        return at

    def _measure(self, keys, at):
        pending = list(keys)
        while pending:
            ready = [key for key in pending if self._built[key] <= at]
            if not ready:
                soonest = min(self._built[key] for key in pending)
                self.waited_s, at = self.waited_s + soonest - at, soonest
                continue
            pending.remove(ready[0])
            at += TIMING_S
            self._events.append((at, self._put_cost, ready[0]))
        return at

    def _put_kernel(self, key):
        file = self.folder / "kernel"
        file.write_text(key)
        self._kernels.put(CostKey(key), file)

    def _put_cost(self, key):
        self.costs.append(key)
        data = signed_cost(
            CostKey(key), Cost(1e-3, 1e-3, 1e-3, (1e-3,), "", self.build_s), ENVIRONMENT
        )
        name = hashlib.sha256(data).hexdigest()
        self.store.create(f"{costs_prefix(ENVIRONMENT)}{name}.jsonl", data)


def measured_s(folder, build_s, overlap, candidates=96):
    """Return the simulated seconds of one batch, and the cluster; check that nothing is lost."""
    folder.mkdir()
    store = open_store(str(folder / "store"))
    cluster = PlayedCluster(store, folder, build_s)
    environment = MeasuringEnvironment(
        gpu_resource="nvidia.com/gpu", parallelism=2,
        build=BuildSettings(parallelism=4, overlap=overlap),
    )  # fmt: skip
    settings = ClusterSettings(measure_image="m", controller_image="c", poll_s=1.0)
    runner = JobRunner(
        cluster, environment, settings, print, clock=lambda: cluster.clock_s, sleep=cluster.sleep
    )
    task = SearchTask(
        "r" * 64, "main", "s", "gpu", ENVIRONMENT, BACKENDS, {"tvm-cuda": "native"}, "s3://b"
    )
    table = SharedCostTable(store, LocalCostTable(folder / "mine"), lambda: cluster.clock_s)
    measurer = ClusterMeasurer(
        task, runner, store, table, keys=named_keys(BACKENDS, ENVIRONMENT), signing=KEYS
    )
    requests = [MeasurementRequest("main", 1 << number, "tvm-cuda") for number in range(candidates)]
    costs = measurer.measure(requests)
    assert all(cost.is_valid for cost in costs)
    assert (measurer.measured, measurer.cached) == (candidates, 0)
    assert len(cluster.costs) == len(set(cluster.costs)) == candidates, "none twice"
    assert measurer.recall(requests) == costs
    assert measurer.measured + measurer.cached == 2 * candidates
    return cluster.clock_s, cluster


@pytest.mark.parametrize(("build_s", "saves"), [(0.6, 1.1), (2.4, 1.5), (4.8, 1.3), (9.6, 1.1)])
def test_building_and_measuring_overlap_and_gpus_hardly_wait(tmp_path, build_s, saves):
    before_s, _ = measured_s(tmp_path / "apart", build_s, overlap=False)
    after_s, cluster = measured_s(tmp_path / "overlap", build_s, overlap=True)
    print(
        f"builds of {build_s} s: {before_s:.0f} s one after the other, {after_s:.0f} s with overlap, "
        f"{before_s / after_s:.2f} times as fast; GPUs waited {cluster.waited_s:.0f} s"
    )
    assert before_s / after_s > saves
    assert cluster.waited_s < 0.35 * 96 * TIMING_S
