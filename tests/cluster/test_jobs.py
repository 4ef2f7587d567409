"""Jobs as the real Job controller and scheduler run them: what is free, what fails, what is waited for."""

import copy
import threading
import time
from functools import partial

import pytest
from kubernetes import client

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.kubernetes import job_watch, manifests
from collage.cluster.kubernetes.api import _view
from collage.cluster.kubernetes.jobs import Ending, JobRunner
from collage.cluster.kubernetes.manifests import JobTask, Kind
from collage.errors import ClusterError
from tests.servers.node import Node
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full
until = partial(wait_for, timeout_s=30, every_s=0.1)

FOREVER = "import time; print('up', flush=True); time.sleep(120)"


def task(name, code, indices=1):
    command = ["python", "-c", code]
    return JobTask(Kind.FINISH, name, {"run": "r"}, [], command=command, indices=indices)


@pytest.fixture
def runner(nodes, jobs, environment, settings, notices):
    return JobRunner(jobs, environment, settings, notices.append)


def pods(core, namespace, name):
    selector = f"batch.kubernetes.io/job-name={name}"
    return core.list_namespaced_pod(namespace, label_selector=selector).items


def up(core, nodes, namespace, name, ignored=()):
    """Wait for a pod of the Job, none of `ignored`, that has begun to work; return its name."""

    def ask():
        for pod in pods(core, namespace, name):
            pod_name = pod.metadata.name
            if pod_name not in ignored and any(
                "up" in n.log(namespace, pod_name, "measure") for n in nodes
            ):
                return pod_name
        return None

    return until(ask)


class Waiting(threading.Thread):
    """Waits for a Job in a thread; `end` returns how it ended."""

    def __init__(self, runner, name):
        super().__init__(daemon=True)
        self.runner, self.job, self.found = runner, name, None
        self.start()

    def run(self):
        try:
            self.found = self.runner.wait(self.job)
        except Exception as error:
            self.found = error

    def end(self, timeout_s=60):
        self.join(timeout_s)
        assert not self.is_alive()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_a_bad_index_fails_alone_and_without_a_retry(runner, core, namespace):
    code = "import os,sys; sys.exit(42 if os.environ['JOB_COMPLETION_INDEX'] == '1' else 0)"
    runner.submit(task("alone", code, indices=3))
    end = runner.wait("alone")
    assert (end.ending, end.code, end.failed_indices) == (Ending.FAILED, "FailedIndexes", "1")
    assert runner.jobs.read("alone").succeeded == 2
    assert len(pods(core, namespace, "alone")) == 3


def test_a_bad_node_fails_the_job_with_what_it_said(runner):
    code = "import sys; print('no such CPU; password=hunter2', file=sys.stderr); sys.exit(43)"
    runner.submit(task("bad", code, indices=4))
    end = runner.wait("bad")
    assert (end.ending, end.code) == (Ending.FAILED, "PodFailurePolicy")
    assert "no such CPU" in end.reason
    assert "hunter2" not in end.reason


@pytest.fixture
def no_retry(monkeypatch):
    """An index that fails once has failed: only what costs no retry may happen to it."""
    monkeypatch.setattr(manifests, "RETRIES_PER_INDEX", 0)


def test_an_eviction_costs_no_retry(runner, core, nodes, namespace, no_retry):
    runner.submit(task("evicted", FOREVER.replace("120", "5")))
    waiting = Waiting(runner, "evicted")
    first = up(core, nodes, namespace, "evicted")
    core.create_namespaced_pod_eviction(first, namespace, {"metadata": {"name": first}})
    assert waiting.end(90).ending is Ending.COMPLETE
    assert first not in [pod.metadata.name for pod in pods(core, namespace, "evicted")]


def test_a_killed_pod_costs_one(runner, core, nodes, namespace, no_retry):
    runner.submit(task("killed", FOREVER))
    waiting = Waiting(runner, "killed")
    victim = up(core, nodes, namespace, "killed")
    for node in nodes:
        node.kill(namespace, victim)
    end = waiting.end()
    assert (end.ending, end.failed_indices) == (Ending.FAILED, "0")


