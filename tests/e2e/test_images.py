"""Contents of the Dockerfile's images, and their permissions on a node."""

import json
import subprocess

import pytest
from kubernetes import client

from tests.e2e import images
from tests.e2e.leaks import SECRET_NAME, find_secrets, own_secrets, scan
from tests.servers.binaries import Unavailable
from tests.servers.receiver import SECRET
from tests.store import versitygw
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full

OURS = {"the store's": versitygw.SECRET.encode(), "the webhook's": SECRET.encode()}
TRY = """
import os
for place in ("/app", "/opt/collage", "/etc", "/"):
    try:
        open(f"{place}/written", "w")
        print("wrote", place)
    except OSError as error:
        print(error.strerror)
open("/tmp/written", "w")
print(os.getuid(), os.getgid())
"""


@pytest.fixture(scope="module")
def built():
    try:
        images.build()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.timeout(3600)
def test_no_layer_holds_a_secret(built, tmp_path):
    observed: set[str] = set()
    actual = []
    for target in images.TARGETS:
        archive = images.export(target, tmp_path)
        actual += [
            f"{target}: {finding}" for finding in scan(archive, own_secrets() | OURS, observed)
        ]
        archive.unlink()
    assert actual == []


@pytest.mark.parametrize("target", images.TARGETS)
def test_the_configuration_holds_none_and_says_who_runs(built, target):
    text = images.inspect(target)
    assert find_secrets(text.encode(), own_secrets() | OURS) == set()
    config = json.loads(text)["OCIv1"]["config"]
    assert config["User"] == "65532:65532"
    assert not [
        variable for variable in config["Env"] if SECRET_NAME.search(variable.partition("=")[0])
    ]
    labels = {name.rpartition(".")[2]: value for name, value in config["Labels"].items()}
    assert labels["title"] == f"collage-{target}"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["version"] == images.TAG
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    git = subprocess.run(command, cwd=images.ROOT, capture_output=True, text=True).stdout.strip()
    assert labels["revision"] == (git or "unknown")


@pytest.mark.parametrize("target", images.TARGETS)
def test_a_pod_is_nobody_and_its_root_cannot_be_written(real, plane, target):
    namespace = plane.make_namespace(
        f"images-{target}", {"pod-security.kubernetes.io/enforce": "restricted"}
    )
    core = real.node.core
    core.create_namespaced_pod(namespace, pod(target))
    try:
        wait_for(
            lambda: (
                core.read_namespaced_pod("try", namespace).status.phase in ("Succeeded", "Failed")
            ),
            120,
        )
        said = core.read_namespaced_pod_log("try", namespace).splitlines()
    finally:
        core.delete_namespace(namespace)
    assert said == ["Read-only file system"] * 4 + ["65532 65532"]


def pod(target):
    """No user is named: it is the image's own, which the kubelet must know to be none that may do all."""
    security = client.V1SecurityContext(
        allow_privilege_escalation=False, read_only_root_filesystem=True,
        capabilities=client.V1Capabilities(drop=["ALL"]),
    )  # fmt: skip
    container = client.V1Container(
        name="try", image=images.reference(target), command=["python", "-c", TRY],
        security_context=security,
        volume_mounts=[client.V1VolumeMount(name="scratch", mount_path="/tmp")],
    )  # fmt: skip
    spec = client.V1PodSpec(
        containers=[container], restart_policy="Never", automount_service_account_token=False,
        volumes=[client.V1Volume(name="scratch", empty_dir=client.V1EmptyDirVolumeSource())],
        security_context=client.V1PodSecurityContext(
            run_as_non_root=True, seccomp_profile=client.V1SeccompProfile(type="RuntimeDefault")
        ),
    )  # fmt: skip
    return client.V1Pod(metadata=client.V1ObjectMeta(name="try"), spec=spec)
