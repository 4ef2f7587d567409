"""What the measurer of a cluster knows before any Job is made."""

import time

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.job_submission import SearchTask
from collage.cluster.controller.measurer import ClusterMeasurer
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.jobs import JobRunner
from collage.cost import Cost, Environment, LocalCostTable, SharedCostTable
from collage.measure.cache_flush import CacheFlush
from collage.measure.measurement_request import MeasurementRequest
from collage.store import open_store
from tests.cluster.conftest import named_keys
from tests.support.costs import KEYS

ENVIRONMENT = Environment("cpu", "features", 4, 1, "", "cold-1")
BACKENDS = {"onednn": "onednn 1"}


class NoJobs:
    """A namespace where nothing has run."""

    def find(self, labels):
        return []


def test_costs_of_another_model_of_the_family_are_known(tmp_path):
    store = open_store(str(tmp_path / "store"))
    theirs = SharedCostTable(store, LocalCostTable(tmp_path / "theirs"), time.monotonic)
    shallow, deep = CacheFlush(16 << 20, (32 << 20,)), CacheFlush(32 << 20, (16 << 20,))
    recalled = MeasurementRequest("main", 0b1, "onednn")
    cost = Cost(1e-3, 1e-3, 1e-3, (1e-3,))
    theirs.within(ENVIRONMENT).put(named_keys(BACKENDS, ENVIRONMENT, shallow)(recalled), cost)
    theirs.flush()

    settings = ClusterSettings(measure_image="m", controller_image="c")
    runner = JobRunner(NoJobs(), MeasuringEnvironment(), settings, print)
    task = SearchTask("r" * 64, "main", "s", "pool", ENVIRONMENT, BACKENDS, {}, store.url)
    mine = SharedCostTable(store, LocalCostTable(tmp_path / "mine"), time.monotonic)
    calls = []
    measurer = ClusterMeasurer(
        task, runner, store, mine, keys=named_keys(BACKENDS, ENVIRONMENT, deep), signing=KEYS
    )
    requests = [recalled, MeasurementRequest("main", 0b10, "onednn")]
    costs = measurer.recall(requests, lambda *call: calls.append(call))
    assert costs[0] == cost
    assert costs[1].is_unknown
    assert calls == [(recalled, cost, True)]
    assert (measurer.measured, measurer.cached) == (0, 1)
