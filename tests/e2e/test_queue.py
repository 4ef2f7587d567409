"""More measuring pods than GPUs: those that do not fit wait, and run when one is free."""

import pytest
from kubernetes import client

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.manifests import CONTAINER, JobTask, Kind, job_manifest
from tests.e2e.images import reference
from tests.e2e.places import GPU, MEASURING
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full

PODS, GPUS = 4, 2


@pytest.fixture
def namespace(plane):
    created = plane.make_namespace("queue", {"pod-security.kubernetes.io/enforce": "restricted"})
    with plane.client() as api:
        yield created
        client.CoreV1Api(api).delete_namespace(created)


def job(namespace):
    """A measuring Job as the flows make it, apart from what one node of two cores makes impossible."""
    settings = ClusterSettings(
        namespace=namespace,
        measure_image=reference("measure"),
        controller_image=reference("controller"),
    )
    environment = MeasuringEnvironment(
        cpu=1, memory="256Mi", node_selector=MEASURING, gpu_resource=GPU, parallelism=PODS
    )
    task = JobTask(
        Kind.MEASURE, "queue", labels={}, indices=PODS,
        command=["python", "-c", "import time; time.sleep(3)"], arguments=[],
    )  # fmt: skip
    created = job_manifest(task, environment, settings)
    spec = created.spec.template.spec
    spec.affinity.pod_anti_affinity = None  # there is one node
    for amounts in (spec.containers[0].resources.requests, spec.containers[0].resources.limits):
        amounts["cpu"] = "100m"
    return created


@pytest.mark.timeout(300)
def test_pods_that_do_not_fit_wait_and_then_run(real, plane, namespace):
    real.node.offer(GPU, GPUS)
    at_once, waited = set(), set()
    with plane.client() as api:
        batch = client.BatchV1Api(api)
        batch.create_namespaced_job(namespace, job(namespace))

        def complete():
            running = [
                container for container in containers(real, namespace) if container.state.running
            ]
            at_once.add(len(running))
            waited.update(real.waiting(namespace))
            return batch.read_namespaced_job("queue", namespace).status.completion_time

        wait_for(complete, 120)
        done = batch.read_namespaced_job("queue", namespace).status
    assert (done.succeeded, done.failed) == (PODS, None)
    assert max(at_once) == GPUS
    assert len(waited) == PODS - GPUS
    assert [container.state.terminated.exit_code for container in containers(real, namespace)] == [
        0
    ] * PODS


def containers(real, namespace):
    pods = real.node.core.list_namespaced_pod(namespace).items
    return [
        status
        for pod in pods
        for status in pod.status.container_statuses or ()
        if status.name == CONTAINER
    ]