def test_preemption_costs_no_retry(plane, runner, core, nodes, namespace, no_retry):
    runner.submit(task("preempted", FOREVER.replace("120", "5")))
    waiting = Waiting(runner, "preempted")
    first = up(core, nodes, namespace, "preempted")
    host = core.read_namespaced_pod(first, namespace).spec.node_name
    with plane.client() as api:
        client.SchedulingV1Api(api).create_priority_class(
            {"metadata": {"name": "urgent"}, "value": 9}
        )
    core.create_namespaced_pod(namespace, urgent_pod(host))
    until(lambda: first not in [p.metadata.name for p in pods(core, namespace, "preempted")])
    end = waiting.end(90)
    assert end.ending is Ending.COMPLETE
    with plane.client() as api:
        job = client.BatchV1Api(api).read_namespaced_job("preempted", namespace)
        client.SchedulingV1Api(api).delete_priority_class("urgent")
    assert job.status.succeeded == 1


def urgent_pod(host):
    """A pod of higher priority that needs the whole node."""
    limits = {"cpu": "8", "memory": "1Gi"}
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "main", "image": "collage/controller:1", "args": ["-c", "pass"],
        "resources": {"limits": limits, "requests": limits}, "securityContext": context,
    }  # fmt: skip
    security = {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "metadata": {"name": "urgent"},
        "spec": {
            "restartPolicy": "Never", "priorityClassName": "urgent", "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": host}, "securityContext": security,
        },
    }  # fmt: skip


def test_the_api_server_may_go_and_come_back(plane, runner, core, nodes, namespace):
    runner.submit(task("away", FOREVER.replace("120", "6")))
    waiting = Waiting(runner, "away")
    up(core, nodes, namespace, "away")
    plane.kill("kube-apiserver")
    time.sleep(2)
    assert waiting.is_alive()
    plane.start("kube-apiserver")
    assert waiting.end().ending is Ending.COMPLETE


def test_a_running_job_is_adopted_and_an_ended_one_replaced(runner, notices, jobs):
    same = task("same", "import time; time.sleep(2)")
    runner.submit(same)
    runner.submit(same)
    assert notices == ["the Job same runs already: waiting for it"]
    assert runner.wait("same").ending is Ending.COMPLETE
    runner.submit(same)
    assert runner.wait("same").ending is Ending.COMPLETE
    assert len(jobs.find({"collage.dev/run": "r"})) == 1


def test_a_job_that_is_deleted_is_gone(runner, core, nodes, namespace, jobs):
    runner.submit(task("gone", FOREVER))
    waiting = Waiting(runner, "gone")
    up(core, nodes, namespace, "gone")
    jobs.delete("gone")
    assert waiting.end().ending is Ending.GONE


def test_the_deadlines_end_a_job_without_a_controller(runner, environment, jobs):
    short = {"deadline_seconds": 1, "queue_seconds": 1}
    runner.environment = environment.model_copy(update=short)
    runner.submit(task("late", FOREVER))
    until(lambda: jobs.read("late").failed)
    end = runner.wait("late")
    assert (end.ending, end.code) == (Ending.FAILED, "DeadlineExceeded")


def test_a_job_that_runs_for_too_long_is_given_up(runner, environment, jobs):
    runner.environment = environment.model_copy(update={"deadline_seconds": 2})
    runner.submit(task("long", FOREVER))
    with pytest.raises(ClusterError, match=r"has run for [23] s \(deadlineSeconds: 2\)"):
        runner.wait("long")


