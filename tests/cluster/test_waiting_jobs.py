"""Jobs whose pods are not created, do not start or do not end: what is said, and when they are given up."""

from types import SimpleNamespace

import pytest
from kubernetes import client

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.api import JobView
from collage.cluster.kubernetes.jobs import JobRunner
from collage.cluster.kubernetes.pod_reports import Obstacle, failure, may_pass, pod_problem
from collage.errors import ClusterError

POLICY = 'FailedCreate: pods "j-0" is forbidden: violates PodSecurity "restricted:latest"'
CLASS = 'FailedCreate: pods "j-0" is forbidden: no PriorityClass with name gold was found'
QUOTA = 'FailedCreate: pods "j-0" is forbidden: exceeded quota: team, requested: cpu=2'
WEBHOOK = 'FailedCreate: Internal error occurred: failed calling webhook "kyverno": timeout'
MOUNT = 'FailedMount: MountVolume.SetUp failed for volume "ca": configmap "ca" not found'


class StalledJobs:
    """One Job in one state for ever; time passes with every poll."""

    def __init__(self, view, *, problems=(), warnings=()):
        self.view, self.problems, self.messages = view, list(problems), list(warnings)
        self.deleted, self.now_s = [], 0.0

    def read(self, name):
        return self.view

    def pod_problems(self, name):
        return self.problems

    def warnings(self, kind, name):
        return self.messages

    def delete(self, name):
        self.deleted.append(name)

    def sleep(self, seconds):
        self.now_s += seconds


def waited(jobs, until_s):
    """Wait for the Job until a time; return the notices with their times, and the error or None."""
    notices = []

    def sleep(seconds):
        jobs.sleep(seconds)
        if jobs.now_s > until_s:
            raise TimeoutError

    settings = ClusterSettings(namespace="n", measure_image="m", controller_image="c", poll_s=1.0)
    runner = JobRunner(
        jobs, MeasuringEnvironment(), settings, lambda text: notices.append((jobs.now_s, text)),
        clock=lambda: jobs.now_s, sleep=sleep,
    )  # fmt: skip
    try:
        runner.wait("j")
    except TimeoutError:
        return notices, None
    except ClusterError as error:
        return notices, str(error)
    raise AssertionError("the Job has no end")


@pytest.mark.parametrize("reason", [POLICY, CLASS])
def test_refused_pods_are_told_and_given_up(reason):
    jobs = StalledJobs(JobView("j", {}, started=True), warnings=["old", reason])
    notices, error = waited(jobs, 3600)
    assert notices[0][0] < 60
    assert notices[0][1] == f"the pods of the Job j are not created: {reason}"
    assert error == f"the Job j was given up: its pods are refused: {reason}"
    assert jobs.now_s < 180
    assert jobs.deleted == ["j"]


@pytest.mark.parametrize("reason", [QUOTA, WEBHOOK])
def test_refusals_that_pass_are_told_and_waited_for(reason):
    jobs = StalledJobs(JobView("j", {}, started=True), warnings=[reason])
    notices, error = waited(jobs, 3600)
    assert [text for _, text in notices] == [f"the pods of the Job j are not created: {reason}"]
    assert error is None
    assert may_pass(reason)


def test_without_events_the_absence_is_told_all_the_same():
    notices, error = waited(StalledJobs(JobView("j", {}, started=True)), 3600)
    assert "are not created: Kubernetes does not say why" in notices[0][1]
    assert error is None


def test_pods_that_do_not_start_are_told_with_their_event():
    problem = SimpleNamespace(
        pod="j-0", reason="ContainerCreating", message="", obstacle=Obstacle.START
    )
    jobs = StalledJobs(
        JobView("j", {}, started=True, active=1), problems=[problem], warnings=[MOUNT]
    )
    notices, error = waited(jobs, 3600)
    assert notices[0][0] < 60
    assert notices[0][1] == f"1 pods of the Job j do not start: {MOUNT}"
    assert "its pods have not started for 60" in error
    assert error.endswith(MOUNT)


def test_pods_that_do_not_end_are_given_up_in_minutes():
    jobs = StalledJobs(JobView("j", {}, started=True, terminating=2))
    notices, error = waited(jobs, 3600)
    assert "2 pods of the Job j do not end; their node may be away" in notices[0][1]
    assert "was given up: 2 pods" in error
    assert jobs.now_s < 1200


def test_a_running_job_says_nothing():
    jobs = StalledJobs(JobView("j", {}, started=True, active=1, ready=1))
    assert waited(jobs, 3600) == ([], None)


def pod(*, containers=(), inits=(), phase="Pending", **status):
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name="j-0"),
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
