"""The whole path with real parts: MLflow's webhook, the receiver, Prefect, a worker, S3, and back.

Nothing here calls the flow: giving a version the alias `candidate` is the only step. All parts are told
secrets; afterwards everything that they wrote anywhere is searched for them.
"""

import base64
import io
import time
import zipfile
from urllib.parse import quote

import pytest

from collage.store import open_store
from collage.store.aliases import list_aliases
from collage.store.manifests import list_bundles
from tests.flows.conftest import OPTIONS
from tests.flows.leaks import Places
from tests.registry.conftest import MlflowUser, mlflow_site  # noqa: F401
from tests.servers.receiver import SECRET, Receiver
from tests.store import versitygw
from tests.support.models import small_model
from tests.support.waiting import wait_for

pytest.importorskip("prefect")

WORK_S = 240.0
MARKED = {
    "store": versitygw.SECRET,
    "webhook": SECRET,
    "webhook before": "marked-webhook-secret-of-yesterday",
    "MLflow": "marked-mlflow-password-51c09f",
    "Prefect": "marked-prefect-password-77ab21",
    "Prefect Cloud": "pnu_markedprefectkey0123456789",
}
"""Secret values by what they open; the servers of these tests do not ask for all of them."""


@pytest.fixture
def worker(server, own_deployments, limit, s3_address, mlflow_site, tmp_path, monkeypatch):  # noqa: F811
    """Set the server up as an installation does, with a worker."""
    from flows import setup

    settings = {
        "STORE": s3_address, "CACHE_DIR": str(tmp_path / "cache"), "THREADS": "1",
        "REGISTRY": mlflow_site.address, "WORK_POOL": "end-to-end",
    }  # fmt: skip
    settings = {f"COLLAGE_{name}": value for name, value in settings.items()}
    settings |= {
        "MLFLOW_TRACKING_USERNAME": "collage", "MLFLOW_TRACKING_PASSWORD": MARKED["MLflow"],
        "PREFECT_API_AUTH_STRING": f"collage:{MARKED['Prefect']}", "PREFECT_LOGGING_LEVEL": "DEBUG",
    }  # fmt: skip
    for name, value in {**settings, **server.environment}.items():
        monkeypatch.setenv(name, value)
    assert setup.main() == 0
    with server.worker("end-to-end", settings) as log:
        yield log


@pytest.fixture
def hook(server, mlflow_site, tmp_path):  # noqa: F811
    user = MlflowUser(mlflow_site, tmp_path)
    (tmp_path / "receiver").mkdir()
    receiver = Receiver(
        tmp_path / "receiver", server.url, COLLAGE_REGISTRY=mlflow_site.address,
        COLLAGE_RECEIVER__PREVIOUS_SECRET=MARKED["webhook before"],
        PREFECT_API_KEY=MARKED["Prefect Cloud"],
    )  # fmt: skip
    created = user.client.create_webhook(
        "collage", f"{receiver.url}/webhooks/mlflow",
        ["model_version_alias.created", "model_version_tag.set", "model_version.created"],
        secret=SECRET,
    )  # fmt: skip
    time.sleep(1.1)  # the server remembers for a second which webhooks there are
    yield user, receiver
    user.client.delete_webhook(created.webhook_id)
    receiver.stop()


@pytest.fixture
def written(server, client, hook, mlflow_site, s3_server, s3_address, tmp_path):  # noqa: F811
    """Collect the output of all parts so far."""

    def collect():
        places = Places()
        places.add_folder("prefect server and worker", server.folder)
        places.add_folder("receiver", hook[1].folder)
        places.add_folder("mlflow", mlflow_site.folder)
        places.add_folder("cache", tmp_path / "cache")
        places.add("s3 server's log", s3_server.log.read_bytes())
        places.add_store("store", open_store(s3_address, writes=False))
        places.add_prefect("prefect", client)
        return places

    return collect


