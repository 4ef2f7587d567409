"""Two kinds of nodes: kernels are built where there is no accelerator, and timed where there is one."""

from typing import NamedTuple

import pytest
from kubernetes import client

from collage.cluster.controller.compile_service import ClusterCompileService
from collage.cluster.controller.environments import BuildSettings, MeasuringEnvironment
from collage.cluster.shard_reports import ShardReports, worked_s
from collage.pipeline.request import RequestOptions, submit
from collage.report.progress import SilentProgress
from collage.store import open_store
from tests.cluster.conftest import IMAGES, measured
from tests.servers.node import Node
from tests.support.models import small_model

pytestmark = pytest.mark.full

QUIET = SilentProgress()
GPU = "nvidia.com/gpu"


@pytest.fixture
def two_kinds(plane, core, tmp_path_factory):
    started = [
        Node(plane, "builder", tmp_path_factory.mktemp("builder"), images=IMAGES,
             labels={"pool": "build"},
             taints=[{"key": "only", "value": "builds", "effect": "NoSchedule"}]),
        Node(plane, "timer", tmp_path_factory.mktemp("timer"), images=IMAGES,
             labels={"pool": "gpu"}, resources={GPU: "1"}),
    ]  # fmt: skip
    yield started
    for node in started:
        node.close()
        core.delete_node(node.name)


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


def test_cpu_nodes_build_all_kernels_for_gpu_pods(
    plane, two_kinds, make_service, request_, store, core, namespace
):
    service = make_service()
    facts = service.probe(request_)
    searched = service.search(request_, "main", QUIET)
    assert searched.measured > 10
    assert nodes_of(core, namespace, "build") == {"builder"}
    assert nodes_of(core, namespace, "measure") == nodes_of(core, namespace, "probe") == {"timer"}
    with plane.client() as api:
        limits = [
            job.spec.template.spec.containers[0].resources.limits
            for job in jobs_of(api, namespace, "build")
        ]
        assert limits
        assert not any(GPU in limit for limit in limits)

    reports = ShardReports(store, facts.environment)
    reports.refresh()
    all_reports = reports.of({report.batch for report in reports._known.values()})
    built = {report.node: 0 for report in all_reports}
    costs = dict(built)
    for report in all_reports:
        built[report.node] += report.built
        costs[report.node] += len(report.costs)
    print(f"{built} kernels built, {costs} costs measured")
    assert built["timer"] == 0
    assert built["builder"] >= costs["timer"] > 10
    assert costs["builder"] == 0
    assert set(measured(store, facts.environment).values()) == {1}

    again = make_service().search(request_, "main", QUIET)
    assert (again.measured, again.gap_s) == (0, searched.gap_s)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_measurement_overlaps_with_builds(
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
        service = ClusterCompileService(address, tmp_path / str(overlap), settings, pool, jobs=jobs)
        facts = service.probe(request)
        searched = service.search(request, "main", QUIET)
        times = measured(store, facts.environment)
        assert set(times.values()) == {1}, "nothing was measured twice"
        assert len(times) == searched.measured
        taken_s[overlap], counts[overlap] = busy_s(store, facts.environment), searched.measured
        for job in jobs.find({}):
            jobs.delete(job.name)
    before, after = taken_s[False], taken_s[True]
    print(
        f"{counts[False]} candidates one after the other: {before.building:.0f} s of building, "
        f"{before.measuring:.0f} s of measuring, {before.either:.0f} s in all; {counts[True]} with overlap: "
        f"{after.either:.0f} s, {after.saved:.2f} times as fast as their sum"
    )
    assert before.saved < 1.02
    assert after.saved > 1.1


class Busy(NamedTuple):
    building: float
    measuring: float
    either: float

    @property
    def saved(self):
        return (self.building + self.measuring) / self.either


def busy_s(store, environment):
    """The seconds in which pods built, in which pods measured, and in which any worked."""
    records = ShardReports(store, environment)
    records.refresh()
    reports = list(records._known.values())
    kinds = [
        [report for report in reports if bool(report.before_s) is timed] for timed in (False, True)
    ]
    return Busy(*map(worked_s, (*kinds, reports)))


@pytest.mark.parametrize(
    ("gpu", "separate", "apart"),
    [("", None, False), (GPU, None, True), ("", True, True), (GPU, False, False)],
)
def test_builds_are_separate_with_a_gpu_or_on_request(gpu, separate, apart):
    build = BuildSettings(separate=separate)
    assert MeasuringEnvironment(gpu_resource=gpu, build=build).builds_separately is apart
