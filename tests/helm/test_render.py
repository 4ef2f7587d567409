"""What the chart makes, offline: valid for every version of Kubernetes, restricted, without secrets."""

import json
from pathlib import Path

import helm_python
import kubernetes_validate
import pytest
import yaml

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import SigningSecret
from collage.cluster.kubernetes.manifests import JobTask, Kind, job_manifest
from collage.store.s3_settings import parse_s3
from flows.settings import FlowSettings
from tests.helm import charts
from tests.servers.fixtures import or_skip

VALUES = {name: charts.example(name) for name in charts.EXAMPLES} | {
    "enough": charts.ENOUGH,
    "all": charts.ALL,
    "extras": charts.EXTRAS,
}


def test_there_are_the_five_examples():
    assert charts.EXAMPLES == ["aws-irsa", "kueue", "laptop", "nvidia-gpu", "s3-compatible"]


@pytest.mark.parametrize("name", VALUES)
def test_lint_finds_nothing(name):
    actual = helm_python.lint(charts.CHART, dict(VALUES[name]), strict=True)
    assert not actual["errors"]
    assert [message["error"] for message in actual["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", charts.VERSIONS)
@pytest.mark.parametrize("name", VALUES)
def test_manifests_are_valid_strictly(name, version):
    manifests = charts.render(VALUES[name])
    own = [manifest for manifest in manifests if manifest["kind"] not in charts.FOREIGN]
    assert len(own) >= 12
    for manifest in own:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_validation_refuses_what_it_must():
    manifests = charts.render(charts.ENOUGH)
    worker = next(manifest for manifest in manifests if manifest["kind"] == "Deployment")
    worker["spec"]["template"]["spec"]["containers"][0]["securtyContext"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, "1.34", strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_helm_3_renders_the_same(name, tmp_path):
    with or_skip():
        helm = charts.helm3()
    file = charts.write_values(tmp_path, VALUES[name])
    arguments = ("-f", str(file), "--kube-version", "1.34.0")
    said = charts.run(helm, "template", "collage", str(charts.CHART), "-n", "ns", *arguments)
    theirs = [manifest for manifest in yaml.safe_load_all(said) if manifest]
    ours = charts.render(VALUES[name])
    key = lambda first: json.dumps(first, sort_keys=True)  # noqa: E731
    assert sorted(map(key, theirs)) == sorted(map(key, ours))
    charts.run(helm, "lint", "--strict", str(charts.CHART), *arguments)


@pytest.mark.parametrize("name", VALUES)
def test_every_pod_is_restricted(name):
    actual = dict(charts.pods(charts.render(VALUES[name])))
    assert {"collage-worker", "collage-set-up", "collage-clean-up"} <= set(actual)
    for pod in actual.values():
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


def test_only_pods_that_manage_jobs_mount_a_token():
    manifests = charts.render(charts.ALL)
    mounted = {name for name, pod in charts.pods(manifests) if pod["automountServiceAccountToken"]}
    assert mounted == {"collage-worker", "collage-clean-up", "collage-test-permissions"}
    accounts = [manifest for manifest in manifests if manifest["kind"] == "ServiceAccount"]
    assert {account["metadata"]["name"] for account in accounts} == {
        "collage-controller",
        "collage-measure",
        "collage-finish",
    }
    assert all(
        service_account["automountServiceAccountToken"] is False for service_account in accounts
    )


def test_the_role_has_exactly_these_verbs():
    (role,) = [manifest for manifest in charts.render(charts.ALL) if manifest["kind"] == "Role"]
    arguments = {
        (group, resource): tuple(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert arguments == {
        ("batch", "jobs"): ("create", "get", "list", "delete"),
        ("", "pods"): ("get", "list"),
        ("", "pods/log"): ("get",),
        ("", "events"): ("list",),
    }


@pytest.mark.parametrize("name", VALUES)
def test_no_secret_is_in_any_manifest(name):
    manifests = charts.render(VALUES[name])
    assert "Secret" not in {manifest["kind"] for manifest in manifests}
    for _, pod in charts.pods(manifests):
        for container in pod["containers"]:
            for variable in container.get("env", ()):
                secret = any(
                    word in variable["name"] for word in ("KEY", "PASSWORD", "TOKEN", "AUTH")
                )
                secret = secret or variable["name"].endswith("SECRET")
                secret = secret and not variable.get("value", "").startswith("/etc/collage-")
                assert not (secret and "value" in variable), variable["name"]


SECRETS = {
    name: f"marked-{name.lower()}-of-this-process"
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING",
                 "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
}  # fmt: skip


def test_no_secret_of_whoever_makes_a_manifest_is_in_it(monkeypatch):
    """The controller has them all in its environment when it makes Jobs; only their Secret is named."""
    from kubernetes.client import ApiClient

    reported = {
        "STORE": "s3://b/p", "CLUSTER__ENV_FROM_SECRETS": '["store"]', "CLUSTER__MEASURE_IMAGE": "m",
        "CLUSTER__CONTROLLER_IMAGE": "c",
    }  # fmt: skip
    for name, value in {**SECRETS, **{f"COLLAGE_{k}": v for k, v in reported.items()}}.items():
        monkeypatch.setenv(name, value)
    settings = FlowSettings.load()
    assert settings.cluster is not None
    jobs = [
        job_manifest(
            JobTask(kind, "job", {"run": "r"}, []), MeasuringEnvironment(), settings.cluster
        )
        for kind in Kind
    ]
    with ApiClient() as api:
        created = [api.sanitize_for_serialization(job) for job in jobs]
    text = json.dumps([created, charts.render(charts.ALL)])
    assert '"secretRef": {"name": "store"}' in text
    assert '"secretRef": {"name": "measure"}' in text
    assert not [name for name, value in SECRETS.items() if value in text]


def test_a_program_gets_the_secrets_that_it_uses_and_no_others():
    secrets = {"prefect": {"apiUrl": "http://prefect:4200/api", "existingSecret": "prefect"}}
    secrets["registry"] = {"existingSecret": "registry"}
    actual = {
        name: {source["secretRef"]["name"] for source in container.get("envFrom", ())}
        for name, pod in charts.pods(charts.render({**charts.ALL, **secrets}))
        for container in pod["containers"]
    }
    assert actual["collage-receiver"] == {"prefect"}
    assert actual["collage-worker"] == {"store", "prefect", "registry"}
    assert actual["collage-test-store"] == {"measure"}


def told(values):
    """The worker's environment, by name."""
    worker = dict(charts.pods(charts.render(values)))["collage-worker"]
    return {variable["name"]: variable.get("value") for variable in worker["containers"][0]["env"]}


def test_measuring_pods_have_no_controller_secret_by_default():
    store = {"uri": "s3://b/p", "existingSecret": "all"}
    with pytest.raises(
        helm_python.HelmError, match=r"store\.measuring\.existingSecret is required"
    ):
        charts.render({**charts.ENOUGH, "store": store})
    for extra, measure, finish in (
        ({"measuring": {"existingSecret": "some"}}, ["some"], ["all"]),
        ({"measuring": {"existingSecret": "some"}, "finishing": {"existingSecret": "more"}},
         ["some"], ["more"]),
        ({"measuring": {"shareSecret": True}}, ["all"], ["all"]),
        ({"existingSecret": ""}, [], []),
    ):  # fmt: skip
        actual = told({**charts.ENOUGH, "store": {**store, **extra}})
        assert json.loads(actual["COLLAGE_CLUSTER__ENV_FROM_SECRETS"]) == measure
        assert json.loads(actual["COLLAGE_CLUSTER__FINISH_ENV_FROM_SECRETS"]) == finish
        assert actual["COLLAGE_CLUSTER__FINISH_SERVICE_ACCOUNT"] == "collage-finish"


@pytest.mark.parametrize("name", VALUES)
def test_every_writable_folder_has_a_size(name):
    folders = [v for _, pod in charts.pods(charts.render(VALUES[name])) for v in pod["volumes"]]
    assert all(folder["emptyDir"]["sizeLimit"] for folder in folders if "emptyDir" in folder)
    assert any("emptyDir" in volume for volume in folders)


def test_the_only_cluster_objects_are_an_optional_policy():
    of_cluster = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    created = {manifest["kind"] for manifest in charts.render(charts.ALL)}
    without = {
        rendered["kind"]
        for rendered in charts.render({**charts.ALL, "admissionPolicy": {"enabled": False}})
    }
    assert created - without == of_cluster
    assert not any(kind.startswith("Cluster") for kind in created)


def mounted(values, volume):
    """Names of the pods with the volume, all of whose mounts are read-only."""
    actual = set()
    for name, pod in charts.pods(charts.render(values)):
        if volume in {volume_mount["name"] for volume_mount in pod["volumes"]}:
            actual.add(name)
        for container in pod["containers"]:
            for volume_mount in container["volumeMounts"]:
                assert volume_mount["name"] != volume or volume_mount["readOnly"] is True
    return actual


def test_the_key_that_signs_is_mounted_in_the_worker_alone():
    values = {**charts.ALL, "signing": {"existingSecret": "keys", "secretKey": "private"}}
    assert mounted(values, "signing") == {"collage-worker"}
    assert mounted(values, "trusted") == set()
    pod = dict(charts.pods(charts.render(values)))["collage-worker"]
    (secret,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "signing"]
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
    for variable in pod["containers"][0]["env"]:
        if variable["name"].startswith("COLLAGE_"):
            monkeypatch.setenv(variable["name"], variable.get("value", "x"))
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
    actual = {
        name: {source["secretRef"]["name"] for source in pod["containers"][0].get("envFrom", ())}
        for name, pod in pods.items()
    }
    assert "keys" in actual["collage-worker"]
    assert "keys" not in actual["collage-receiver"]
    reported = {
        variable["name"]: variable.get("value")
        for variable in pods["collage-worker"]["containers"][0]["env"]
    }
    assert json.loads(reported["COLLAGE_CLUSTER__ENV_FROM_SECRETS"]) == ["measure", "keys"]
    assert json.loads(reported["COLLAGE_CLUSTER__FINISH_ENV_FROM_SECRETS"]) == ["store", "keys"]


def test_the_receiver_has_no_account_that_reaches_the_store():
    """A cloud gives a role to an account: the annotations of the chart's two are for the store."""
    values = {**charts.ALL, "image": {**charts.ENOUGH["image"], "pullSecrets": ["pull"]}}
    pod = dict(charts.pods(charts.render(values)))["collage-receiver"]
    assert "serviceAccountName" not in pod
    assert pod["imagePullSecrets"] == [{"name": "pull"}]


def test_the_receiver_runs_where_a_secret_is_given():
    kinds = lambda values: [  # noqa: E731
        manifest["kind"]
        for manifest in charts.render(values)
        if manifest["metadata"]["name"].endswith("-receiver")
    ]
    assert kinds(charts.ENOUGH) == []
    assert sorted(kinds(charts.ALL)) == [
        "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("store", "prefect", "ports"),
    [
        ("s3://b/p", "https://prefect.example.com/api", {80, 443}),  # 80: EKS Pod Identity
        ("s3://b/p?endpoint=http://minio:9000&addressing=path", "http://prefect:4200/api", {9000, 4200}),
        ("s3://b/p?addressing=path&endpoint=http%3A%2F%2Fminio%3A9000", "http://p/api", {9000, 80}),
    ],
)  # fmt: skip
def test_networks_open_the_ports_of_the_addresses(store, prefect, ports):
    values = {**charts.ENOUGH, "store": {"uri": store}, "prefect": {"apiUrl": prefect}}
    policies = {
        manifest["metadata"]["name"]: manifest["spec"]
        for manifest in charts.render(values)
        if manifest["kind"] == "NetworkPolicy"
    }
    opened = lambda name: {  # noqa: E731
        port["port"] for rule in policies[name]["egress"] for port in rule["ports"]
    }
    assert opened("collage-controller") == {53} | ports
    store_port = 9000 if "9000" in parse_s3(store).endpoint else 443
    assert opened("collage-measure") - {80} == {53, store_port}
    assert all(
        "Ingress" in policy["policyTypes"] for n, policy in policies.items() if "api" not in n
    )


def test_examples_name_stores_that_open():
    for name in charts.EXAMPLES:
        assert parse_s3(charts.example(name)["store"]["uri"]).bucket


def test_notes_say_the_next_command_and_warn():
    assert "helm test collage --namespace ns" in charts.notes(charts.ENOUGH)
    assert "decides what servers run" not in charts.notes(charts.ENOUGH)
    assert "decides what servers run" in charts.notes(charts.example("laptop"))
    assert "has no Kueue" in charts.notes(charts.example("kueue"))
    said = charts.notes(charts.example("nvidia-gpu"))
    assert "kubectl get nodes -l nvidia.com/gpu.product=" in said


def test_network_policies_select_job_pods_by_their_labels():
    from collage.cluster.kubernetes.manifests import JobTask, Kind, _labels

    policies = {
        manifest["metadata"]["name"]: manifest["spec"]["podSelector"].get("matchExpressions", [])
        for manifest in charts.render(charts.ENOUGH)
        if manifest["kind"] == "NetworkPolicy"
    }
    expected = {rule["key"]: rule["values"] for rule in policies["collage-measure"]}
    for kind in Kind:
        labels = _labels(JobTask(kind, "name", {}, []))
        assert all(labels[key] in values for key, values in expected.items())