def test_an_alias_is_all_it_takes(server, worker, client, hook, written, s3_address, tmp_path):
    import mlflow.onnx
    import onnx

    user, receiver = hook
    deployment = client.read_deployment_by_name("optimize-model/optimize")
    client.update_deployment(deployment.id, _with_options())
    model = onnx.load(small_model(tmp_path / "small.onnx"))
    mlflow.onnx.save_model(model, tmp_path / "logged")
    version = user.add_folder("small", tmp_path / "logged")
    user.set_alias(version)

    def tags():
        return user.client.get_model_version("small", version.version).tags

    wait_for(lambda: tags().get("collage.status") not in (None, "", "running"), WORK_S)
    actual = tags()
    assert actual["collage.status"] in ("optimized", "not-faster"), (actual, worker.read_text())
    store = open_store(s3_address)
    (bundle,) = list_bundles(store)
    aliases = {alias.name: alias.bundle for alias in list_aliases(store)}
    if actual["collage.status"] == "optimized":
        assert (
            user.client.get_model_version_by_alias("small", "optimized").version == version.version
        )
        assert aliases == {"small/1/local": bundle, "small/optimized/local": bundle}
        assert actual["collage.bundle"] == bundle
    time.sleep(3)  # whatever Collage's own tags and alias could have started would be there now
    assert receiver.count("starts", "started") == 1
    (run,) = _runs(client, deployment)
    wait_for(lambda: client.read_flow_run(run.id).state.is_final(), 60)
    assert client.read_flow_run(run.id).state.is_completed()

    from flows.reconcile import reconcile_registry

    state = reconcile_registry(return_state=True)
    assert state.message == "0 started"
    assert len(_runs(client, deployment)) == 1
    check_no_secret_in(written())


def check_no_secret_in(places):
    for subject, secret in MARKED.items():
        assert not places.with_word(secret), subject
    # The search reads what was written: what must be there, it finds.
    for word, locations in {
        "onnxruntime": {"prefect/artifacts", "store/blobs"},
        "collage.plan.ready": {"prefect/events", "prefect server and worker/prefect.db"},
        "seconds": {"cache/costs", "store/costs"},
        "collage.status": {"mlflow/mlflow.db"},
        "from the store": {"prefect/logs", "prefect server and worker/worker-end-to-end.log"},
        "accepted": {"receiver/receiver.log"},
        "environment_digest": {"store/bundles"},
    }.items():
        actual = places.with_word(word)
        missing = {
            location
            for location in locations
            if not any(place.startswith(location) for place in actual)
        }
        assert not missing, (word, missing, sorted(actual))


def test_the_search_finds_a_secret_however_it_is_written(server, client, s3_address):
    """A leak into each kind of place, made on purpose."""
    from prefect import flow
    from prefect.artifacts import create_markdown_artifact

    from collage.store.blobs import put_blob

    planted = "planted-secret-6f1d/of+some-length"
    basic = base64.b64encode(f"user:{planted}".encode())
    flow(lambda: create_markdown_artifact(f"mlflow: {planted}", key="planted"), name="leaky")()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as created:
        created.writestr("inner.json", b'{"auth": "' + basic + b'"}')
    store = open_store(s3_address)
    digest = put_blob(store, archive.getvalue())
    put_blob(store, f"http://user:{quote(planted, safe='')}@host/".encode())
    places = Places()
    places.add_store("store", store)
    places.add_prefect("prefect", client)
    actual = places.with_word(planted)
    assert "prefect/artifacts" in actual
    assert sum(place.startswith("store/") for place in actual) == 2
    assert any(place.endswith(f"{digest}!inner.json") for place in actual)
    assert not places.with_word("another-secret-that-nobody-wrote")


def _with_options():
    from prefect.client.schemas.actions import DeploymentUpdate

    return DeploymentUpdate(parameters={"options": OPTIONS})


def _runs(client, deployment):
    from prefect.client.schemas.filters import DeploymentFilter

    return client.read_flow_runs(deployment_filter=DeploymentFilter(id={"any_": [deployment.id]}))
