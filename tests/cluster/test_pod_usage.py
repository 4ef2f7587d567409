"""The usage of one pod from what Kubernetes says about it."""

from datetime import UTC, datetime, timedelta

import pytest
from kubernetes import client

from collage.cluster.kubernetes.pod_usage import pod_usage

START = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def running(start):
    return client.V1ContainerState(running=client.V1ContainerStateRunning(started_at=at(start)))


def ended(start, end):
    times = {"started_at": None, "finished_at": None}
    if end is not None:
        times = {"started_at": at(start), "finished_at": at(end)}
    return client.V1ContainerState(
        terminated=client.V1ContainerStateTerminated(exit_code=1, **times)
    )


WAITING = client.V1ContainerState(waiting=client.V1ContainerStateWaiting(reason="ErrImagePull"))


def make_pod(state, phase="Running", noted=(), limits=None):
    limits = limits or {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}
    requests = {name: value for name, value in limits.items() if "/" not in name}
    resources = client.V1ResourceRequirements(limits=limits, requests=requests)
    statuses = [
        client.V1ContainerStatus(name=name, state=value, image="", image_id="", ready=False,
                                 restart_count=0)
        for name, value in (("istio-proxy", running(0)), ("measure", state))
        if value is not None
    ]  # fmt: skip
    conditions = [
        client.V1PodCondition(type="Ready", status="False", last_transition_time=at(seconds))
        for seconds in noted
    ]
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name="pod"),
        spec=client.V1PodSpec(containers=[client.V1Container(name="measure", resources=resources)]),
        status=client.V1PodStatus(
            phase=phase, start_time=START, container_statuses=statuses, conditions=conditions
        ),
    )


@pytest.mark.parametrize(
    ("pod", "seconds"),
    [
        (make_pod(running(10)), 90.0),
        (make_pod(ended(10, 25), "Failed"), 15.0),
        (make_pod(ended(10, 25), "Succeeded", noted=[40]), 15.0),
        (make_pod(ended(None, None), "Failed", noted=[30, 50]), 50.0),
        (make_pod(None, "Failed", noted=[20]), 20.0),
        (make_pod(None, "Pending"), None),
        (make_pod(WAITING, "Pending"), None),
        (make_pod(WAITING, "Failed", noted=[20]), None),
    ],
    ids=["running", "failed", "succeeded", "unknown end", "evicted", "pending", "waiting", "never ran"],
)  # fmt: skip
def test_a_pod_counts_from_start_to_end_of_its_container(pod, seconds):
    actual = pod_usage(pod, at(100))
    if seconds is None:
        assert actual is None
        return
    usage = actual.usage
    assert (usage.node_s, usage.cpu_s, usage.gpu_s) == (seconds, 4 * seconds, 2 * seconds)


def test_parts_of_processors_and_slices_of_gpus_are_counted():
    limits = {"cpu": "1500m", "nvidia.com/mig-1g.10gb": "3"}
    usage = pod_usage(make_pod(ended(0, 10), "Failed", limits=limits), at(100)).usage
    assert (usage.cpu_s, usage.gpu_s) == (15.0, 30.0)
