"""What the chart makes, offline: valid for every version of Kubernetes, restricted, without secrets."""

import json
from pathlib import Path

import helm_python
import kubernetes_validate
import pytest
import yaml

from collage.cluster.controller.environments import MeasuringEnvironment, parse_environments
from collage.cluster.controller.settings import SigningSecret
from collage.cluster.kubernetes.manifests import Kind, Task, job_manifest
from collage.store.s3_settings import parse_s3
from flows.settings import FlowSettings
from tests.helm import charts
from tests.servers.fixtures import or_skip

VERSIONS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36")
FOREIGN = {"ServiceMonitor", "PrometheusRule", "LocalQueue", "ExternalSecret"}
VALUES = {name: charts.example(name) for name in charts.EXAMPLES} | {
    "enough": charts.ENOUGH,
    "all": charts.ALL,
}


def test_there_are_the_five_examples():
    assert charts.EXAMPLES == ["aws-irsa", "kueue", "laptop", "nvidia-gpu", "s3-compatible"]


@pytest.mark.parametrize("name", VALUES)
def test_lint_finds_nothing(name):
    found = helm_python.lint(charts.CHART, dict(VALUES[name]), strict=True)
    assert not found["errors"]
    assert [one["error"] for one in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VALUES)
def test_manifests_are_valid_strictly(name, version):
    manifests = charts.render(VALUES[name])
    own = [one for one in manifests if one["kind"] not in FOREIGN]
    assert len(own) >= 12
    for one in own:
        kubernetes_validate.validate(one, version, strict=True)


def test_validation_refuses_what_it_must():
    manifests = charts.render(charts.ENOUGH)
    worker = next(one for one in manifests if one["kind"] == "Deployment")
    worker["spec"]["template"]["spec"]["containers"][0]["securtyContext"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, "1.34", strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_helm_3_renders_the_same(name, tmp_path):
    with or_skip():
        helm = charts.helm3()
    file = charts.write_values(tmp_path, VALUES[name])
    given = ("-f", str(file), "--kube-version", "1.34.0")
    said = charts.run(helm, "template", "collage", str(charts.CHART), "-n", "ns", *given)
    theirs = [one for one in yaml.safe_load_all(said) if one]
    ours = charts.render(VALUES[name])
    key = lambda one: json.dumps(one, sort_keys=True)  # noqa: E731
    assert sorted(map(key, theirs)) == sorted(map(key, ours))
    charts.run(helm, "lint", "--strict", str(charts.CHART), *given)


@pytest.mark.parametrize("name", VALUES)
def test_every_pod_is_restricted(name):
    found = dict(charts.pods(charts.render(VALUES[name])))
    assert {"collage-worker", "collage-set-up", "collage-clean-up"} <= set(found)
    for pod in found.values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]


def test_tokens_are_mounted_where_jobs_are_made_or_deleted_and_nowhere_else():
    manifests = charts.render(charts.ALL)
    mounted = {name for name, pod in charts.pods(manifests) if pod["automountServiceAccountToken"]}
    assert mounted == {"collage-worker", "collage-clean-up", "collage-test-permissions"}
    accounts = [one for one in manifests if one["kind"] == "ServiceAccount"]
    assert {one["metadata"]["name"] for one in accounts} == {
        "collage-controller",
        "collage-measure",
        "collage-finish",
    }
    assert all(one["automountServiceAccountToken"] is False for one in accounts)


