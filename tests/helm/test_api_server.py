"""The chart against a real Kubernetes API server: what it leaves behind, what it may do, what is admitted."""

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import helm_python
import pytest
from kubernetes import client

from containers.check import FORBIDDEN, NEEDED
from containers.cleanup import delete_jobs
from tests.helm import charts
from tests.servers.fixtures import or_skip

RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
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


@pytest.fixture
def namespace(plane, request):
    return plane.make_namespace(f"t{abs(hash(request.node.name)) % 10**8}", RESTRICTED)


@pytest.fixture
def kubeconfig(plane, namespace, tmp_path):
    return plane.kubeconfig(tmp_path / "kubeconfig", namespace=namespace)


@pytest.fixture
def helm4(kubeconfig, namespace):
    with helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace) as config:
        yield config


@pytest.fixture
def helm3(kubeconfig):
    with or_skip():
        found = charts.helm3()
    return lambda *arguments: charts.run(found, *arguments, kubeconfig=kubeconfig)


WITHOUT_HOOKS = {**charts.ALL, "setup": {"enabled": False, "cleanUp": False}}
"""No pods run here: hooks would wait for theirs."""


def objects(plane, namespace):
    """Names of all objects in the namespace, and of the cluster's roles; events are not objects of ours."""
    found = set()
    for group, version, plural in KINDS:
        if plural == "events":
            continue
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        for item in _items(plane, f"{path}/namespaces/{namespace}/{plural}"):
            found.add((plural, item["metadata"]["name"]))
    for plural in CLUSTER_KINDS:
        for item in _items(plane, f"/apis/rbac.authorization.k8s.io/v1/{plural}"):
            found.add((plural, item["metadata"]["name"]))
    return found


def ask(plane, method, path, body=None, kind="application/json", token=None):
    """Ask the API server; returns the HTTP status and what it answers."""
    told = plane.configuration(token)
    request = urllib.request.Request(
        plane.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": told.api_key["authorization"], "Content-Type": kind},
    )
    context = ssl.create_default_context(cafile=told.ssl_ca_cert)
    try:
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def _items(plane, path):
    status, answer = ask(plane, "GET", path)
    assert status == 200, answer
    return answer["items"]


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (done := condition()) and time.monotonic() < end:
        time.sleep(0.2)
    return done


def upgraded():
    return {**WITHOUT_HOOKS, "worker": {"replicas": 3}, "receiver": {"existingSecret": ""}}


def replicas(plane, namespace):
    apps = client.AppsV1Api(plane.client())
    return apps.read_namespaced_deployment("collage-worker", namespace).spec.replicas


def test_helm_4_leaves_nothing_behind(plane, namespace, helm4):
    before = objects(plane, namespace)
    helm4.install(charts.CHART, "collage", WITHOUT_HOOKS)
    installed = objects(plane, namespace)
    assert {("deployments", "collage-worker"), ("deployments", "collage-receiver")} <= installed
    assert not {one for one in installed - before if one[0] in CLUSTER_KINDS}
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
    first = charts.write_values(tmp_path, WITHOUT_HOOKS)
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


def test_a_failed_hook_leaves_nothing_behind_either(plane, namespace, helm4):
    """No node runs its pod, so the set-up Job meets its deadline."""
    before = objects(plane, namespace)
    values = {**charts.ALL, "setup": {"deadlineSeconds": 2, "cleanUp": False}}
    with pytest.raises(helm_python.HelmError):
        helm4.install(charts.CHART, "collage", values, timeout=20)
    helm4.uninstall("collage")
    assert wait_until(lambda: objects(plane, namespace) == before), (
        objects(plane, namespace) - before
    )


@pytest.fixture
def accounts(plane, namespace, helm4):
    """Tokens of the release's accounts."""
    helm4.install(charts.CHART, "collage", WITHOUT_HOOKS)
    yield {
        name: plane.account_token(namespace, f"collage-{name}")
        for name in ("controller", "measure")
    }
    helm4.uninstall("collage")


VERBS = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
RESOURCES = [kind for kind in KINDS if kind[2] != "events"] + [
    ("", "v1", "pods/log"), ("", "v1", "pods/exec"), ("", "v1", "pods/eviction"), ("", "v1", "secrets"),
    ("", "v1", "events"), ("", "v1", "persistentvolumeclaims"), ("", "v1", "serviceaccounts/token"),
    ("apps", "v1", "daemonsets"), ("batch", "v1", "jobs/status"),
    ("coordination.k8s.io", "v1", "leases"),
]  # fmt: skip


def status_of(plane, token, group, version, resource, verb, namespace):
    """Ask for real; returns the HTTP status."""
    plural, _, sub = resource.partition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    path = f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"
    if sub or verb in ("get", "update", "patch", "delete"):
        path += "/absent"
    path += f"/{sub}" if sub else ""
    kind = "application/merge-patch+json" if verb == "patch" else "application/json"
    body = {} if verb in ("create", "update", "patch") else None
    return ask(plane, VERBS[verb], path, body, kind, token)[0]


