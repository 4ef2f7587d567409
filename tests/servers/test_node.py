"""The played node itself."""

import sys
from pathlib import Path

import pytest
from kubernetes import client

from tests.servers.node import Node
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def node(plane, tmp_path_factory):
    created = Node(
        plane, "node-1", tmp_path_factory.mktemp("node"), images={"python": [sys.executable]}
    )
    yield created
    created.close()


@pytest.fixture(scope="module")
def namespace(plane):
    return plane.make_namespace("played")


def pod(name, code, **spec):
    container = {"name": "main", "image": "python", "args": ["-c", code], **spec}
    return {
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
                 "containers": [container], "volumes": [{"name": "v", "emptyDir": {}}]},
    }  # fmt: skip


@pytest.fixture
def core(plane):
    with plane.client() as api:
        yield client.CoreV1Api(api)


def phase(core, namespace, name, *expected):
    def ask():
        actual = core.read_namespaced_pod(name, namespace)
        return actual if actual.status.phase in expected else None

    return wait_for(ask)


def test_a_pod_has_its_environment_its_volumes_and_a_log(core, node, namespace):
    core.create_namespaced_secret(
        namespace, {"metadata": {"name": "s"}, "stringData": {"KEY": "hidden"}}
    )
    code = (
        "import os,sys,pathlib; f = pathlib.Path(os.environ['CACHE']) / 'x'; f.write_text('1');"
        "print(os.environ['KEY'], os.environ['ME'], sys.argv[1] == str(f)); sys.exit(7)"
    )
    body = pod(
        "one", code,
        env=[{"name": "CACHE", "value": "/cache"},
             {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        envFrom=[{"secretRef": {"name": "s"}}],
        volumeMounts=[{"name": "v", "mountPath": "/cache"}],
    )  # fmt: skip
    body["spec"]["containers"][0]["args"].append("$(CACHE)/x")
    core.create_namespaced_pod(namespace, body)
    done = phase(core, namespace, "one", "Failed")
    assert done.status.container_statuses[0].state.terminated.exit_code == 7
    assert core.read_namespaced_pod_log("one", namespace) == "hidden one True\n"


def test_a_volume_does_not_hide_an_image_s_program(core, node, namespace):
    """As /tmp does where the checkout lies there."""
    mount = {"name": "v", "mountPath": str(Path(sys.executable).parent)}
    core.create_namespaced_pod(namespace, pod("over", "", volumeMounts=[mount]))
    phase(core, namespace, "over", "Succeeded")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": "nowhere"}, "ImagePullBackOff"),
        ({"image": "nowhere", "imagePullPolicy": "Never"}, "ErrImageNeverPull"),
        ({"envFrom": [{"secretRef": {"name": "absent"}}]}, "CreateContainerConfigError"),
        ({"command": ["/nowhere"]}, "CreateContainerError"),
    ],
)
def test_what_cannot_start_waits_and_says_why(core, node, namespace, change, reason):
    name = reason.lower()
    core.create_namespaced_pod(namespace, pod(name, "", **change))

    def waiting():
        statuses = core.read_namespaced_pod(name, namespace).status.container_statuses
        return statuses and statuses[0].state.waiting and statuses[0].state.waiting.reason == reason

    wait_for(waiting)
    core.delete_namespaced_pod(name, namespace)
    wait_for(
        lambda: name not in [p.metadata.name for p in core.list_namespaced_pod(namespace).items]
    )


def test_an_evicted_pod_counts_as_disrupted_not_failed(plane, core, node, namespace):
    code = (
        "import signal,sys,time\n"
        "def end(*_): print('bye', flush=True); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(60)"
    )
    spec = pod("x", code)["spec"]
    job = {
        "metadata": {"name": "job"},
        "spec": {
            "completionMode": "Indexed", "completions": 1, "backoffLimitPerIndex": 0,
            "podReplacementPolicy": "Failed", "template": {"spec": spec},
            "podFailurePolicy": {"rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
            ]},
        },
    }  # fmt: skip
    with plane.client() as api:
        client.BatchV1Api(api).create_namespaced_job(namespace, job)
    ask = {"label_selector": "job-name=job"}
    name = wait_for(lambda: core.list_namespaced_pod(namespace, **ask).items)[0].metadata.name
    wait_for(lambda: "up" in node.log(namespace, name, "main"))
    eviction = {"metadata": {"name": name}}
    core.create_namespaced_pod_eviction(name, namespace, eviction)
    wait_for(lambda: "bye" in node.log(namespace, name, "main"))

    def replaced():
        names = [p.metadata.name for p in core.list_namespaced_pod(namespace, **ask).items]
        return [candidate for candidate in names if candidate != name]

    second = wait_for(replaced)[0]
    wait_for(lambda: "up" in node.log(namespace, second, "main"))
    node.kill(namespace, second)  # that is a failure: the index has no retry left

    def failed():
        with plane.client() as api:
            conditions = (
                client.BatchV1Api(api).read_namespaced_job("job", namespace).status.conditions
            )
        return [condition for condition in conditions or () if condition.type == "Failed"]

    wait_for(failed)
