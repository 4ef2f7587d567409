"""The manifest of a measuring Job, whole, and what settings add to it."""

import json
from pathlib import Path

import pytest
import yaml
from kubernetes.client import ApiClient

from collage.cluster.controller.environments import MeasuringEnvironment, parse_environments
from collage.cluster.controller.settings import ClusterSettings, SigningSecret
from collage.cluster.kubernetes.manifests import JobTask, Kind, job_manifest
from collage.errors import OptionError

GOLDEN = Path(__file__).with_name("golden")
SETTINGS = ClusterSettings(
    namespace="collage",
    measure_image="registry/collage-measure:1",
    controller_image="registry/collage-controller:1",
    service_account="collage-measure",
    env_from_secrets=("collage-store-measure",),
    finish_service_account="collage-finish",
    finish_env_from_secrets=("collage-store-finish",),
)
PLAIN = MeasuringEnvironment(threads=2, cpu=3, memory="8Gi", node_selector={"pool": "measure"})
GPU = parse_environments(
    {
        "gpu": {
            "threads": 4, "cpu": 6, "memory": "32Gi", "gpuResource": "nvidia.com/gpu",
            "priorityClassName": "collage-measure", "queueName": "gpu-measure",
            "nodeSelector": {"nvidia.com/gpu.product": "H200"}, "parallelism": 16,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "build": {"cpu": 4, "nodeSelector": {"pool": "build"}, "parallelism": 3},
        }
    },
    "here",
)["gpu"]  # fmt: skip
MEASURE = JobTask(
    Kind.MEASURE,
    "collage-pool-0123",
    {"run": "r" * 32, "environment": "pool", "search": "s" * 32},
    ["shard", "--store", "s3://bucket", "--batch", "d" * 64],
    {"batch": "d" * 64},
    indices=5,
)
BUILD = JobTask(
    Kind.BUILD,
    "collage-pool-4567",
    {"run": "r" * 32, "environment": "pool", "search": "s" * 32},
    ["build", "--store", "s3://bucket", "--batch", "d" * 64],
    {"batch": "d" * 64},
    command=("python", "-m", "containers.measure"),
    compiles=True,
    indices=5,
)
FINISH = JobTask(
    Kind.FINISH, "collage-finish-0123", {"run": "r" * 32}, ["--request", "r"],
    command=("python", "-m", "containers.finish"), compiles=True,
)  # fmt: skip


def rendered(task, environment):
    with ApiClient() as api:
        return api.sanitize_for_serialization(job_manifest(task, environment, SETTINGS))


@pytest.mark.parametrize(
    ("name", "task", "environment"),
    [
        ("measure", MEASURE, PLAIN),
        ("gpu", MEASURE, GPU),
        ("finish", FINISH, PLAIN),
        ("build", BUILD, GPU),
    ],
)
def test_manifests(name, task, environment):
    """To renew a golden text, delete it and run twice."""
    rendering = yaml.safe_dump(rendered(task, environment), sort_keys=True)
    golden = GOLDEN / f"{name}.yaml"
    if not golden.exists():
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(rendering)
        pytest.fail(f"{golden} was written: read it, and run again")
    assert rendering == golden.read_text()


@pytest.mark.parametrize("version", ["1.31", "1.34", "1.36"])
@pytest.mark.parametrize("environment", [PLAIN, GPU], ids=["plain", "gpu"])
def test_manifests_are_valid(version, environment):
    validate = pytest.importorskip("kubernetes_validate").validate
    for task in (MEASURE, BUILD, FINISH):
        validate(rendered(task, environment), version, strict=True)


