"""Values of clusters that the chart's authors do not have (tests/helm/hostile).

Each file is valid strictly for every version of Kubernetes, and its own expectation holds: a chart that
ignored the file would be valid too.
"""

import json
import re
import shutil

import helm_python
import kubernetes_validate
import pytest
import yaml

from tests.helm import charts
from tests.helm.charts import HOSTILE
from tests.servers.fixtures import or_skip

LABEL = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")
SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def rendered(name):
    """Return the manifests of a file by kind and name."""
    manifests = charts.render(HOSTILE[name])
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}


def images(manifests):
    return {
        container["image"] for _, pod in charts.pods(manifests) for container in pod["containers"]
    }


def test_there_are_ten_hostile_files_and_more():
    assert len(HOSTILE) >= 10


@pytest.fixture(scope="module")
def different():
    """Each different manifest of all files once, with the file's name."""
    manifests = {}
    for name, values in HOSTILE.items():
        own = [made for made in charts.render(values) if made["kind"] not in charts.FOREIGN]
        assert len(own) >= 12
        manifests |= {json.dumps(manifest, sort_keys=True): (name, manifest) for manifest in own}
    return manifests.values()


@pytest.mark.parametrize("version", charts.VERSIONS)
def test_hostile_values_make_valid_manifests(different, version):
    for _, manifest in different:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_names_and_labels_are_valid_however_long(different):
    """What the schemas do not say."""
    for name, manifest in different:
        metadata = manifest["metadata"]
        for key, value in metadata.get("labels", {}).items():
            assert LABEL.fullmatch(value), (name, key, value)
        if manifest["kind"] == "Service":
            assert SERVICE.fullmatch(metadata["name"]), (name, metadata["name"])


@pytest.mark.parametrize("name", HOSTILE)
def test_lint_finds_nothing_in_hostile_values(name):
    actual = helm_python.lint(charts.CHART, dict(HOSTILE[name]), strict=True)
    assert not actual["errors"]
    assert charts.notes(HOSTILE[name])


def test_images_are_named_by_registry_tag_and_digest():
    ones, twos = "1" * 64, "2" * 64
    assert images(charts.render(HOSTILE["digests"])) == {
        f"mirror.example.com:5000/team/collage-controller@sha256:{ones}",
        f"other.example.com/team/collage-measure:0.1.0@sha256:{twos}",
    }
    base = "registry.example.com:8443/platform/ml/collage"
    assert images(charts.render(HOSTILE["private-registry"])) == {
        f"{base}/controller:0.1.0-cuda",
        f"{base}/measure:0.1.0-cuda",
    }
    full = {"controller": "a/b@sha256:1", "measure": {"repository": "c/d"}}
    actual = images(charts.render({**charts.ENOUGH, "image": full}))
    assert actual == {"a/b@sha256:1", "c/d:0.1.0"}


def test_the_policy_admits_the_images_of_the_release():
    for name in ("digests", "private-registry"):
        policy = rendered(name)["ValidatingAdmissionPolicy", "collage-ns-jobs"]
        (rule,) = [
            validation["expression"]
            for validation in policy["spec"]["validations"]
            if "run the images" in validation["message"]
        ]
        listed = set(json.loads(rule.partition(" in ")[2].removesuffix(")")))
        assert listed == images(charts.render(HOSTILE[name]))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ({"controller": {"tga": "1"}}, "tga"),
        ({"repository": "r", "measure": {"digest": "sha256:12"}}, "digest"),
        ({"repository": "r", "measure": {"tag": "a b"}}, "tag"),
    ],
)
def test_a_wrong_image_is_refused(image, message):
    with pytest.raises(helm_python.HelmError, match=message):
        charts.render({**charts.ENOUGH, "image": image})


def test_pods_of_the_release_pull_with_all_secrets():
    for _, pod in charts.pods(charts.render(HOSTILE["private-registry"])):
        assert [secret["name"] for secret in pod["imagePullSecrets"]] == [
            "registry-one",
            "registry-two",
        ]


def test_accounts_may_be_the_users_own():
    manifests = rendered("existing-accounts")
    assert [name for kind, name in manifests if kind == "ServiceAccount"] == ["team-finish"]
    binding = manifests["RoleBinding", "collage-controller"]
    assert [subject["name"] for subject in binding["subjects"]] == ["team-controller"]
    pods = dict(charts.pods(list(manifests.values())))
    assert pods["collage-worker"]["serviceAccountName"] == "team-controller"
    assert pods["collage-test-store"]["serviceAccountName"] == "team-measure"
    variables = {
        variable["name"]: variable.get("value")
        for variable in pods["collage-worker"]["containers"][0]["env"]
    }
    assert variables["COLLAGE_CLUSTER__SERVICE_ACCOUNT"] == "team-measure"
    assert variables["COLLAGE_CLUSTER__FINISH_SERVICE_ACCOUNT"] == "team-finish"
    policy = json.dumps(manifests["ValidatingAdmissionPolicy", "collage-ns-jobs"])
    assert "system:serviceaccount:ns:team-controller" in policy
    assert "collage-measure" not in policy
    notes = charts.notes(HOSTILE["existing-accounts"])
    assert "kubectl patch serviceaccount team-measure" in notes
    assert "kubectl patch serviceaccount team-finish" not in notes


