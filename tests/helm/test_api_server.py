"""The chart against a real Kubernetes API server: what it leaves behind, and what is admitted."""

import sys
from pathlib import Path

import helm_python
import pytest
from kubernetes import client

from tests.helm import charts, expected_networks, networks
from tests.helm.requests import ask, items, wait_until

pytestmark = pytest.mark.full

KINDS = (
    ("", "v1", "configmaps"),
    ("", "v1", "events"),
    ("", "v1", "pods"),
    ("", "v1", "secrets"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
    ("apps", "v1", "deployments"),
    ("apps", "v1", "replicasets"),
    ("batch", "v1", "cronjobs"),
    ("batch", "v1", "jobs"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
    ("rbac.authorization.k8s.io", "v1", "roles"),
)
CLUSTER_KINDS = ("clusterroles", "clusterrolebindings")
POLICY_KINDS = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")


def objects(plane, namespace):
    """Names of all objects in the namespace, and of the cluster's roles and policies; events are not ours."""
    actual = set()
    for group, version, plural in KINDS:
        if plural == "events":
            continue
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        for item in items(plane, f"{path}/namespaces/{namespace}/{plural}"):
            actual.add((plural, item["metadata"]["name"]))
    for group, plurals in (
        ("rbac.authorization.k8s.io", CLUSTER_KINDS), ("admissionregistration.k8s.io", POLICY_KINDS),
    ):  # fmt: skip
        for plural in plurals:
            for item in items(plane, f"/apis/{group}/v1/{plural}"):
                actual.add((plural, item["metadata"]["name"]))
    return actual


def upgraded():
    return {**charts.WITHOUT_HOOKS, "worker": {"replicas": 3}, "receiver": {"existingSecret": ""}}


def replicas(plane, namespace):
    apps = client.AppsV1Api(plane.client())
    return apps.read_namespaced_deployment("collage-worker", namespace).spec.replicas


def test_helm_4_leaves_nothing_behind(plane, namespace, helm4):
    before = objects(plane, namespace)
    helm4.install(charts.CHART, "collage", charts.WITHOUT_HOOKS)
    installed = objects(plane, namespace)
    assert {("deployments", "collage-worker"), ("deployments", "collage-receiver")} <= installed
    assert not {resource for resource in installed - before if resource[0] in CLUSTER_KINDS}
    helm4.upgrade(charts.CHART, "collage", upgraded())
    assert replicas(plane, namespace) == 3
    assert ("deployments", "collage-receiver") not in objects(plane, namespace)
    helm4.rollback("collage", version=1)
    assert replicas(plane, namespace) == 1
    assert ("deployments", "collage-receiver") in objects(plane, namespace)
    helm4.uninstall("collage")
    assert wait_until(lambda: objects(plane, namespace) == before), (
        objects(plane, namespace) - before
    )


def test_helm_3_leaves_nothing_behind(plane, namespace, helm3, tmp_path):
    before = objects(plane, namespace)
    first = charts.write_values(tmp_path, charts.WITHOUT_HOOKS)
    assert "helm test collage" in helm3("install", "collage", str(charts.CHART), "-f", str(first))
    second = charts.write_values(tmp_path, upgraded())
    helm3("upgrade", "collage", str(charts.CHART), "-f", str(second))
    assert replicas(plane, namespace) == 3
    helm3("rollback", "collage", "1")
    assert replicas(plane, namespace) == 1
    helm3("uninstall", "collage")
    assert wait_until(lambda: objects(plane, namespace) == before), (
        objects(plane, namespace) - before
    )


def test_a_failed_hook_stays_for_its_logs_and_then_goes(plane, namespace, helm4):
    """No node runs its pod, so the set-up Job meets its deadline."""
    before = objects(plane, namespace)
    values = {**charts.ALL, "setup": {"deadlineSeconds": 2, "ttlSeconds": 8, "cleanUp": False}}
    with pytest.raises(helm_python.HelmError):
        helm4.install(charts.CHART, "collage", values, timeout=20)
    assert ("jobs", "collage-set-up") in objects(plane, namespace)
    helm4.uninstall("collage")
    assert wait_until(lambda: objects(plane, namespace) == before), (
        objects(plane, namespace) - before
    )


def test_policies_as_the_api_server_keeps_them_select_the_pods(plane, namespace, helm4):
    """Its own answer to each selector, for pods that it has taken, and the connections of what it stores."""
    without_hooks = {**expected_networks.VALUES, "setup": charts.WITHOUT_HOOKS["setup"]}
    helm4.install(charts.CHART, "collage", without_hooks)
    core = client.CoreV1Api(plane.client())
    policies = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    stored = [{"kind": "NetworkPolicy", **policy} for policy in items(plane, policies)]
    assert len(stored) == 4
    _, spec = next(charts.pods(charts.render(charts.ALL)))
    spec = {**spec, "serviceAccountName": "default", "automountServiceAccountToken": False}
    labels = {
        f"pod-{n}": pod_labels
        for n, pod_labels in enumerate(expected_networks.pods(expected_networks.VALUES))
    }
    labels["stranger"] = {"app.kubernetes.io/name": "collage", "app.kubernetes.io/component": "x"}
    for name, own in labels.items():
        body = {"metadata": {"name": name, "labels": own}, "spec": spec}
        core.create_namespaced_pod(namespace, body)
    try:
        for policy in stored:
            selector = policy["spec"]["podSelector"]
            actual = core.list_namespaced_pod(namespace, label_selector=networks.query(selector))
            selected = {pod.metadata.name for pod in actual.items} & labels.keys()
            assert selected == {n for n, own in labels.items() if networks.selects(selector, own)}
            assert selected, policy["metadata"]["name"]
            assert "stranger" not in selected
        for own in expected_networks.pods(expected_networks.VALUES):
            stated = expected_networks.EXPECTED[expected_networks.component(own)]
            assert expected_networks.allowed(stored, own) == stated, own
    finally:
        for name in labels:
            core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)
        helm4.uninstall("collage")


def test_every_pod_is_admitted_where_restricted_is_enforced(plane, namespace):
    core = client.CoreV1Api(plane.client())
    for name in ("collage-controller", "collage-measure", "collage-finish"):
        core.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
    checked = 0
    ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))
    further = [charts.ALL, {**charts.EXTRAS, "podSecurityContext": ids}]
    for values in [*map(charts.example, charts.EXAMPLES), *further]:
        for made_by, spec in charts.pods(charts.render(values, namespace=namespace)):
            body = {"metadata": {"name": made_by}, "spec": spec}
            core.create_namespaced_pod(namespace, body, dry_run="All", field_validation="Strict")
            checked += 1
    assert checked > 30
    spec["securityContext"].pop("runAsNonRoot")
    with pytest.raises(client.ApiException) as refused:
        core.create_namespaced_pod(
            namespace, {"metadata": {"name": "loose"}, "spec": spec}, dry_run="All"
        )
    assert refused.value.status == 403
    assert "restricted" in refused.value.body