@pytest.mark.parametrize("obstacle", ["without a node", "suspended"])
def test_waiting_and_running_time_have_separate_limits(plane, runner, environment, jobs, obstacle):
    limits = {"queue_seconds": 2, "deadline_seconds": 60}
    nowhere = {"node_selector": {"pool": "none"}} if obstacle == "without a node" else {}
    runner.environment = environment.model_copy(update=limits | nowhere)
    runner.submit(task("queue", FOREVER))
    if obstacle == "suspended":
        with plane.client() as api:
            client.BatchV1Api(api).patch_namespaced_job(
                "queue", runner.jobs.namespace, {"spec": {"suspend": True}}
            )
    with pytest.raises(ClusterError, match=r"waited [23] s for nodes or quota \(queueSeconds: 2"):
        runner.wait("queue")
    runner.environment = environment.model_copy(update={"queue_seconds": 30})
    runner.submit(task("runs", FOREVER.replace("120", "4")))
    end = runner.wait("runs")
    assert end.ending is Ending.COMPLETE
    assert 2.5 < end.running_s < 6


def test_several_jobs_are_waited_for_at_once(runner):
    for name in ("one", "two"):
        runner.submit(task(name, "import time; time.sleep(2)"))
    runner.submit(task("bad", "import sys; sys.exit(42)"))
    ends = runner.wait_all(["one", "two", "bad"])
    endings = {name: end.ending for name, end in ends.items()}
    complete = Ending.COMPLETE
    assert endings == {"one": complete, "two": complete, "bad": Ending.FAILED}


def test_a_pod_that_a_sidecar_keeps_has_ended(
    runner, environment, settings, jobs, core, namespace, monkeypatch
):
    monkeypatch.setattr(job_watch, "SIDECAR_S", 1.0)
    manifest = manifests.job_manifest(task("meshed", "print('up')"), environment, settings)
    pod = manifest.spec.template.spec
    sidecar = copy.deepcopy(pod.containers[0])
    sidecar.name, sidecar.command = "proxy", ["python", "-c", FOREVER]
    pod.containers = [*pod.containers, sidecar]
    jobs.create(manifest)
    end = Waiting(runner, "meshed").end()
    assert end.ending is Ending.COMPLETE
    assert jobs.read("meshed") is None
    until(lambda: not pods(core, namespace, "meshed"))


def test_pods_without_room_wait_and_say_so(runner, environment, notices, jobs, monkeypatch):
    monkeypatch.setattr(job_watch, "SAY_AFTER_S", 0.5)
    runner.environment = environment.model_copy(update={"node_selector": {"pool": "none"}})
    runner.submit(task("room", "pass"))
    waiting = Waiting(runner, "room")
    until(
        lambda: any("wait for a node" in notice and "didn't match" in notice for notice in notices)
    )
    assert waiting.is_alive()
    jobs.delete("room")
    assert waiting.end().ending is Ending.GONE


def test_a_suspended_job_is_queued_not_failed(plane, runner, notices):
    """Kueue suspends Jobs until there is quota: prefect_kubernetes takes that for a failure."""
    runner.submit(task("queued", "import time; time.sleep(2)"))
    with plane.client() as api:
        batch, namespace = client.BatchV1Api(api), runner.jobs.namespace
        batch.patch_namespaced_job("queued", namespace, {"spec": {"suspend": True}})
        waiting = Waiting(runner, "queued")
        until(lambda: any("queued until there is quota" in notice for notice in notices))
        assert waiting.is_alive()
        batch.patch_namespaced_job("queued", namespace, {"spec": {"suspend": False}})
    assert waiting.end().ending is Ending.COMPLETE


def test_a_gpu_that_others_use_too_is_never_measured_on(
    plane, runner, core, notices, monkeypatch, tmp_path
):
    monkeypatch.setattr(job_watch, "SAY_AFTER_S", 0.5)
    labels = {"nvidia.com/gpu.sharing-strategy": "time-slicing"}
    images = {"collage/measure:1": ["python"]}
    node = Node(
        plane, "gpu-1", tmp_path, images=images, labels=labels, resources={"nvidia.com/gpu": "1"}
    )
    try:
        runner.environment = MeasuringEnvironment(gpu_resource="nvidia.com/gpu", memory="1Gi")
        runner.submit(task("gpu", "pass"))
        waiting = Waiting(runner, "gpu")
        until(lambda: any("wait for a node" in notice for notice in notices))
        assert waiting.is_alive()
        alone = {"metadata": {"labels": {"nvidia.com/gpu.sharing-strategy": "none"}}}
        core.patch_node("gpu-1", alone)
        assert waiting.end().ending is Ending.COMPLETE
    finally:
        node.close()
        core.delete_node("gpu-1")


