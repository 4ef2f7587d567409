"""The whole path with real parts: MLflow's webhook, the receiver, Prefect, a worker, S3, and back.

Nothing here calls the flow: giving a version the alias `candidate` is the only step.
"""

import time

import pytest

from collage.store import open_store
from collage.store.aliases import list_aliases
from collage.store.bundles import list_bundles
from tests.flows.conftest import OPTIONS
from tests.pipeline.test_compile import small_model
from tests.registry.conftest import MlflowUser, mlflow_site  # noqa: F401
from tests.servers.receiver import SECRET, Receiver, wait_for

pytest.importorskip("prefect")

WORK_S = 240.0


@pytest.fixture
def worker(server, limit, s3_address, mlflow_site, tmp_path, monkeypatch):  # noqa: F811
    """Set the server up as an installation does, then let a worker run what comes."""
    from flows import setup

    settings = {
        "STORE": s3_address, "CACHE_DIR": str(tmp_path / "cache"), "THREADS": "1",
        "REGISTRY": mlflow_site.address, "WORK_POOL": "end-to-end",
    }  # fmt: skip
    settings = {f"COLLAGE_{name}": value for name, value in settings.items()}
    for name, value in {**settings, **server.environment}.items():
        monkeypatch.setenv(name, value)
    assert setup.main() == 0
    with server.worker("end-to-end", settings) as log:
        yield log


@pytest.fixture
def hook(server, mlflow_site, tmp_path):  # noqa: F811
    user = MlflowUser(mlflow_site, tmp_path)
    receiver = Receiver(tmp_path, server.url, COLLAGE_REGISTRY=mlflow_site.address)
    made = user.client.create_webhook(
        "collage", f"{receiver.url}/webhooks/mlflow",
        ["model_version_alias.created", "model_version_tag.set", "model_version.created"],
        secret=SECRET,
    )  # fmt: skip
    time.sleep(1.1)  # the server remembers for a second which webhooks there are
    yield user, receiver
    user.client.delete_webhook(made.webhook_id)
    receiver.stop()


def test_an_alias_is_all_it_takes(server, worker, client, hook, s3_address, tmp_path):
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
    found = tags()
    assert found["collage.status"] in ("optimized", "not-faster"), (found, worker.read_text())
    store = open_store(s3_address)
    (bundle,) = list_bundles(store)
    aliases = {one.name: one.bundle for one in list_aliases(store)}
    if found["collage.status"] == "optimized":
        assert (
            user.client.get_model_version_by_alias("small", "optimized").version == version.version
        )
        assert aliases == {"small/1/local": bundle, "small/optimized/local": bundle}
        assert found["collage.bundle"] == bundle
    time.sleep(3)  # whatever Collage's own tags and alias could have started would be there now
    assert receiver.count("starts", "started") == 1
    (run,) = _runs(client, deployment)
    wait_for(lambda: client.read_flow_run(run.id).state.is_final(), 60)
    assert client.read_flow_run(run.id).state.is_completed()

    from flows.reconcile import reconcile_registry

    state = reconcile_registry(return_state=True)
    assert state.message == "0 started"
    assert len(_runs(client, deployment)) == 1


def _with_options():
    from prefect.client.schemas.actions import DeploymentUpdate

    return DeploymentUpdate(parameters={"options": OPTIONS})


def _runs(client, deployment):
    from prefect.client.schemas.filters import DeploymentFilter

    return client.read_flow_runs(deployment_filter=DeploymentFilter(id={"any_": [deployment.id]}))