def test_the_controller_is_refused_everything_outside_its_list(plane, namespace, accounts):
    other = plane.make_namespace(f"{namespace}-other")
    allowed, refused = set(), 0
    for group, version, resource in RESOURCES:
        for verb in VERBS:
            if "/" in resource and verb == "list":
                continue
            told = status_of(
                plane, accounts["controller"], group, version, resource, verb, namespace
            )
            if told == 403:
                refused += 1
            else:
                allowed.add((group, resource, verb))
            there = status_of(plane, accounts["controller"], group, version, resource, verb, other)
            assert there == 403, (resource, verb)
    # `get` of many is `list`, and PUT of what is absent is asked as an update: RBAC answers by verb.
    assert allowed == {
        (group, f"{resource}/{sub}" if sub else resource, verb)
        for (group, resource, sub), verbs in NEEDED.items()
        for verb in verbs
    }
    assert refused > 100
    for resource in ("nodes", "namespaces", "persistentvolumes"):
        assert status_of(plane, accounts["controller"], "", "v1", resource, "list", "") == 403


def test_the_measuring_account_is_refused_everything(plane, namespace, accounts):
    for group, version, resource in RESOURCES:
        for verb in VERBS:
            told = status_of(plane, accounts["measure"], group, version, resource, verb, namespace)
            assert told == 403, (resource, verb)


def test_what_is_forbidden_by_name_is_not_needed():
    for key, verbs in FORBIDDEN.items():
        assert not set(verbs) & set(NEEDED.get(key, ()))


def test_every_pod_is_admitted_where_restricted_is_enforced(plane, namespace):
    core = client.CoreV1Api(plane.client())
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "collage-controller"}})
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "collage-measure"}})
    checked = 0
    for name in [*charts.EXAMPLES, None]:
        values = charts.example(name) if name else charts.ALL
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
    for name in ("laptop", "nvidia-gpu"):
        for one in charts.render(charts.example(name), namespace=namespace):
            _dry_create(plane, one, namespace)


def _dry_create(plane, manifest, namespace):
    group, _, version = manifest["apiVersion"].rpartition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    kind = manifest["kind"].lower()
    plural = kind[:-1] + "ies" if kind.endswith("y") else kind + "s"
    path = f"{base}/namespaces/{namespace}/{plural}?dryRun=All&fieldValidation=Strict"
    status, answer = ask(plane, "POST", path, manifest)
    # A pod's account is made with it: a dry run makes none.
    missing = status == 403 and "serviceaccount" in answer["message"]
    assert status == 201 or missing, answer


def test_clean_up_deletes_the_jobs_of_this_release_alone(plane, namespace, accounts):
    """As the controller's account: it needs nothing that it has not."""
    admin = client.BatchV1Api(plane.client())
    for name, account, labels in (
        (
            "mine",
            "collage-measure",
            {"app.kubernetes.io/part-of": "collage", "collage.dev/run": "r"},
        ),
        (
            "theirs",
            "other-measure",
            {"app.kubernetes.io/part-of": "collage", "collage.dev/run": "r"},
        ),
        ("foreign", "collage-measure", {}),
    ):
        pod = next(
            spec for name, spec in charts.pods(charts.render(charts.ALL)) if "set-up" in name
        )
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"template": {"spec": {**pod, "serviceAccountName": account}}},
        }
        admin.create_namespaced_job(namespace, body)
    api = client.BatchV1Api(plane.client(accounts["controller"]))
    assert delete_jobs(api, namespace, "collage-measure") == ["mine"]
    left = lambda: {one.metadata.name for one in admin.list_namespaced_job(namespace).items}  # noqa: E731
    assert wait_until(lambda: left() == {"theirs", "foreign"}), left()
    for name in ("theirs", "foreign"):
        admin.delete_namespaced_job(name, namespace, propagation_policy="Background")


def test_hooks_and_tests_run_on_a_node(plane, namespace, helm4, tmp_path):
    """Install with its set-up Job, test, uninstall with its clean-up Job; the programs run for real."""
    from tests.servers.node import Node

    before = objects(plane, namespace)
    values = {**charts.THREE, "store": {"uri": str(tmp_path / "store")}, "worker": {"replicas": 0}}
    values["setup"] = {"enabled": False}
    repository = values["image"]["repository"]
    images = {f"{repository}/{one}:0.1.0": [sys.executable] for one in ("controller", "measure")}
    Path(values["store"]["uri"]).mkdir()
    node = Node(plane, f"node-{namespace}", tmp_path / "node", images=images)
    try:
        helm4.install(charts.CHART, "collage", values)
        for name in ("store", "permissions"):
            helm4.test("collage", timeout=120, include_names=[f"collage-test-{name}"])
        with pytest.raises(helm_python.HelmError):  # there is no Prefect server
            helm4.test("collage", timeout=120, include_names=["collage-test-prefect"])
        helm4.uninstall("collage", timeout=120)
        gone = wait_until(lambda: objects(plane, namespace) == before)
        assert gone, objects(plane, namespace) - before
    finally:
        node.close()