@pytest.mark.parametrize(
    ("conditions", "complete", "failed"),
    [
        ([], False, False),
        ([("SuccessCriteriaMet", "True")], False, False),
        ([("FailureTarget", "True")], False, False),
        ([("Complete", "False"), ("Failed", "False")], False, False),
        ([("SuccessCriteriaMet", "True"), ("Complete", "True")], True, False),
        ([("FailureTarget", "True"), ("Failed", "True")], False, True),
        ([("Suspended", "True")], False, False),
    ],
)
def test_only_complete_and_failed_end_a_job(conditions, complete, failed):
    status = client.V1JobStatus(
        conditions=[client.V1JobCondition(type=kind, status=state) for kind, state in conditions]
    )
    view = _view(client.V1Job(metadata=client.V1ObjectMeta(name="j"), status=status))
    assert (view.complete, view.failed) == (complete, failed)
    assert view.ended == (complete or failed)


@pytest.fixture
def obstacle_of_pods(request, plane, core, namespace):
    """Something in the namespace that keeps pods of Jobs from being created."""
    kind = request.param
    with plane.client() as api:
        admission = client.AdmissionregistrationV1Api(api)
        if kind == "quota":
            spec = {"hard": {"pods": "0"}}
            core.create_namespaced_resource_quota(
                namespace, {"metadata": {"name": "team"}, "spec": spec}
            )
        elif kind == "limits":
            spec = {"limits": [{"type": "Container", "max": {"cpu": "500m"}}]}
            core.create_namespaced_limit_range(
                namespace, {"metadata": {"name": "team"}, "spec": spec}
            )
        elif kind == "policy":
            admission.create_validating_admission_policy(policy(namespace))
            admission.create_validating_admission_policy_binding(binding(namespace))
        yield kind
        if kind == "policy":
            admission.delete_validating_admission_policy_binding(namespace)
            admission.delete_validating_admission_policy(namespace)


def policy(name):
    rule = {
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
    }  # fmt: skip
    return {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "images need a signature"}],
        },
    }


def binding(namespace):
    labels = {"kubernetes.io/metadata.name": namespace}
    return {
        "metadata": {"name": namespace},
        "spec": {
            "policyName": namespace,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": labels}},
        },
    }


@pytest.mark.parametrize(
    ("obstacle_of_pods", "words"),
    [
        ("quota", "exceeded quota: team"),
        ("policy", "images need a signature"),
        ("limits", "maximum cpu usage per Container is 500m"),
        ("class", "no PriorityClass with name gold was found"),
        ("runtime", 'RuntimeClass "gold" not found'),
    ],
    indirect=["obstacle_of_pods"],
)
def test_pods_that_cannot_be_created_are_told_within_a_minute(
    obstacle_of_pods, words, runner, environment, notices, jobs, monkeypatch
):
    monkeypatch.setattr(job_watch, "SAY_AFTER_S", 2.0)
    missing = {"class": "priority_class_name", "runtime": "runtime_class_name"}
    if obstacle_of_pods in missing:
        runner.environment = environment.model_copy(update={missing[obstacle_of_pods]: "gold"})
    if obstacle_of_pods == "policy":
        time.sleep(3)  # the API server learns of policies after a moment
    runner.submit(task("refused", "pass"))
    waiting = Waiting(runner, "refused")
    began = time.monotonic()
    wait_for(lambda: any(words in notice for notice in notices), timeout_s=60, every_s=0.5)
    assert time.monotonic() - began < 60
    assert waiting.is_alive()
    jobs.delete("refused")
    assert waiting.end().ending is Ending.GONE