def test_every_object_is_accepted_strictly(plane, namespace, tmp_path):
    """What a schema cannot see, e.g. names, selectors, ports: the API server's own validation."""
    files = [charts.example(name) for name in ("laptop", "nvidia-gpu")]
    for values in [*files, *charts.HOSTILE.values()]:
        for manifest in charts.render(values, namespace=namespace):
            if manifest["kind"] not in charts.FOREIGN:
                _dry_create(plane, manifest, namespace)


def _dry_create(plane, manifest, namespace):
    group, _, version = manifest["apiVersion"].rpartition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    plural = _plural(manifest["kind"].lower())
    place = base if plural in POLICY_KINDS else f"{base}/namespaces/{namespace}"
    path = f"{place}/{plural}?dryRun=All&fieldValidation=Strict"
    status, answer = ask(plane, "POST", path, manifest)
    # A pod's account is made with it: a dry run makes none.
    missing = status == 403 and "serviceaccount" in answer["message"]
    assert status == 201 or missing, answer


def _plural(kind):
    if kind.endswith("y"):
        return kind[:-1] + "ies"
    return kind + ("es" if kind.endswith("s") else "s")


def test_hooks_and_tests_run_on_a_node(plane, namespace, helm4, tmp_path):
    """Install with its set-up Job, test, uninstall with its clean-up Job; the programs run for real."""
    from tests.servers.node import Node

    before = objects(plane, namespace)
    values = {**charts.ENOUGH, "store": {"uri": str(tmp_path / "store")}, "worker": {"replicas": 0}}
    values["setup"] = {"enabled": False}
    repository = values["image"]["repository"]
    images = {
        f"{repository}/{image}:0.1.0": [sys.executable] for image in ("controller", "measure")
    }
    Path(values["store"]["uri"]).mkdir()
    node = Node(plane, f"node-{namespace}", tmp_path / "node", images=images)
    try:
        helm4.install(charts.CHART, "collage", values)
        for name in ("store", "permissions"):
            helm4.test("collage", timeout=120, include_names=[f"collage-test-{name}"])
        with pytest.raises(helm_python.HelmError):  # there is no Prefect server
            helm4.test("collage", timeout=120, include_names=["collage-test-prefect"])
        helm4.uninstall("collage", timeout=120)
        deleted = wait_until(lambda: objects(plane, namespace) == before)
        assert deleted, objects(plane, namespace) - before
    finally:
        node.close()
