import contextlib
import os

import pytest

from tests.servers import prefect as prefect_server
from tests.servers.fixtures import running
from tests.store.conftest import bucket, credentials, s3_address, s3_server  # noqa: F401

OPTIONS = {
    "backends": ["onnxruntime", "onednn"], "measure_budget_s": 15, "refine_s": 0, "verify_s": 0.3,
}  # fmt: skip
"""Of compiles that have to be quick more than good."""


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A Prefect server; the flows of this process use it."""
    with (
        running(prefect_server.Server, tmp_path_factory.mktemp("prefect")) as created,
        _used(created, tmp_path_factory.mktemp("prefect-home")),
    ):
        yield created


@contextlib.contextmanager
def _used(server, home):
    """Let the flows of this process use the server."""
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_HOME,
        PREFECT_LOGGING_TO_API_ENABLED,
        temporary_settings,
    )

    local = {PREFECT_API_URL: server.url, PREFECT_HOME: home, PREFECT_LOGGING_TO_API_ENABLED: False}
    with temporary_settings(local):
        yield


@pytest.fixture
def client(server):
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as created:
        yield created


@pytest.fixture
def own_deployments(client):
    """Delete Collage's deployments afterwards: the next test's installation has another store."""
    yield
    delete_deployments(client)


def delete_deployments(client):
    entrypoints = tuple(f"flows.{module}." for module in ("optimize", "reconcile", "garbage"))
    for deployment in client.read_deployments():
        if (deployment.entrypoint or "").startswith(entrypoints):
            client.delete_deployment(deployment.id)


@pytest.fixture
def limit(client):
    """Make the concurrency limit of an environment anew, with no slot taken."""
    from prefect.exceptions import ObjectNotFound

    from flows.names import limit_name

    def make(environment="local", slots=1):
        name = limit_name(environment, "")
        with contextlib.suppress(ObjectNotFound):
            client.delete_global_concurrency_limit_by_name(name)
        client.upsert_global_concurrency_limit_by_name(name, slots)

    make()
    return make


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Settings of the flows in this process: a store and a registry in folders, quick retries."""
    for name in [name for name in os.environ if name.startswith("COLLAGE_")]:
        monkeypatch.delenv(name)
    values = {
        "STORE": tmp_path / "store", "CACHE_DIR": tmp_path / "cache", "REGISTRY": tmp_path / "registry",
        "THREADS": 1, "RETRIES": 2, "RETRY_DELAY_S": 0.05, "PROGRESS_EVERY_S": 0.2,
    }  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(f"COLLAGE_{name}", str(value))
    from flows.settings import flow_settings

    return flow_settings()
