"""Jobs whose pods are not created, do not start or do not end: what is said, and when they are given up."""

import json

import pytest
from kubernetes import client

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.api import Jobs, JobView
from collage.cluster.kubernetes.jobs import Ending, JobRunner
from collage.cluster.kubernetes.pod_reports import (
    MainEnd,
    Obstacle,
    PodFailure,
    PodProblem,
    can_pass,
)
from collage.errors import ClusterError, GivenUpError

POLICY = 'FailedCreate: pods "j-0" is forbidden: violates PodSecurity "restricted:latest"'
CLASS = 'FailedCreate: pods "j-0" is forbidden: no PriorityClass with name gold was found'
QUOTA = (
    'FailedCreate: pods "j-0" is forbidden: exceeded quota: team, requested: cpu=2,memory=4Gi, '
    "used: cpu=3,memory=1Gi, limited: cpu=4,memory=8Gi"
)
SMALL_QUOTA = QUOTA.replace("limited: cpu=4", "limited: cpu=1500m")
LIMITS = (
    'FailedCreate: pods "j-0" is forbidden: maximum cpu usage per Container is 1, but limit is 2'
)
RUNTIME = 'FailedCreate: pods "j-0" is forbidden: pod rejected: RuntimeClass "nvidia" not found'
WEBHOOK = 'FailedCreate: Internal error occurred: failed calling webhook "kyverno": timeout'
MOUNT = 'FailedMount: MountVolume.SetUp failed for volume "ca": configmap "ca" not found'


class StalledJobs:
    """One Job in one state for ever; time passes with every poll."""

    def __init__(self, view, *, problems=(), warnings=(), ends=()):
        self.view, self.problems, self.messages = view, list(problems), list(warnings)
        self.ends, self.failed = list(ends), []
        self.deleted, self.now_s = [], 0.0

    def read(self, name):
        return self.view

    def pod_problems(self, name):
        return self.problems

    def main_ends(self, name):
        return self.ends

    def failures(self, name):
        return self.failed

    def warnings(self, kind, name):
        return self.messages

    def log_tail(self, pod, lines):
        return f"the log of {pod}"

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
    except GivenUpError as error:
        return notices, str(error)
    raise AssertionError("the Job has no end")


@pytest.mark.parametrize("reason", [POLICY, CLASS, LIMITS, RUNTIME, SMALL_QUOTA])
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
    assert can_pass(reason)


def test_without_events_the_absence_is_told_all_the_same():
    notices, error = waited(StalledJobs(JobView("j", {}, started=True)), 3600)
    assert "are not created: Kubernetes does not say why" in notices[0][1]
    assert error is None


def test_pods_that_do_not_start_are_told_with_their_event():
    problem = PodProblem("j-0", "ContainerCreating", "", Obstacle.START)
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