def test_no_pod_mounts_a_token_or_may_become_root():
    pod = rendered(MEASURE, GPU)["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "AWS" not in json.dumps(pod)


def test_pods_have_the_limits_of_import_that_the_controller_has(monkeypatch):
    monkeypatch.setenv("COLLAGE_IMPORT_MEMORY", "4GiB")
    container = rendered(MEASURE, PLAIN)["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "COLLAGE_IMPORT_MEMORY", "value": "4GiB"} in container["env"]


def test_pods_are_guaranteed_with_whole_cpus():
    resources = rendered(MEASURE, GPU)["spec"]["template"]["spec"]["containers"][0]["resources"]
    limits = dict(resources["limits"])
    assert limits.pop("nvidia.com/gpu") == "1"
    assert limits == resources["requests"] == {"cpu": "6", "memory": "32Gi"}


@pytest.mark.parametrize(
    ("entry", "device"),
    [
        ({}, "cpu"),
        ({"gpuResource": "nvidia.com/gpu"}, "cuda"),
        ({"gpuResource": "nvidia.com/gpu", "device": "cuda"}, "cuda"),
        ({"gpuResource": "nvidia.com/gpu", "device": "cpu"}, "cpu"),
    ],
)
def test_an_environment_has_one_device(entry, device):
    parsed = parse_environments({"a": entry}, "here")["a"]
    assert parsed.device == device
    assert parsed.build_environment.device == device
    assert parsed.build_environment.gpu_resource == ""


def test_shared_gpus_are_refused_and_only_gpu_pods_set_a_runtime():
    environment = GPU.model_copy(update={"runtime_class_name": "nvidia"})
    for task, runtime in ((MEASURE, "nvidia"), (FINISH, "nvidia"), (BUILD, None)):
        pod = rendered(task, environment)["spec"]["template"]["spec"]
        assert pod.get("runtimeClassName") == runtime
        if runtime:
            required = pod["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]
            (term,) = required["nodeSelectorTerms"]
            assert term["matchExpressions"] == [
                {"key": "nvidia.com/gpu.sharing-strategy", "operator": "NotIn",
                 "values": ["time-slicing", "mps"]}
            ]  # fmt: skip


def test_build_pods_need_no_gpu_and_avoid_measuring_nodes():
    job = rendered(BUILD, GPU)["spec"]
    pod, labels = job["template"]["spec"], job["template"]["metadata"]["labels"]
    container = pod["containers"][0]
    assert container["image"] == SETTINGS.controller_image
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "4Gi"}
    assert pod["nodeSelector"] == {"pool": "build"}
    assert "tolerations" not in pod
    assert "nodeAffinity" not in pod["affinity"]
    assert job["parallelism"] == 3
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    timed = rendered(MEASURE, GPU)["spec"]["template"]["metadata"]["labels"]
    assert apart["labelSelector"]["matchLabels"].items() <= timed.items()
    assert not apart["labelSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": {"paralelism": 3}}, r"here: a\.paralelism: Extra inputs"),
        ({"a": {"cpu": 1.5}}, r"here: a\.cpu: "),
        ({"a": {"cpu": 2, "threads": 4}}, r"here: a: .*cpu \(2\) must be at least threads \(4\)"),
        ({"a": {"build": {"nodeSelectr": {}}}}, r"here: a\.build\.nodeSelectr: Extra inputs"),
        ({"a": {"memory": "lots"}}, r"here: a\.memory: "),
        ({"a": {"tolerations": [{"efect": "x"}]}}, r"here: a\.tolerations\.0\.efect: "),
        ({"a": {"device": "cuda"}}, r"here: a: .*device cuda needs gpuResource.*nvidia\.com/gpu"),
        ({"a": {"device": "gpu"}}, r"here: a\.device: "),
        ({"A": {}}, "cannot name an environment"),
        ({}, "at least one"),
        ([1], "write a mapping"),
    ],
)
def test_a_wrong_environment_is_named(content, message):
    with pytest.raises(OptionError, match=message):
        parse_environments(content, "here")


def test_only_finishing_pods_mount_the_key_that_signs():
    signing = SigningSecret(name="signing", key="private")
    settings = SETTINGS.model_copy(update={"signing": signing})
    for task in (MEASURE, BUILD, FINISH):
        with ApiClient() as api:
            manifest = api.sanitize_for_serialization(job_manifest(task, PLAIN, settings))
        pod = manifest["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "signing"]
        keys = [variable for variable in container["env"] if variable["name"] == "COLLAGE_SIGN_KEY"]
        if task is not FINISH:
            assert not secrets + mounts + keys
            continue
        items = [{"key": "private", "path": "key.pem"}]
        assert secrets == [{"secretName": "signing", "items": items, "defaultMode": 0o440}]
        (mount,) = mounts
        assert mount["readOnly"] is True
        assert keys[0]["value"] == f"{mount['mountPath']}/key.pem"
