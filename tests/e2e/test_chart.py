"""The chart on a real control plane, then one alias in MLflow, and nothing else by hand.

Installed by Helm as a platform team does: the set-up hook makes the deployments, the worker's and the
receiver's pods run, MLflow's webhook starts a run, the run's Jobs measure, the last one publishes, the alias
`optimized` is set; then the bundle is fetched and a pod serves it. Twice: on played nodes, with this project
as their image (`make test`), and on a real one with the images of the Dockerfile (`make e2e`).

    COLLAGE_E2E_MODELS=resnet18,ppocr_v4_rec python -m pytest tests/e2e      # `make pipeline`
"""

import base64
import contextlib
import os
import subprocess
import sys
import time

import helm_python
import httpx
import numpy as np
import onnx
import pytest
from kubernetes import client

import collage
from collage.store import open_store
from collage.store.aliases import list_aliases
from collage.store.manifests import list_bundles
from tests.flows.conftest import server  # noqa: F401
from tests.helm import charts
from tests.registry.conftest import MlflowUser, mlflow_site  # noqa: F401
from tests.servers.receiver import SECRET
from tests.store import versitygw
from tests.store.conftest import bucket, credentials, s3_address, s3_server  # noqa: F401
from tests.support.keys import make_key
from tests.support.models import small_model
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full

MODELS = os.environ.get("COLLAGE_E2E_MODELS", "small").split(",")
WORK_S = 900.0
RELEASE = "collage"


def secret(name, values):
    return {"metadata": {"name": name}, "stringData": values}


@pytest.fixture
def signing(tmp_path):
    return make_key(tmp_path)


@pytest.fixture
def namespace(plane, name, place, signing):
    place.prepare()
    created = f"e2e-{type(place).__name__.lower()}-{name.replace('_', '-')}"
    plane.make_namespace(created, {"pod-security.kubernetes.io/enforce": "restricted"})
    users = {"store": (versitygw.ACCESS, versitygw.SECRET), **{
        f"store-{user}": (user, password) for user, password in versitygw.USERS.items()
    }}  # fmt: skip
    with plane.client() as api:
        core = client.CoreV1Api(api)
        for name_of, (access, password) in users.items():
            keys = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": password}
            keys["AWS_EC2_METADATA_DISABLED"] = "true"
            core.create_namespaced_secret(created, secret(name_of, keys))
        core.create_namespaced_secret(created, secret("webhook", {"secret": SECRET}))
        core.create_namespaced_secret(
            created, secret("signing", {"key.pem": signing.private.read_text()})
        )
        public = {"metadata": {"name": "trusted"}, "data": {"key.pub": signing.public.read_text()}}
        core.create_namespaced_config_map(created, public)
        yield created
        core.delete_namespace(created)


def chart_values(place, server, mlflow_site, s3_address):  # noqa: F811
    environment = {
        "threads": 1, "memory": "4Gi", "nodeSelector": {"pool": "measure"},
        "parallelism": 1, "secondsPerShard": 60, "deadlineSeconds": 600, **place.environment,
    }  # fmt: skip
    worker = dict(place.worker)
    often = {"name": "PREFECT_WORKER_QUERY_SECONDS", "value": "1"}
    worker["extraEnv"] = [*worker.get("extraEnv", ()), often]
    return {
        "image": {"repository": place.repository, "tag": place.tag},
        "store": {
            "uri": place.reach(s3_address), "existingSecret": "store",
            "measuring": {"existingSecret": "store-measure"},
            "finishing": {"existingSecret": "store-finish"},
        },
        "prefect": {"apiUrl": place.reach(server.url), "workPool": "e2e", "release": "e2e"},
        "signing": {"existingSecret": "signing"},
        "registry": {"uri": "mlflow://", "trackingUri": place.reach(mlflow_site.url)},
        "measuring": {"environments": {"cpu": environment}},
        "worker": worker,
        "receiver": {"existingSecret": "webhook", **place.receiver},
    }  # fmt: skip


@pytest.fixture
def release(plane, place, namespace, server, mlflow_site, s3_address, tmp_path):  # noqa: F811
    """Install the chart and wait for its pods; a failing test shows their logs."""
    values = chart_values(place, server, mlflow_site, s3_address)
    kubeconfig = plane.kubeconfig(tmp_path / "kubeconfig", namespace=namespace)
    with helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace) as helm:
        try:
            helm.install(charts.CHART, RELEASE, values, timeout=300)
        except helm_python.HelmError:
            print(*pod_logs(plane, namespace).values(), sep="\n\n")
            raise
        yield values
        helm.uninstall(RELEASE)