def test_pods_that_start_one_after_another_are_not_stuck():
    """Each is in ContainerCreating at a poll, none of them for long."""

    class Starting(StalledJobs):
        def pod_problems(self, name):
            number = int(self.now_s // 20)
            return [PodProblem(f"j-{number}", "ContainerCreating", "", Obstacle.START)]

    assert waited(Starting(JobView("j", {}, started=True, active=1)), 1800) == ([], None)


def test_a_slow_pull_is_told_and_waited_for():
    problem = PodProblem("j-0", "ContainerCreating", "", Obstacle.START)
    jobs = StalledJobs(JobView("j", {}, started=True, active=1), problems=[problem])
    notices, error = waited(jobs, 1800)
    assert [text for _, text in notices] == ["1 pods of the Job j do not start: ContainerCreating"]
    assert error is None


def ended_beside_sidecars(*codes, completions=None, succeeded=0):
    """Wait for a Job all of whose pods are kept by a proxy; return its end, the Job and the notices."""
    ends = [MainEnd(f"j-{index}", index, code, ("proxy",)) for index, code in enumerate(codes)]
    view = JobView(
        "j", {}, started=True, active=len(ends), succeeded=succeeded,
        completions=completions or len(ends),
    )  # fmt: skip
    jobs, notices = StalledJobs(view, ends=ends), []
    settings = ClusterSettings(namespace="n", measure_image="m", controller_image="c", poll_s=1.0)
    runner = JobRunner(
        jobs, MeasuringEnvironment(), settings, notices.append, clock=lambda: jobs.now_s,
        sleep=jobs.sleep,
    )  # fmt: skip
    return runner.wait("j"), jobs, notices


def test_pods_that_a_sidecar_keeps_are_complete():
    end, jobs, notices = ended_beside_sidecars(0, 0)
    assert end.ending is Ending.COMPLETE
    assert jobs.deleted == ["j"]
    assert jobs.now_s < 60
    assert "are kept by proxy" in notices[0]


def test_indices_that_a_sidecar_keeps_from_starting_are_missing():
    end, jobs, _ = ended_beside_sidecars(0, 0, completions=5, succeeded=1)
    assert end.ending is Ending.GONE
    assert jobs.deleted == ["j"]


@pytest.mark.parametrize(("code", "reason"), [(42, "FailedIndexes"), (43, "PodFailurePolicy")])
def test_a_failure_beside_a_sidecar_has_its_code_and_log(code, reason):
    end, jobs, _ = ended_beside_sidecars(0, code)
    assert (end.ending, end.code, end.failed_indices) == (Ending.FAILED, reason, "1")
    assert f"the pod j-1: exit code {code}\nthe log of j-1" in end.reason
    assert jobs.deleted == ["j"]


def test_a_job_with_one_working_pod_goes_on():
    ends = [MainEnd("j-0", 0, 0, ("proxy",))]
    jobs = StalledJobs(JobView("j", {}, started=True, active=2, ready=1, completions=2), ends=ends)
    assert waited(jobs, 3600) == ([], None)


SCRATCH = 'Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "20Gi".'
PRESSURE = "Evicted: The node was low on resource: memory."


@pytest.mark.parametrize(("reason", "ends"), [(SCRATCH, True), (PRESSURE, False)])
def test_evictions_are_told_and_end_a_job_that_causes_them(reason, ends):
    class Evicting(StalledJobs):
        def failures(self, name):
            return [PodFailure(f"j-{n}", 0, reason) for n in range(int(self.now_s // 40))]

    jobs = Evicting(JobView("j", {}, started=True, active=1, ready=1))
    notices, error = waited(jobs, 600)
    assert notices[0][0] < 120
    assert notices[0][1] == f"1 pods of the Job j have failed, one of them j-0: {reason}"
    assert (error is not None) is ends
    assert not ends or error.endswith(f"evicted again and again: {reason}")


def test_evictions_of_several_indices_are_no_loop():
    jobs = StalledJobs(JobView("j", {}, started=True, active=1, ready=1))
    jobs.failed = [PodFailure(f"j-{n}", n, SCRATCH) for n in range(5)]
    notices, error = waited(jobs, 600)
    assert len(notices) == 1
    assert error is None


def test_running_pods_that_are_not_ready_are_told():
    jobs = StalledJobs(JobView("j", {}, started=True, active=2, ready=1))
    notices, error = waited(jobs, 1800)
    assert notices[0][0] < 60
    assert notices[0][1].startswith("1 pods of the Job j run and are not ready: their node may be")
    assert (len(notices), error) == (1, None)


def test_a_running_job_says_nothing():
    jobs = StalledJobs(JobView("j", {}, started=True, active=1, ready=1))
    assert waited(jobs, 3600) == ([], None)


RBAC = (
    'jobs.batch is forbidden: User "system:serviceaccount:n:a" cannot create resource "jobs" in API '
    'group "batch" in the namespace "n"'
)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (RBAC, "give its service account the Role of the chart"),
        (QUOTA, "ask for more quota"),
        ("admission webhook kyverno denied the request", "a rule of the cluster refuses it"),
    ],
)
def test_a_refused_job_names_the_right_only_if_it_lacks(monkeypatch, message, advice):
    class Refusing:
        def create_namespaced_job(self, *_, **__):
            error = client.ApiException(status=403, reason="Forbidden")
            error.body = json.dumps({"message": message})
            raise error

    monkeypatch.setattr(client, "BatchV1Api", lambda api: Refusing())
    manifest = client.V1Job(metadata=client.V1ObjectMeta(name="j"))
    with pytest.raises(ClusterError) as raised:
        Jobs("n", None).create(manifest)
    assert advice in str(raised.value)
    assert message in str(raised.value)
    assert ("Role" in str(raised.value)) == (message is RBAC)