@pytest.mark.parametrize(
    ("accounts", "message"),
    [
        ({"measure": {"create": False}}, r"serviceAccounts\.measure\.name is required"),
        ({"measure": {"name": "same"}, "finish": {"name": "same"}}, "need an account each"),
        ({"measure": {"name": "collage-controller"}}, "need an account each"),
    ],
)
def test_accounts_without_a_name_or_shared_are_refused(accounts, message):
    with pytest.raises(helm_python.HelmError, match=message):
        charts.render({**charts.ENOUGH, "serviceAccounts": accounts})


def test_openshift_chooses_users_and_brings_its_authorities():
    for name, pod in charts.pods(list(rendered("openshift").values())):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod["securityContext"]), name
        maps = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
        assert "config-trusted-cabundle" in maps, name


def test_ingress_and_route_lead_to_the_receiver():
    manifests = rendered("routes")
    service = manifests["Service", "collage-receiver"]
    (port,) = service["spec"]["ports"]
    ingress = manifests["Ingress", "collage-receiver"]["spec"]
    paths = {
        (rule["host"], path["path"], path["pathType"])
        for rule in ingress["rules"]
        for path in rule["http"]["paths"]
    }
    assert paths == {
        ("collage.example.com", "/webhooks/mlflow", "Exact"),
        ("hooks.example.com", "/collage/webhooks/mlflow", "Prefix"),
        ("hooks.example.com", "/webhooks/mlflow", "Exact"),
    }
    for rule in ingress["rules"]:
        for path in rule["http"]["paths"]:
            assert path["backend"]["service"] == {
                "name": "collage-receiver", "port": {"name": port["name"]},
            }  # fmt: skip
    assert ingress["ingressClassName"] == "nginx"
    route = manifests["HTTPRoute", "collage-receiver"]["spec"]
    assert route["parentRefs"] == HOSTILE["routes"]["receiver"]["httpRoute"]["parentRefs"]
    (rule,) = route["rules"]
    assert rule["backendRefs"] == [{"name": "collage-receiver", "port": port["port"]}]
    notes = charts.notes(HOSTILE["routes"])
    assert "https://collage.example.com/webhooks/mlflow" in notes
    assert "https://hooks.example.com/collage/webhooks/mlflow" in notes


@pytest.mark.parametrize(
    ("receiver", "message"),
    [
        ({"ingress": {"enabled": True, "hosts": [{"host": "h"}]}}, r"existingSecret is required"),
        ({"existingSecret": "w", "ingress": {"enabled": True}}, r"ingress\.hosts is required"),
        ({"existingSecret": "w", "httpRoute": {"enabled": True}}, r"parentRefs is required"),
    ],
)
def test_a_way_to_nowhere_is_refused(receiver, message):
    with pytest.raises(helm_python.HelmError, match=message):
        charts.render({**charts.ENOUGH, "receiver": receiver})


@pytest.mark.parametrize(
    ("has", "version"),
    [
        ([], "v1beta1"),
        (["kueue.x-k8s.io/v1beta1"], "v1beta1"),
        (["kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2"], "v1beta2"),
        (["kueue.x-k8s.io/v1beta2"], "v1beta2"),
    ],
)
def test_the_queue_has_the_newest_version_of_the_cluster(has, version, tmp_path):
    with or_skip():
        helm = charts.helm3()
    file = charts.write_values(tmp_path, HOSTILE["kueue"])
    apis = [argument for api in has for argument in ("--api-versions", api)]
    chart = with_notes(tmp_path / "chart")
    arguments = ("-f", str(file), "--kube-version", "1.34.0", *apis)
    said = charts.run(helm, "template", "collage", str(chart), *arguments)
    manifests = {manifest["kind"]: manifest for manifest in yaml.safe_load_all(said) if manifest}
    assert manifests["LocalQueue"]["apiVersion"] == f"kueue.x-k8s.io/{version}"
    assert manifests["LocalQueue"]["spec"] == {"clusterQueue": "shared"}
    notes = manifests["Notes"]["text"]
    assert ("this cluster has no Kueue" in notes) is (not has)
    if has:
        assert "kubectl get localqueue spot" in notes
        assert "kubectl get localqueue measure" not in notes


def with_notes(chart):
    """Copy the chart with its notes as a manifest: Helm shows them after an install alone."""
    shutil.copytree(charts.CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes.txt")
    text = '{{ tpl (.Files.Get "notes.txt") . | toJson }}'
    manifest = f"apiVersion: v1\nkind: Notes\ntext: {text}\n"
    (chart / "templates" / "notes.yaml").write_text(manifest)
    return chart


def test_all_forty_environments_are_measured():
    content = yaml.safe_load(
        rendered("environments")["ConfigMap", "collage-environments"]["data"]["environments.yaml"]
    )
    assert content == HOSTILE["environments"]["measuring"]["environments"]
    assert len(content) == 40


def test_quotas_find_a_limit_at_every_container():
    for name, pod in charts.pods(charts.render(HOSTILE["quotas"])):
        for container in pod["containers"]:
            for kind in ("requests", "limits"):
                resources = container["resources"][kind]
                assert {"cpu", "memory", "ephemeral-storage"} == set(resources), name


def test_a_failed_hook_keeps_its_logs_for_a_day():
    for manifest in charts.render(charts.ENOUGH):
        if manifest["kind"] == "Job":
            policy = manifest["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
            assert policy == "before-hook-creation,hook-succeeded"
            assert manifest["spec"]["ttlSecondsAfterFinished"] == 86400