@pytest.fixture
def hook(plane, place, namespace, mlflow_site, release, tmp_path):  # noqa: F811
    user = MlflowUser(mlflow_site, tmp_path)
    url = place.receiver_url(namespace, f"{RELEASE}-receiver")
    try:
        wait_for(lambda: answers(f"{url}/webhooks/mlflow", 405), 60)  # nothing is read there
    except AssertionError:
        print(*pod_logs(plane, namespace).values(), sep="\n\n")
        raise
    created = user.client.create_webhook(
        "collage", f"{url}/webhooks/mlflow", ["model_version_alias.created"], secret=SECRET
    )
    time.sleep(1.1)  # the server remembers for a second which webhooks there are
    yield user
    user.client.delete_webhook(created.webhook_id)


def answers(url, status=200):
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=2).status_code == status
    return False


def model_file(name, folder):
    """Return the file of a model and the options that bind its dynamic dimensions."""
    options = {"refine_s": 0, "verify_s": 1.0, "measure_budget_s": 90}
    if name == "small":
        backends = ["onnxruntime", "onednn"]
        small = {"backends": backends, "measure_budget_s": 20, "verify_s": 0.3}
        return small_model(folder / "small.onnx"), options | small
    from benchmarks.model_set import SKELETONS, skeletons, trained
    from collage.option_text import parse_shapes

    before = skeletons(folder, [name]) if name in SKELETONS else trained()
    (actual,) = [file for file in before if file.name == name]
    shapes = parse_shapes(actual.arguments[1::2])
    return actual.path, options | ({"shapes": list(shapes)} if shapes else {})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.timeout(2 * WORK_S)
def test_one_alias_makes_a_proven_bundle(
    plane, place, hook, server, namespace, release, s3_address, name, signing, tmp_path  # noqa: F811
):  # fmt: skip
    import mlflow.onnx

    path, options = model_file(name, tmp_path)
    set_options(server, options)
    mlflow.onnx.save_model(onnx.load(path), tmp_path / "logged")
    version = hook.add_folder(name, tmp_path / "logged")
    before = time.monotonic()
    hook.set_alias(version)

    def tags():
        return hook.client.get_model_version(name, version.version).tags

    try:
        place.admit(namespace)
        wait_for(lambda: tags().get("collage.status") not in (None, "", "running"), WORK_S)
    finally:
        logs = pod_logs(plane, namespace)
        print(f"{time.monotonic() - before:.0f} s", tags(), *logs.values(), sep="\n\n")
    (bundle,) = list_bundles(open_store(s3_address))
    if tags()["collage.status"] == "optimized":
        assert hook.client.get_model_version_by_alias(name, "optimized").version == version.version
        aliases = {alias.name: alias.bundle for alias in list_aliases(open_store(s3_address))}
        assert aliases == {f"{name}/1/cpu": bundle, f"{name}/optimized/cpu": bundle}
        bundle = f"{name}/optimized/cpu"
    else:  # microseconds, on a machine that runs other tests: the gate may find them slower
        assert (name, tags()["collage.status"]) == ("small", "not-faster"), tags()
    folder = fetched(place.reach(s3_address), bundle, tmp_path / "bundle", signing.public)
    loaded = collage.load(folder)
    loaded.check()
    serves(plane, place, namespace, loaded, place.reach(s3_address), bundle)
    assert jobs_by_component(plane, namespace) >= {"probe", "measure", "finish"}
    assert may_not_write(plane, namespace) >= {"worker", "receiver", "probe", "finish", "serve"}
    for text in (*logs.values(), *pod_logs(plane, namespace).values()):
        assert versitygw.SECRET not in text
        assert SECRET not in text


def fetched(store, bundle, folder, key):
    """Fetch a bundle as a serving team does; returns its folder."""
    subprocess.run(
        [sys.executable, "-m", "collage", "fetch", store, "--alias", bundle, str(folder),
         "--cache-dir", str(folder.parent / "cache"), "--verify-key", str(key)],
        check=True, timeout=120,
    )  # fmt: skip
    return folder


