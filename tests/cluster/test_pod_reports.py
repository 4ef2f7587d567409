"""What the status of a pod says: why it does not start, how it ended, and whose log says why."""

import pytest
from kubernetes import client

from collage.cluster.kubernetes.api import Jobs
from collage.cluster.kubernetes.pod_reports import (
    MainEnd,
    Obstacle,
    ended_container,
    failure,
    main_end,
    pod_problem,
)


def pod(*, containers=(), inits=(), phase="Pending", node=None, **status):
    return client.V1Pod(
        metadata=client.V1ObjectMeta(
            name="j-0", annotations={"batch.kubernetes.io/job-completion-index": "3"}
        ),
        spec=client.V1PodSpec(
            containers=[client.V1Container(name="measure", image="i")], node_name=node
        ),
        status=client.V1PodStatus(
            phase=phase, container_statuses=list(containers), init_container_statuses=list(inits),
            **status,
        ),
    )  # fmt: skip


def container(name="measure", **state):
    return client.V1ContainerStatus(
        name=name, image="i", image_id="", ready=False, restart_count=0,
        state=client.V1ContainerState(**state),
    )  # fmt: skip


def waiting(reason, message=""):
    return client.V1ContainerStateWaiting(reason=reason, message=message)


def test_an_init_container_without_its_image_stops_the_pod():
    problem = pod_problem(
        pod(
            inits=[container("mesh", waiting=waiting("ImagePullBackOff", "not found"))],
            containers=[container(waiting=waiting("PodInitializing"))],
        )
    )
    assert (problem.reason, problem.obstacle) == ("ImagePullBackOff", Obstacle.OPERATOR)


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_a_container_that_is_not_created_is_starting(reason):
    assert (
        pod_problem(pod(containers=[container(waiting=waiting(reason))])).obstacle is Obstacle.START
    )


def test_a_failed_pod_has_its_reason():
    killed = client.V1ContainerStateTerminated(exit_code=137, reason="OOMKilled")
    assert (
        failure(pod(containers=[container(terminated=killed)]))
        == "measure: OOMKilled (exit code 137)"
    )
    evicted = pod(phase="Failed", reason="Evicted", message="The node was low on memory")
    assert failure(evicted) == "Evicted: The node was low on memory"
    assert failure(pod(phase="Failed")) == ""


@pytest.mark.parametrize(("node", "obstacle"), [(None, Obstacle.NODE), ("n1", Obstacle.START)])
def test_a_pod_that_nobody_looked_at_is_a_problem(node, obstacle):
    problem = pod_problem(pod(node=node))
    assert problem.obstacle is obstacle
    assert "has not looked at it" in problem.message or "no scheduler" in problem.message


def test_the_container_that_measures_may_end_first():
    ended = container(terminated=client.V1ContainerStateTerminated(exit_code=0))
    proxy = container("proxy", running=client.V1ContainerStateRunning())
    assert main_end(pod(containers=[ended, proxy], phase="Running")) == MainEnd(
        "j-0", 3, 0, ("proxy",)
    )
    working = container(running=client.V1ContainerStateRunning())
    assert main_end(pod(containers=[working, proxy], phase="Running")) is None


def test_the_log_is_that_of_the_container_that_failed():
    failed = client.V1ContainerStateTerminated(exit_code=1)
    waits = container(waiting=waiting("PodInitializing"))
    init = container("mesh-init", terminated=failed)
    assert ended_container(pod(inits=[init], containers=[waits])) == "mesh-init"
    proxy = container("proxy", terminated=failed)
    assert ended_container(pod(containers=[container(terminated=failed), proxy])) == "measure"
    assert ended_container(pod(phase="Failed")) == "measure"


class PodsOfAJob:
    """An API that lists two failed pods, one of them without a log."""

    def list_namespaced_pod(self, namespace, **_):
        killed = client.V1ContainerStateTerminated(exit_code=137, reason="OOMKilled")
        rejected = pod(phase="Failed", reason="NodeAffinity", message="Pod was rejected")
        ended = pod(containers=[container(terminated=killed)], phase="Failed")
        ended.metadata = client.V1ObjectMeta(name="j-1")
        return client.V1PodList(items=[rejected, ended])

    def read_namespaced_pod_log(self, name, namespace, *, container, **_):
        assert container == "measure"
        if name == "j-0":
            raise client.ApiException(status=400, reason="the container has not started")
        return "the last words\n"


def test_a_pod_without_a_log_hides_no_other(monkeypatch):
    monkeypatch.setattr(client, "CoreV1Api", lambda api: PodsOfAJob())
    assert Jobs("n", None).log_tails("j", pods=3, lines=5) == [
        "the pod j-0: NodeAffinity: Pod was rejected",
        "the pod j-1: measure: OOMKilled (exit code 137)\nthe last words",
    ]
