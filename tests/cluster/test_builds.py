"""Two kinds of nodes: kernels are built where there is no accelerator, and timed where there is one."""

import pytest
from kubernetes import client

from collage.cluster.environments import BuildSettings, MeasuringEnvironment
from collage.cluster.records import Records
from collage.report.terminal import Progress
from tests.cluster.conftest import IMAGES, measured
from tests.servers.node import Node

QUIET = Progress(quiet=True)
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


@pytest.mark.parametrize(
    ("gpu", "separate", "apart"),
    [("", None, False), (GPU, None, True), ("", True, True), (GPU, False, False)],
)
def test_builds_are_apart_where_a_gpu_would_wait_or_where_it_is_asked_for(gpu, separate, apart):
    build = BuildSettings(separate=separate)
    assert MeasuringEnvironment(gpu_resource=gpu, build=build).builds_apart is apart
