"""What operators add to the pods of Jobs: parsed strictly, and written into the manifest."""

import json

import pytest
from kubernetes.client import ApiClient

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.pod_settings import JOB_ANNOTATIONS, JOB_LABELS, PodSettings
from collage.cluster.controller.settings import ClusterSettings, ControllerSettings
from collage.cluster.kubernetes.manifests import JobTask, Kind, job_manifest
from collage.errors import OptionError

TASK = JobTask(Kind.MEASURE, "job", {"run": "r"}, [])
EXTRAS = {
    "env": [
        {"name": "HOME", "value": "/elsewhere"},
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ],
    "volumes": [
        {"name": "files", "configMap": {"name": "f", "items": [{"key": "k", "path": "p"}]}},
        {"name": "licence", "secret": {"secretName": "s", "optional": True}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
        {"name": "memory", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
    ],
    "volumeMounts": [{"name": "files", "mountPath": "/f", "subPath": "p", "readOnly": True}],
}


def settings(**pod):
    return ClusterSettings(measure_image="m", controller_image="c", pod=pod)


def template(**pod):
    with ApiClient() as api:
        manifest = job_manifest(TASK, MeasuringEnvironment(), settings(**pod))
        return api.sanitize_for_serialization(manifest)["spec"]["template"]


def test_additions_are_in_the_manifest_as_written():
    spec = template(**EXTRAS)["spec"]
    (container,) = spec["containers"]
    for key, parts in (("env", container["env"]), ("volumes", spec["volumes"])):
        assert parts[-len(EXTRAS[key]) :] == EXTRAS[key]
    assert container["volumeMounts"][-1] == EXTRAS["volumeMounts"][0]
    assert [variable["name"] for variable in container["env"]].count("HOME") == 1


def test_without_settings_autoscalers_and_meshes_are_told():
    metadata = template()["metadata"]
    assert metadata["annotations"] == dict(JOB_ANNOTATIONS)
    assert metadata["labels"].items() >= JOB_LABELS.items()
    metadata = template(labels={}, annotations={})["metadata"]
    assert "annotations" not in metadata
    assert not metadata["labels"].keys() & JOB_LABELS.keys()


def test_an_id_that_is_null_is_omitted():
    context = template(runAsUser=None, runAsGroup=0, fsGroup=None)["spec"]["securityContext"]
    seccomp = {"type": "RuntimeDefault"}
    assert context == {"runAsNonRoot": True, "runAsGroup": 0, "seccompProfile": seccomp}


def test_the_settings_are_read_from_one_variable(monkeypatch):
    pod = {**EXTRAS, "runAsUser": None, "arch": "arm64", "caBundle": {"configMap": "ca"}}
    for name, value in {
        "MEASURE_IMAGE": "m",
        "CONTROLLER_IMAGE": "c",
        "POD": json.dumps(pod),
    }.items():
        monkeypatch.setenv(f"COLLAGE_CLUSTER__{name}", value)
    assert ControllerSettings.load().cluster.pod == PodSettings.model_validate(pod)


@pytest.mark.parametrize(
    ("pod", "place"),
    [
        ({"env": [{"name": "A", "valeu": "b"}]}, "valeu"),
        ({"env": [{"name": "A", "value": "b", "valueFrom": {}}]}, "only one of value, value_from"),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"labels": {"app.kubernetes.io/part-of": "x"}}, "part-of cannot be set"),
        ({"annotations": {"collage.dev/batch": "x"}}, "batch cannot be set"),
        ({"runAsUser": 0}, "RUNASUSER"),
    ],
)
def test_a_wrong_addition_is_named(monkeypatch, pod, place):
    for name, value in {
        "MEASURE_IMAGE": "m",
        "CONTROLLER_IMAGE": "c",
        "POD": json.dumps(pod),
    }.items():
        monkeypatch.setenv(f"COLLAGE_CLUSTER__{name}", value)
    with pytest.raises(OptionError) as raised:
        ControllerSettings.load()
    assert place.lower() in str(raised.value).lower()
