"""What the accounts of a release may do on a real Kubernetes API server, and what its policy refuses."""

import copy

import pytest
from kubernetes import client

from collage.cluster.kubernetes.manifests import Kind
from containers.check import FORBIDDEN, NEEDED
from containers.cleanup import delete_jobs, delete_named
from tests.helm import charts, flow_jobs
from tests.helm.requests import (
    MERGE,
    VERBS,
    ask,
    may,
    resources,
    rules_of,
    status_of,
    wait_until,
)

pytestmark = pytest.mark.full


@pytest.fixture
def accounts(plane, namespace, helm4):
    """Tokens of the release's accounts."""
    helm4.install(charts.CHART, "collage", charts.WITHOUT_HOOKS)
    yield {
        name: plane.account_token(namespace, f"collage-{name}")
        for name in ("controller", "measure", "finish")
    }
    helm4.uninstall("collage")


NEEDED_VERBS = {
    (group, f"{resource}/{sub}" if sub else resource, verb)
    for (group, resource, sub), verbs in NEEDED.items()
    for verb in verbs
}
REVIEWS = {
    ("authorization.k8s.io", "selfsubjectaccessreviews", "create"),
    ("authorization.k8s.io", "selfsubjectrulesreviews", "create"),
    ("authentication.k8s.io", "selfsubjectreviews", "create"),
}
"""Everybody may ask the cluster what they are and may do (`system:basic-user`)."""


def allowed_of(plane, token, namespace):
    """Try every verb on every resource of the API server; returns what was not answered with 403."""
    allowed, refused = set(), 0
    for resource in resources(plane):
        for verb in VERBS:
            if resource.answers(verb):
                if status_of(plane, token, resource, verb, namespace) == 403:
                    refused += 1
                else:
                    allowed.add((resource.group, resource.name, verb))
    assert refused > 500
    return allowed


def test_the_controller_is_refused_everything_outside_its_list(plane, namespace, accounts):
    token = accounts["controller"]
    assert allowed_of(plane, token, namespace) == NEEDED_VERBS | REVIEWS
    second = plane.make_namespace(f"{namespace}-other")
    assert allowed_of(plane, token, second) == REVIEWS


def test_the_measuring_account_is_refused_everything(plane, namespace, accounts):
    assert allowed_of(plane, accounts["measure"], namespace) == REVIEWS


def dry_job(plane, namespace, manifest, token):
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs?dryRun=All&fieldValidation=Strict"
    return ask(plane, "POST", path, manifest, token=token)


def set_in(content, path, value):
    *steps, last = path
    for step in steps:
        content = content[step] if isinstance(step, int) else content.setdefault(step, {})
    content[last] = value