def test_the_role_has_exactly_these_verbs():
    (role,) = [one for one in charts.render(charts.ALL) if one["kind"] == "Role"]
    given = {
        (group, resource): tuple(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert given == {
        ("batch", "jobs"): ("create", "get", "list", "delete"),
        ("", "pods"): ("get", "list"),
        ("", "pods/log"): ("get",),
    }


@pytest.mark.parametrize("name", VALUES)
def test_no_secret_is_in_any_manifest(name):
    manifests = charts.render(VALUES[name])
    assert "Secret" not in {one["kind"] for one in manifests}
    for _, pod in charts.pods(manifests):
        for container in pod["containers"]:
            for one in container.get("env", ()):
                secret = any(word in one["name"] for word in ("KEY", "PASSWORD", "TOKEN", "AUTH"))
                secret = secret or one["name"].endswith("SECRET")
                secret = secret and not one.get("value", "").startswith("/etc/collage-")
                assert not (secret and "value" in one), one["name"]


SECRETS = {
    name: f"marked-{name.lower()}-of-this-process"
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING",
                 "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
}  # fmt: skip


def test_no_secret_of_whoever_makes_a_manifest_is_in_it(monkeypatch):
    """The controller has them all in its environment when it makes Jobs; only their Secret is named."""
    from kubernetes.client import ApiClient

    told = {
        "STORE": "s3://b/p", "CLUSTER__ENV_FROM_SECRETS": '["store"]', "CLUSTER__MEASURE_IMAGE": "m",
        "CLUSTER__CONTROLLER_IMAGE": "c",
    }  # fmt: skip
    for name, value in {**SECRETS, **{f"COLLAGE_{k}": v for k, v in told.items()}}.items():
        monkeypatch.setenv(name, value)
    settings = FlowSettings.load()
    assert settings.cluster is not None
    jobs = [
        job_manifest(Task(kind, "job", {"run": "r"}, []), MeasuringEnvironment(), settings.cluster)
        for kind in Kind
    ]
    with ApiClient() as api:
        made = [api.sanitize_for_serialization(one) for one in jobs]
    text = json.dumps([made, charts.render(charts.ALL)])
    assert '"secretRef": {"name": "store"}' in text
    assert '"secretRef": {"name": "measure"}' in text
    assert not [name for name, value in SECRETS.items() if value in text]


def test_a_program_gets_the_secrets_that_it_uses_and_no_others():
    secrets = {"prefect": {"apiUrl": "http://prefect:4200/api", "existingSecret": "prefect"}}
    secrets["registry"] = {"existingSecret": "registry"}
    found = {
        name: {one["secretRef"]["name"] for one in container.get("envFrom", ())}
        for name, pod in charts.pods(charts.render({**charts.ALL, **secrets}))
        for container in pod["containers"]
    }
    assert found["collage-receiver"] == {"prefect"}
    assert found["collage-worker"] == {"store", "prefect", "registry"}
    assert found["collage-test-store"] == {"measure"}


def told(values):
    """The worker's environment, by name."""
    worker = dict(charts.pods(charts.render(values)))["collage-worker"]
    return {one["name"]: one.get("value") for one in worker["containers"][0]["env"]}


def test_measuring_pods_never_get_the_controllers_secret_by_default():
    store = {"uri": "s3://b/p", "existingSecret": "all"}
    with pytest.raises(
        helm_python.HelmError, match=r"store\.measuring\.existingSecret is required"
    ):
        charts.render({**charts.ENOUGH, "store": store})
    for more, measure, finish in (
        ({"measuring": {"existingSecret": "some"}}, ["some"], ["all"]),
        ({"measuring": {"existingSecret": "some"}, "finishing": {"existingSecret": "more"}},
         ["some"], ["more"]),
        ({"measuring": {"shareSecret": True}}, ["all"], ["all"]),
        ({"existingSecret": ""}, [], []),
    ):  # fmt: skip
        found = told({**charts.ENOUGH, "store": {**store, **more}})
        assert json.loads(found["COLLAGE_CLUSTER__ENV_FROM_SECRETS"]) == measure
        assert json.loads(found["COLLAGE_CLUSTER__FINISH_ENV_FROM_SECRETS"]) == finish
        assert found["COLLAGE_CLUSTER__FINISH_SERVICE_ACCOUNT"] == "collage-finish"


@pytest.mark.parametrize("name", VALUES)
def test_every_writable_folder_has_a_size(name):
    folders = [v for _, pod in charts.pods(charts.render(VALUES[name])) for v in pod["volumes"]]
    assert all(one["emptyDir"]["sizeLimit"] for one in folders if "emptyDir" in one)
    assert any("emptyDir" in one for one in folders)


def test_the_objects_of_the_cluster_are_one_policy_that_can_be_left_out():
    of_cluster = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    made = {one["kind"] for one in charts.render(charts.ALL)}
    without = {
        one["kind"] for one in charts.render({**charts.ALL, "admissionPolicy": {"enabled": False}})
    }
    assert made - without == of_cluster
    assert not any(kind.startswith("Cluster") for kind in made)


def mounted(values, volume):
    """Names of the pods with the volume, all of whose mounts are read-only."""
    found = set()
    for name, pod in charts.pods(charts.render(values)):
        if volume in {one["name"] for one in pod["volumes"]}:
            found.add(name)
        for container in pod["containers"]:
            for one in container["volumeMounts"]:
                assert one["name"] != volume or one["readOnly"] is True
    return found


def test_the_key_that_signs_is_mounted_in_the_worker_alone():
    values = {**charts.ALL, "signing": {"existingSecret": "keys", "secretKey": "private"}}
    assert mounted(values, "signing") == {"collage-worker"}
    assert mounted(values, "trusted") == set()
    pod = dict(charts.pods(charts.render(values)))["collage-worker"]
    (secret,) = [one["secret"] for one in pod["volumes"] if one["name"] == "signing"]
    items = [{"key": "private", "path": "key.pem"}]
    assert secret == {"secretName": "keys", "defaultMode": 0o440, "items": items}
    values["signing"]["trustedKeys"] = "public"
    assert mounted(values, "trusted") == {"collage-worker"}
    assert mounted({**charts.ALL, "signing": {"enabled": False}}, "signing") == set()


@pytest.mark.parametrize(
    ("signing", "expected", "file"),
    [
        ({"existingSecret": "keys", "secretKey": "private"},
         SigningSecret(name="keys", key="private"), Path("/etc/collage-signing/key.pem")),
        ({"enabled": False}, None, None),
    ],
)  # fmt: skip
def test_the_worker_tells_finishing_pods_of_the_key(monkeypatch, signing, expected, file):
    pod = dict(charts.pods(charts.render({**charts.ENOUGH, "signing": signing})))["collage-worker"]
    for one in pod["containers"][0]["env"]:
        if one["name"].startswith("COLLAGE_"):
            monkeypatch.setenv(one["name"], one.get("value", "x"))
    settings = FlowSettings.load()
    assert settings.cluster.signing == expected
    assert settings.sign_key == file


def test_the_record_key_reaches_who_measures_and_no_other():
    """The worker has it, tells it to the pods of its Jobs, and the receiver knows nothing of it."""
    values = {
        **charts.ALL,
        "store": {**charts.ALL["store"], "recordKey": {"existingSecret": "keys"}},
    }
    pods = dict(charts.pods(charts.render(values)))
    found = {
        name: {one["secretRef"]["name"] for one in pod["containers"][0].get("envFrom", ())}
        for name, pod in pods.items()
    }
    assert "keys" in found["collage-worker"]
    assert "keys" not in found["collage-receiver"]
    told = {one["name"]: one.get("value") for one in pods["collage-worker"]["containers"][0]["env"]}
    assert json.loads(told["COLLAGE_CLUSTER__ENV_FROM_SECRETS"]) == ["measure", "keys"]
    assert json.loads(told["COLLAGE_CLUSTER__FINISH_ENV_FROM_SECRETS"]) == ["store", "keys"]


def test_the_receiver_has_no_account_that_reaches_the_store():
    """A cloud gives a role to an account: the annotations of the chart's two are for the store."""
    values = {**charts.ALL, "image": {**charts.ENOUGH["image"], "pullSecrets": ["pull"]}}
    pod = dict(charts.pods(charts.render(values)))["collage-receiver"]
    assert "serviceAccountName" not in pod
    assert pod["imagePullSecrets"] == [{"name": "pull"}]


def test_the_receiver_runs_where_a_secret_is_given():
    kinds = lambda values: [  # noqa: E731
        one["kind"]
        for one in charts.render(values)
        if one["metadata"]["name"].endswith("-receiver")
    ]
    assert kinds(charts.ENOUGH) == []
    assert sorted(kinds(charts.ALL)) == [
        "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("store", "prefect", "ports"),
    [
        ("s3://b/p", "https://prefect.example.com/api", {443}),
        ("s3://b/p?endpoint=http://minio:9000&addressing=path", "http://prefect:4200/api", {9000, 4200}),
        ("s3://b/p?addressing=path&endpoint=http%3A%2F%2Fminio%3A9000", "http://p/api", {9000, 80}),
    ],
)  # fmt: skip
def test_networks_open_the_ports_of_the_addresses(store, prefect, ports):
    values = {**charts.ENOUGH, "store": {"uri": store}, "prefect": {"apiUrl": prefect}}
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in charts.render(values)
        if one["kind"] == "NetworkPolicy"
    }
    opened = lambda name: {  # noqa: E731
        port["port"] for rule in policies[name]["egress"] for port in rule["ports"]
    }
    assert opened("collage-controller") == {53} | ports
    store_port = 9000 if "9000" in parse_s3(store).endpoint else 443
    assert opened("collage-measure") == {53, store_port}
    assert all("Ingress" in one["policyTypes"] for n, one in policies.items() if "api" not in n)


def test_examples_name_stores_that_open():
    for name in charts.EXAMPLES:
        assert parse_s3(charts.example(name)["store"]["uri"]).bucket


def test_the_environments_reach_the_worker_as_given():
    (file,) = [
        one for one in charts.render(charts.example("nvidia-gpu")) if one["kind"] == "ConfigMap"
    ]
    content = yaml.safe_load(file["data"]["environments.yaml"])
    assert content == charts.example("nvidia-gpu")["measuring"]["environments"]
    devices = {name: one.device for name, one in parse_environments(content, "here").items()}
    assert devices == {"h200": "cuda", "cpu": "cpu"}


def test_notes_say_the_next_command_and_warn():
    assert "helm test collage --namespace ns" in charts.notes(charts.ENOUGH)
    assert "decides what servers run" not in charts.notes(charts.ENOUGH)
    assert "decides what servers run" in charts.notes(charts.example("laptop"))
    assert "has no Kueue" in charts.notes(charts.example("kueue"))
    said = charts.notes(charts.example("nvidia-gpu"))
    assert "kubectl get nodes -l nvidia.com/gpu.product=" in said


def test_the_schema_knows_every_field_of_an_environment_and_no_other():
    from collage.cluster.controller.environments import BuildSettings, MeasuringEnvironment

    schema = json.loads((charts.CHART / "values.schema.json").read_text())
    environments = schema["properties"]["measuring"]["properties"]["environments"]
    (one,) = environments["patternProperties"].values()
    for fields, model in (
        (one["properties"], MeasuringEnvironment),
        (one["properties"]["build"]["properties"], BuildSettings),
    ):
        assert fields.keys() == {field.alias for field in model.model_fields.values()}


def test_the_network_of_job_pods_is_theirs_by_the_labels_that_jobs_have():
    from collage.cluster.kubernetes.manifests import Kind, Task, _labels

    policies = {
        one["metadata"]["name"]: one["spec"]["podSelector"].get("matchExpressions", [])
        for one in charts.render(charts.ENOUGH)
        if one["kind"] == "NetworkPolicy"
    }
    wanted = {one["key"]: one["values"] for one in policies["collage-measure"]}
    for kind in Kind:
        labels = _labels(Task(kind, "name", {}, []))
        assert all(labels[key] in values for key, values in wanted.items())
