"""What values add to all pods: those of the chart, and those of the Jobs that flows make."""

import helm_python
import kubernetes_validate
import pytest

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.pod_settings import JOB_ANNOTATIONS, JOB_LABELS
from collage.cluster.kubernetes.extra_parts import CA_FILE, CA_FOLDER, CA_VARIABLES
from tests.helm import charts, flow_jobs

LASTING = {"collage-worker", "collage-receiver"}
ENDING = {
    "collage-set-up", "collage-clean-up", "collage-test-store", "collage-test-prefect",
    "collage-test-permissions",
}  # fmt: skip
JOBS = {"probe", "build", "measure", "finish"}


def all_pods(values, environment=None):
    """Return metadata and spec of all pods by name: of the chart, and of Jobs by their kind."""
    pods = {}
    for manifest in charts.render(values):
        if manifest["kind"] == "Pod":
            pods[manifest["metadata"]["name"]] = manifest
        elif template := manifest.get("spec", {}).get("template"):
            pods[manifest["metadata"]["name"]] = template
    jobs = flow_jobs.templates(values, environment=environment)
    assert pods.keys() | jobs.keys() == LASTING | ENDING | JOBS
    return pods | jobs


def all_containers(values):
    """Yield the name of the pod, the pod and the container of every container."""
    for name, pod in all_pods(values).items():
        for container in pod["spec"]["containers"]:
            yield name, pod, container


def with_values(**values):
    return {**charts.ALL, **values}


def test_extra_parts_reach_every_pod():
    for name, pod, container in all_containers(charts.EXTRAS):
        for variable in charts.EXTRAS["extraEnv"]:
            assert variable in container["env"], name
        for volume in charts.EXTRAS["extraVolumes"]:
            assert volume in pod["spec"]["volumes"], name
        for mount in charts.EXTRAS["extraVolumeMounts"]:
            assert mount in container["volumeMounts"], name
        assert pod["metadata"]["labels"].items() >= charts.EXTRAS["podLabels"].items(), name
        owner = charts.EXTRAS["podAnnotations"].items()
        assert pod["metadata"]["annotations"].items() >= owner, name


def test_the_own_authorities_reach_every_pod():
    for name, pod, container in all_containers(charts.EXTRAS):
        values = {variable["name"]: variable.get("value") for variable in container["env"]}
        (folder,) = [
            mount["mountPath"]
            for mount in container["volumeMounts"]
            if mount["name"] == "ca-bundle"
        ]
        assert {values[variable] for variable in CA_VARIABLES} == {f"{folder}/{CA_FILE}"}, name
        assert folder == CA_FOLDER
        (volume,) = [
            volume["configMap"]
            for volume in pod["spec"]["volumes"]
            if volume["name"] == "ca-bundle"
        ]
        assert volume == {"name": "company-ca", "items": [{"key": "ca.crt", "path": CA_FILE}]}


@pytest.mark.parametrize("version", ["1.31", "1.36"])
def test_jobs_with_extra_parts_are_valid_strictly(version):
    for kind in flow_jobs.Kind:
        manifest = flow_jobs.job(kind, charts.EXTRAS)
        kubernetes_validate.validate(manifest, version, strict=True)


def test_references_of_a_variable_are_resolved_in_the_pod():
    """The worker has the variables of Jobs in one of its own, where a kubelet expands references too."""
    bypass = {"name": "NO_PROXY", "value": "$(KUBERNETES_SERVICE_HOST),.svc"}
    template = flow_jobs.templates(with_values(extraEnv=[bypass]))["measure"]
    assert bypass in template["spec"]["containers"][0]["env"]


def test_a_variable_is_in_a_container_once():
    values = with_values(
        caBundle={"configMap": "company-ca"},
        extraEnv=[
            {"name": "SSL_CERT_FILE", "value": "/etc/site/ca.pem"},
            {"name": "HOME", "value": "/x"},
        ],
        worker={"extraEnv": [{"name": "HOME", "value": "/y"}]},
    )
    for name, _, container in all_containers(values):
        names = [variable["name"] for variable in container["env"]]
        assert len(names) == len(set(names)), name
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert variables["SSL_CERT_FILE"] == "/etc/site/ca.pem"
        assert variables["HOME"] == ("/y" if name == "collage-worker" else "/x")


def test_pods_that_end_have_no_sidecar_and_no_eviction():
    for name, pod in all_pods(charts.ALL).items():
        labels, annotations = pod["metadata"]["labels"], pod["metadata"].get("annotations", {})
        ends = name not in LASTING
        assert (JOB_LABELS.items() <= labels.items()) is ends, name
        assert (JOB_ANNOTATIONS.items() <= annotations.items()) is ends, name