POD, FIRST = ("spec", "template", "spec"), ("spec", "template", "spec", "containers", 0)
SECRET = {"secretKeyRef": {"name": "webhook", "key": "secret"}}
OUTSIDER = {"name": "i", "image": "elsewhere/image:1"}
INSIDER = {"name": "i", "image": "registry.example.com/collage/measure:0.1.0"}
JOBS = {
    "a Secret of another part as a volume": (
        (*POD, "volumes"), [{"name": "scratch", "secret": {"secretName": "webhook"}}], "volumes"),
    "a Secret of another account as a volume": (
        (*POD, "volumes"), [{"name": "scratch", "secret": {"secretName": "store"}}], "volumes"),
    "a path of the node": (
        (*POD, "volumes"), [{"name": "scratch", "hostPath": {"path": "/"}}], "volumes"),
    "a projected token": (
        (*POD, "volumes"), [{"name": "scratch", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}}]}}], "volumes"),
    "a claim": (
        (*POD, "volumes"), [{"name": "scratch", "persistentVolumeClaim": {"claimName": "c"}}], "volumes"),
    "a ConfigMap": (
        (*POD, "volumes"), [{"name": "scratch", "configMap": {"name": "c"}}], "volumes"),
    "the environment of another part's Secret": (
        (*FIRST, "envFrom"), [{"secretRef": {"name": "webhook"}}], "environment"),
    "the environment of the controller's Secret": (
        (*FIRST, "envFrom"), [{"secretRef": {"name": "store"}}], "environment"),
    "the environment of a ConfigMap": (
        (*FIRST, "envFrom"), [{"configMapRef": {"name": "c"}}], "environment"),
    "a key of another part's Secret": (
        (*FIRST, "env"), [{"name": "A", "valueFrom": SECRET}], "environment"),
    "a Secret in a container that comes first": (
        (*POD, "initContainers"), [{**INSIDER, "env": [{"name": "A", "valueFrom": SECRET}]}],
        "environment"),
    "another image": ((*FIRST, "image"), "elsewhere/image:1", "images of the release"),
    "another image in a container that comes first": (
        (*POD, "initContainers"), [OUTSIDER], "images of the release"),
    "the worker's account": ((*POD, "serviceAccountName"), "collage-controller", "run as"),
    "the namespace's account": ((*POD, "serviceAccountName"), "default", "run as"),
    "a token": ((*POD, "automountServiceAccountToken"), True, "mount no token"),
    "a Secret to pull with": ((*POD, "imagePullSecrets"), [{"name": "webhook"}], "to pull images"),
    "the node's network": ((*POD, "hostNetwork"), True, "of their node's"),
    "the node's processes": ((*POD, "hostPID"), True, "of their node's"),
    "a node of its choice": ((*POD, "nodeName"), "control-plane", "of their node's"),
    "a port of the node": (
        (*FIRST, "ports"), [{"containerPort": 80, "hostPort": 80}], "of their node's"),
    "privileges": (
        (*FIRST, "securityContext", "allowPrivilegeEscalation"), True, "without privileges"),
    "a capability": (
        (*FIRST, "securityContext", "capabilities"), {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
        "without privileges"),
    "root": ((*POD, "securityContext", "runAsNonRoot"), False, "without privileges"),
    "root in its container": (
        (*FIRST, "securityContext", "runAsNonRoot"), False, "without privileges"),
}  # fmt: skip
"""What a Job of the worker's token may not have: the place, the value, and a word of the refusal."""


def test_the_worker_makes_its_own_jobs_and_no_others(plane, namespace, accounts):
    """The policy is the cluster's: with the worker's token no Job mounts what is not for Jobs."""
    token = accounts["controller"]
    manifests = {kind: flow_jobs.job(kind, charts.WITHOUT_HOOKS, namespace) for kind in Kind}
    loose = copy.deepcopy(manifests[Kind.MEASURE])
    set_in(loose, (*FIRST, "image"), "elsewhere/image:1")
    assert wait_until(lambda: dry_job(plane, namespace, loose, token)[0] == 422), "no policy yet"
    for kind, manifest in manifests.items():
        status, answer = dry_job(plane, namespace, manifest, token)
        assert status == 201, (kind, answer)
    for name, (path, value, word) in JOBS.items():
        wrong = copy.deepcopy(manifests[Kind.MEASURE])
        set_in(wrong, path, value)
        status, answer = dry_job(plane, namespace, wrong, token)
        assert status == 422, (name, answer)
        assert word in answer["message"], (name, answer["message"])
    with_secret = copy.deepcopy(manifests[Kind.FINISH])
    volume = {"name": "scratch", "secret": {"secretName": "store"}}
    with_secret["spec"]["template"]["spec"]["volumes"][0] = volume
    assert dry_job(plane, namespace, with_secret, token)[0] == 201, "its own account's Secret"
    assert dry_job(plane, namespace, loose, None)[0] == 201, "others' Jobs are not its concern"


def test_the_policy_admits_what_values_add_and_no_more(plane, namespace, helm4):
    hooks = {"setup": {"enabled": False, "cleanUp": False}}
    values = {**charts.EXTRAS, **hooks}
    helm4.install(charts.CHART, "collage", values)
    token = plane.account_token(namespace, "collage-controller")
    manifests = {kind: flow_jobs.job(kind, values, namespace) for kind in Kind}
    measure = manifests[Kind.MEASURE]

    def refused(path, value):
        wrong = copy.deepcopy(measure)
        set_in(wrong, path, value)
        status, answer = dry_job(plane, namespace, wrong, token)
        return answer["message"] if status == 422 else ""

    try:
        assert wait_until(lambda: refused((*FIRST, "image"), "elsewhere/image:1")), "no policy yet"
        for kind, manifest in manifests.items():
            status, answer = dry_job(plane, namespace, manifest, token)
            assert status == 201, (kind, answer)
        for source in (
            {"configMap": {"name": "other"}},
            {"persistentVolumeClaim": {"claimName": "other"}},
            {"secret": {"secretName": "webhook"}},
        ):
            assert "volumes" in refused((*POD, "volumes", 0), {"name": "scratch", **source}), source
        for kind in ("secretKeyRef", "configMapKeyRef"):
            variable = {"name": "A", "valueFrom": {kind: {"name": "other", "key": "k"}}}
            assert "environment" in refused((*FIRST, "env", 0), variable), kind
    finally:
        helm4.uninstall("collage")


