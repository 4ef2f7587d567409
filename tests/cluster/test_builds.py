"""Two kinds of nodes: kernels are built where there is no accelerator, and timed where there is one."""

from typing import NamedTuple

import pytest
from kubernetes import client

from collage.cluster.controller.compile_service import ClusterSite
from collage.cluster.controller.environments import BuildSettings, MeasuringEnvironment
from collage.cluster.shard_reports import Records, worked_s
from collage.pipeline.request import RequestOptions, submit
from collage.report.progress import SilentProgress
from collage.store import open_store
from tests.cluster.conftest import IMAGES, measured
from tests.pipeline.test_compile import small_model
from tests.servers.node import Node

QUIET = SilentProgress()
GPU = "nvidia.com/gpu"


@pytest.fixture
def two_kinds(plane, core, tmp_path_factory):
    made = [
        Node(plane, "builder", tmp_path_factory.mktemp("builder"), images=IMAGES,
             labels={"pool": "build"},
             taints=[{"key": "only", "value": "builds", "effect": "NoSchedule"}]),
        Node(plane, "timer", tmp_path_factory.mktemp("timer"), images=IMAGES,
             labels={"pool": "gpu"}, resources={GPU: "1"}),
    ]  # fmt: skip
    yield made
    for one in made:
        one.close()
        core.delete_node(one.name)


@pytest.fixture
def environment(environment):
    tolerations = ({"key": "only", "operator": "Exists"},)
    build = BuildSettings(
        cpu=1,
        memory="1Gi",
        node_selector={"pool": "build"},
        tolerations=tolerations,
        parallelism=1,
    )
    changes = {
        "gpu_resource": GPU,
        "device": "cpu",
        "node_selector": {"pool": "gpu"},
        "parallelism": 1,
    }
    return MeasuringEnvironment(**{**dict(environment), **changes, "build": build})


def jobs_of(api, namespace, component):
    selector = f"app.kubernetes.io/component={component}"
    return client.BatchV1Api(api).list_namespaced_job(namespace, label_selector=selector).items


def nodes_of(core, namespace, component):
    selector = f"app.kubernetes.io/component={component}"
    pods = core.list_namespaced_pod(namespace, label_selector=selector).items
    return {pod.spec.node_name for pod in pods}


def test_kernels_are_built_on_cpu_nodes_and_the_pods_with_a_gpu_build_none(
    plane, two_kinds, make_site, request_, store, core, namespace
):
    site = make_site()
    facts = site.describe(request_)
    found = site.search(request_, "main", QUIET)
    assert found.measured > 10
    assert nodes_of(core, namespace, "build") == {"builder"}
    assert nodes_of(core, namespace, "measure") == nodes_of(core, namespace, "probe") == {"timer"}
    with plane.client() as api:
        limits = [
            job.spec.template.spec.containers[0].resources.limits
            for job in jobs_of(api, namespace, "build")
        ]
        assert limits
        assert not any(GPU in one for one in limits)

    records = Records(store, facts.environment)
    records.refresh()
    everything = records.of({one.batch for one in records._known.values()})
    built = {one.node: 0 for one in everything}
    costs = dict(built)
    for one in everything:
        built[one.node] += one.built
        costs[one.node] += len(one.costs)
    print(f"{built} kernels built, {costs} costs measured")
    assert built["timer"] == 0
    assert built["builder"] >= costs["timer"] > 10
    assert costs["builder"] == 0
    assert set(measured(store, facts.environment).values()) == {1}

    again = make_site().search(request_, "main", QUIET)
    assert (again.measured, again.gap_s) == (0, found.gap_s)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_measuring_starts_while_kernels_are_still_built_and_saves_its_time(
    two_kinds, settings, environment, jobs, request_, address_below, tmp_path
):
    """The same search twice, each in a store of its own; a built kernel takes longer than a timed one."""
    options = RequestOptions(
        backends=("tests.cluster.slow_builds:SlowBuilds",), measure_budget_s=5, refine_s=0
    )
    model = small_model(tmp_path / "slow.onnx")
    taken_s, counts = {}, {}
    for overlap in (False, True):
        address = address_below(f"overlap-{overlap}")
        store = open_store(address)
        request = submit(store, model, environment="pool", options=options)
        build = environment.build.model_copy(update={"overlap": overlap})
        changes = {"build": build, "seconds_per_shard": 60, "deadline_seconds": 3000}
        pool = {"pool": environment.model_copy(update=changes)}
        site = ClusterSite(address, tmp_path / str(overlap), settings, pool, jobs=jobs)
        facts = site.describe(request)
        found = site.search(request, "main", QUIET)
        times = measured(store, facts.environment)
        assert set(times.values()) == {1}, "nothing was measured twice"
        assert len(times) == found.measured
        taken_s[overlap], counts[overlap] = busy_s(store, facts.environment), found.measured
        for job in jobs.find({}):
            jobs.delete(job.name)
    before, after = taken_s[False], taken_s[True]
    print(
        f"{counts[False]} candidates one after the other: {before.building:.0f} s of building, "
        f"{before.measuring:.0f} s of measuring, {before.both:.0f} s in all; {counts[True]} with overlap: "
        f"{after.both:.0f} s, {after.saved:.2f} times as fast as their sum"
    )
    assert before.saved < 1.02
    assert after.saved > 1.1


class Busy(NamedTuple):
    building: float
    measuring: float
    both: float

    @property
    def saved(self):
        return (self.building + self.measuring) / self.both


def busy_s(store, environment):
    """The seconds in which pods built, in which pods measured, and in which any worked."""
    records = Records(store, environment)
    records.refresh()
    found = list(records._known.values())
    kinds = [[one for one in found if bool(one.before_s) is timed] for timed in (False, True)]
    return Busy(*map(worked_s, (*kinds, found)))


@pytest.mark.parametrize(
    ("gpu", "separate", "apart"),
    [("", None, False), (GPU, None, True), ("", True, True), (GPU, False, False)],
)
def test_builds_are_apart_where_a_gpu_would_wait_or_where_it_is_asked_for(gpu, separate, apart):
    build = BuildSettings(separate=separate)
    assert MeasuringEnvironment(gpu_resource=gpu, build=build).builds_apart is apart