def test_each_default_of_ending_pods_can_be_replaced():
    evict = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    inject = "sidecar.istio.io/inject"
    jobs = {
        "podLabels": {inject: None},
        "podAnnotations": {evict: "true", inject: None, "example.com/a": "b"},
    }
    values = with_values(jobs=jobs, podLabels={"team": "ml"})
    for name, pod in all_pods(values).items():
        if name in LASTING:
            continue
        annotations = pod["metadata"]["annotations"]
        assert inject not in annotations.keys() | pod["metadata"]["labels"].keys(), name
        assert (annotations[evict], annotations["example.com/a"]) == ("true", "b"), name
        assert annotations["karpenter.sh/do-not-disrupt"] == "true", name


def test_ids_can_be_left_to_the_cluster():
    own = {"runAsUser": 1000730000, "runAsGroup": 0, "fsGroup": None}
    omitted = dict.fromkeys(own)
    for ids in (own, omitted):
        for name, pod in all_pods(with_values(podSecurityContext=ids)).items():
            expected = {key: value for key, value in ids.items() if value is not None}
            seccomp = {"type": "RuntimeDefault"}
            assert pod["spec"]["securityContext"] == {
                "runAsNonRoot": True, "seccompProfile": seccomp, **expected,
            }, name  # fmt: skip


def test_hooks_and_tests_run_where_the_worker_does():
    tolerations = [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]
    affinity = {"nodeAffinity": {"x": []}, "podAntiAffinity": {"y": []}}
    worker = {"nodeSelector": {"pool": "a"}, "tolerations": tolerations, "affinity": affinity}
    pods = all_pods(with_values(worker=worker))
    for name in ENDING:
        spec = pods[name]["spec"]
        assert spec["nodeSelector"] == {"pool": "a", "kubernetes.io/arch": "amd64"}
        assert spec["tolerations"] == tolerations
        assert spec["affinity"] == {"nodeAffinity": {"x": []}}
    own = {"nodeSelector": {"pool": "b"}, "tolerations": [], "affinity": {}}
    pods = all_pods(with_values(worker=worker, setup=own))
    for name in ENDING:
        spec = pods[name]["spec"]
        assert spec["nodeSelector"] == {"pool": "b", "kubernetes.io/arch": "amd64"}
        assert not spec.keys() & {"tolerations", "affinity"}


def test_all_pods_run_on_the_architecture_of_the_images():
    label = "kubernetes.io/arch"
    for arch, selector in (("arm64", {label: "arm64"}), ("", {})):
        image = {**charts.ENOUGH["image"], "arch": arch}
        for name, pod in all_pods(with_values(image=image)).items():
            assert pod["spec"].get("nodeSelector", {}) == selector, name
    environment = MeasuringEnvironment(node_selector={label: "arm64", "pool": "measure"})
    pods = all_pods(charts.ALL, environment)
    assert pods["measure"]["spec"]["nodeSelector"] == environment.node_selector
    assert pods["build"]["spec"]["nodeSelector"] == {label: "amd64"}


SECRET = {"secretKeyRef": {"name": "licence", "key": "key"}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"extraEnv": [{"name": "A", "valueFrom": SECRET}]}, r"extraEnv: A .* Secret licence.*extraSecrets"),
        ({"extraEnv": [{"name": "API_TOKEN", "value": "abc"}]}, r"API_TOKEN looks like a secret"),
        ({"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://u:p@proxy:1"}]}, "HTTPS_PROXY looks like"),
        ({"extraVolumes": [{"name": "a", "secret": {"secretName": "licence"}}]}, r"extraVolumes: a .*lic"),
        ({"extraVolumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"extraVolumes": [{"name": "scratch", "configMap": {"name": "a"}}]}, "name"),
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name"),
        ({"jobs": {"podLabels": {"collage.dev/run": "x"}}}, "collage.dev/run"),
        ({"podSecurityContext": {"runAsUser": 0}}, "runAsUser"),
    ],
)  # fmt: skip
def test_what_no_pod_may_have_is_refused(values, message):
    with pytest.raises(helm_python.HelmError, match=message):
        charts.render({**charts.ENOUGH, **values})


@pytest.mark.parametrize(
    "variable",
    [
        {"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": "/var/run/token"},
        {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
        {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
    ],
    ids=lambda variable: variable["name"],
)
def test_what_is_no_secret_is_taken(variable):
    template = flow_jobs.templates(with_values(extraEnv=[variable]))["measure"]
    assert variable in template["spec"]["containers"][0]["env"]