def test_the_check_of_refusals_sees_a_verb_too_much(plane, namespace, accounts):
    """A rule of its own, for one verb that nobody needs: the same walk finds it, and nothing else."""
    rbac = client.RbacAuthorizationV1Api(plane.client())
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["deletecollection"]}]
    rbac.create_namespaced_role(namespace, {"metadata": {"name": "loose"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "loose"}
    subject = {"kind": "ServiceAccount", "name": "collage-measure", "namespace": namespace}
    binding = {"metadata": {"name": "loose"}, "roleRef": reference, "subjects": [subject]}
    rbac.create_namespaced_role_binding(namespace, binding)
    loose = {("batch", "jobs", "deletecollection")}
    assert wait_until(
        lambda: allowed_of(plane, accounts["measure"], namespace) == loose | REVIEWS, timeout_s=60
    )


@pytest.mark.parametrize("name", ["controller", "measure", "finish"])
def test_no_account_can_make_itself_more(plane, namespace, accounts, name):
    """Roles, bindings and other people's names; `escalate` and `bind` are verbs without a request."""
    token = accounts[name]
    every = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    group = "rbac.authorization.k8s.io"
    base = f"/apis/{group}/v1"
    subject = {"kind": "ServiceAccount", "name": f"collage-{name}", "namespace": namespace}
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"}
    meta = {"metadata": {"name": "more"}}
    bound = {**meta, "roleRef": reference, "subjects": [subject]}
    for path, body in (
        (f"{base}/namespaces/{namespace}/roles", {**meta, "rules": every}),
        (f"{base}/namespaces/{namespace}/rolebindings", bound),
        (f"{base}/clusterroles", {**meta, "rules": every}),
        (f"{base}/clusterrolebindings", bound),
    ):
        assert ask(plane, "POST", path, body, token=token)[0] == 403, path
    own = f"{base}/namespaces/{namespace}/roles/collage-controller"
    assert ask(plane, "PATCH", own, {"rules": every}, MERGE, token)[0] == 403
    for headers in (
        {"Impersonate-User": "admin"},
        {"Impersonate-User": f"system:serviceaccount:{namespace}:default"},
        {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"},
    ):
        path = f"/api/v1/namespaces/{namespace}/pods"
        assert ask(plane, "GET", path, token=token, headers=headers)[0] == 403, headers
    virtual = {
        ("", "users"): "impersonate", ("", "groups"): "impersonate",
        ("", "serviceaccounts"): "impersonate", (group, "roles"): "escalate",
        (group, "clusterroles"): "bind", (group, "rolebindings"): "bind",
    }  # fmt: skip
    for (of, resource), verb in virtual.items():
        assert may(plane, token, namespace, of, resource, verb) is False, (resource, verb)


def test_the_api_server_itself_lists_what_the_accounts_may(plane, namespace, accounts):
    expected_by_account = {
        "controller": NEEDED_VERBS | REVIEWS,
        "measure": REVIEWS,
        "finish": REVIEWS,
    }
    for name, expected in expected_by_account.items():
        assert rules_of(plane, accounts[name], namespace) == expected


def test_what_is_forbidden_by_name_is_not_needed():
    for key, verbs in FORBIDDEN.items():
        assert not set(verbs) & set(NEEDED.get(key, ()))


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
            "finishes",
            "collage-finish",
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
    ours = ("collage-measure", "collage-finish")
    assert sorted(delete_jobs(api, namespace, ours)) == ["finishes", "mine"]
    remaining = lambda: {pair.metadata.name for pair in admin.list_namespaced_job(namespace).items}  # noqa: E731
    assert wait_until(lambda: remaining() == {"theirs", "foreign"}), remaining()
    assert delete_named(api, namespace, ["theirs", "foreign", "absent"]) == ["theirs", "foreign"]
    assert wait_until(lambda: not remaining()), remaining()