def serves(plane, place, namespace, loaded, store, bundle):
    """Start a pod that serves the bundle from the store, and compare one answer with the bundle's own."""
    (signature, *_) = loaded.signatures
    inputs = {output.name: np.ones(output.shape, output.dtype) for output in signature.inputs}
    with plane.client() as api:
        core = client.CoreV1Api(api)
        core.create_namespaced_pod(namespace, serving_pod(place, store, bundle))

        def address():
            pod = core.read_namespaced_pod("serve", namespace)
            return pod.status.pod_ip if pod.status.phase == "Running" else None

        wait_for(address, 120)
        url = f"http://{address()}:{place.serve_port}/v2"
        wait_for(lambda: answers(f"{url}/health/ready"), 120)
        answer = httpx.post(f"{url}/models/model/infer", json=question(inputs), timeout=60)
        assert answer.status_code == 200, answer.text
    expected = loaded.run(inputs)
    for output in answer.json()["outputs"]:
        value = np.asarray(output["data"], "float64").reshape(output["shape"])
        np.testing.assert_allclose(value, expected[output["name"]], rtol=1e-4, atol=1e-5)


def question(inputs):
    kinds = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}
    return {
        "inputs": [
            {"name": name, "shape": list(value.shape), "datatype": kinds[str(value.dtype)],
             "data": value.ravel().tolist()}
            for name, value in inputs.items()
        ]
    }  # fmt: skip


def serving_pod(place, store, bundle):
    command = ["python", "-m", "containers.serve", "--bundle", store, "--alias", bundle]
    container = {
        "name": "serve",
        "image": f"{place.repository}/serve-base:{place.tag}",
        "command": [*command, "--port", str(place.serve_port)],
        "envFrom": [{"secretRef": {"name": "store"}}],
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "env": [{"name": "COLLAGE_VERIFY_KEYS", "value": "/etc/collage-trusted"}],
        "volumeMounts": [
            {"name": "scratch", "mountPath": "/tmp"},
            {"name": "trusted", "mountPath": "/etc/collage-trusted", "readOnly": True},
        ],
    }  # fmt: skip
    return {
        "metadata": {"name": "serve", "labels": {"app.kubernetes.io/component": "serve"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "trusted", "configMap": {"name": "trusted"}},
            ],
        },
    }  # fmt: skip


def may_not_write(plane, namespace):
    """The components whose pods all run with a root that is read-only."""
    with plane.client() as api:
        pods = client.CoreV1Api(api).list_namespaced_pod(namespace).items
    kinds = {pod.metadata.labels["app.kubernetes.io/component"] for pod in pods}
    for pod in pods:
        for container in pod.spec.containers:
            if not container.security_context.read_only_root_filesystem:
                kinds.discard(pod.metadata.labels["app.kubernetes.io/component"])
    return kinds


def set_options(server, options):  # noqa: F811
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate

    with get_client(sync_client=True) as prefect:
        deployment = prefect.read_deployment_by_name("optimize-model/optimize@e2e")
        prefect.update_deployment(deployment.id, DeploymentUpdate(parameters={"options": options}))


def jobs_by_component(plane, namespace):
    with plane.client() as api:
        jobs = client.BatchV1Api(api).list_namespaced_job(namespace).items
    return {job.metadata.labels.get("app.kubernetes.io/component") for job in jobs}


def container_log(core, pod, container):
    """Return the last lines of one container."""
    meta = pod.metadata
    try:
        text = core.read_namespaced_pod_log(meta.name, meta.namespace, container=container)
    except client.ApiException as error:
        text = f"no log: {error.status}"
    return f"-- {container}\n{(text or 'nothing')[-6000:]}\n"


def pod_logs(plane, namespace):
    """Logs of the pods, by name."""
    actual = {}
    with plane.client() as api:
        core = client.CoreV1Api(api)
        for pod in core.list_namespaced_pod(namespace).items:
            said = "".join(container_log(core, pod, name.name) for name in pod.spec.containers)
            actual[pod.metadata.name] = f"== {pod.metadata.name} {pod.status.phase}\n{said}"
        for pair in core.list_namespaced_secret(namespace).items:
            # What Helm keeps is no secret of ours.
            for value in (pair.data or {}).values() if pair.type.startswith("helm.sh") else ():
                assert versitygw.SECRET not in base64.b64decode(value).decode(errors="replace")
    return actual
