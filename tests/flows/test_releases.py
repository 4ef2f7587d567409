"""Two releases on one Prefect server: each one's pool, deployments and runs stay its own."""

import os

import pytest

from collage.errors import OptionError
from tests.flows.conftest import delete_deployments
from tests.flows.fake_compile_service import registered
from tests.support.models import small_model

pytest.importorskip("prefect")

from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import ownership, setup, worker
from flows.own_runs import own_runs
from flows.settings import FlowSettings

OPTIMIZE = "optimize-model/optimize"


@pytest.fixture
def installed(server, client, tmp_path, monkeypatch):
    """Set an installation up with these settings in place of all others; return them."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)

    def install(release, pool, *arguments, store="store", code=0):
        for name in [name for name in os.environ if name.startswith("COLLAGE_")]:
            monkeypatch.delenv(name)
        registry = tmp_path / f"registry-{release}"
        values = {
            "STORE": tmp_path / store, "CACHE_DIR": tmp_path / "cache", "WORK_POOL": pool,
            "RELEASE": release, "REGISTRY": registry, "RETRIES": 0,
        }  # fmt: skip
        for name, value in values.items():
            monkeypatch.setenv(f"COLLAGE_{name}", str(value))
        assert setup.main(arguments) == code
        return FlowSettings.load()

    yield install
    delete_deployments(client)


def reconcile():
    from flows.reconcile import reconcile_registry

    return reconcile_registry(return_state=True).message


def models(client, path):
    deployment = client.read_deployment_by_name(path)
    return sorted(
        run.parameters["model"] for run in own_runs(client, deployment, "optimize-model")
        if run.deployment_id == deployment.id
    )  # fmt: skip


def old_deployment(client, pool, flow="optimize-model", name="optimize"):
    """A deployment of a version of Collage without owners and releases."""
    flow_id = client.create_flow_from_name(flow)
    return client.create_deployment(
        flow_id, name, work_pool_name=pool, entrypoint="flows.optimize.optimize_model"
    )


def test_each_releases_runs_stay_its_own(installed, client, tmp_path):
    """The same model in two registries: one run for each, also where the keys could be equal."""
    for release in ("a", "b"):
        settings = installed(release, f"pool-{release}")
        registered(settings, small_model(tmp_path / f"{release}.onnx"), "same")
        assert reconcile() == "1 started"
        assert reconcile() == "0 started", "its own run is on its way"
    assert models(client, f"{OPTIMIZE}@a") == models(client, f"{OPTIMIZE}@b") == ["same"]
    for release in ("a", "b"):
        deployment = client.read_deployment_by_name(f"{OPTIMIZE}@{release}")
        assert deployment.work_pool_name == f"pool-{release}"
        assert client.read_global_concurrency_limit_by_name(f"collage-local@{release}").limit == 1
    queue = client.read_work_queue_by_name("reconcile", work_pool_name="pool-a")
    assert (queue.priority, queue.concurrency_limit) == (1, 1)
    reconciles = client.read_deployment_by_name("reconcile-registry/reconcile@a")
    assert reconciles.work_queue_name == "reconcile"


@pytest.fixture
def claimed(installed, client, tmp_path, monkeypatch):
    """The server after the set-up of release `a` in the pool `shared`, without Prefect's own command."""

    def deploy(settings):
        for flow, name in ownership.DEPLOYED.items():
            client.create_deployment(
                client.create_flow_from_name(flow), f"{name}{setup.released('', settings.release)}",
                work_pool_name=settings.work_pool, entrypoint="flows.optimize.optimize_model",
                tags=[ownership.owner_tag(settings)],
            )  # fmt: skip

    monkeypatch.setattr(setup, "deploy", deploy)
    return installed("a", "shared")


@pytest.mark.parametrize(
    ("release", "pool", "store", "message"),
    [
        ("b", "shared", "store", "the work pool shared belongs to another installation"),
        ("a", "shared", "elsewhere", "the work pool shared belongs to another installation"),
        ("a", "other", "elsewhere", "the deployment optimize-model/optimize@a has the owner a/"),
    ],
    ids=["the pool of another", "one name, two stores", "one name, another pool and store"],
)
def test_what_another_installation_has_is_refused(
    claimed, installed, client, capsys, release, pool, store, message
):
    before = client.read_deployment_by_name(f"{OPTIMIZE}@a")
    installed(release, pool, store=store, code=2)
    said = capsys.readouterr().err
    assert message in said
    assert "COLLAGE_WORK_POOL" in said or "COLLAGE_RELEASE" in said
    after = client.read_deployment_by_name(f"{OPTIMIZE}@a")
    assert (after.id, after.work_pool_name, after.updated) == (
        before.id, before.work_pool_name, before.updated,
    )  # fmt: skip


def test_a_worker_refuses_the_pool_of_another(claimed, installed, client, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(worker.os, "execv", lambda _, command: started.append(command))
    installed("b", "shared", code=2)
    assert worker.main(["--limit", "2"]) == OptionError.exit_code
    assert "belongs to another installation" in capsys.readouterr().err
    assert started == []
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        assert worker.main([]) == 1, "nobody tells whose the pool is"
    assert started == []
    monkeypatch.setenv("COLLAGE_RELEASE", "a")
    worker.main(["--limit", "2"])
    ((_, *command),) = started
    assert command[:5] == ["-m", "prefect", "--no-prompt", "worker", "start"]
    assert command[-2:] == ["--limit", "2"]
    assert "shared" in command


def test_plain_names_do_not_move_to_another_pool(claimed, installed, client, capsys):
    installed("", "first")
    installed("", "first")
    installed("", "second", code=2)
    assert "runs in the work pool first" in capsys.readouterr().err
    assert client.read_deployment_by_name(OPTIMIZE).work_pool_name == "first"


def test_a_release_adopts_deployments_of_before_it_had_a_name(claimed, installed, client, capsys):
    setup.ensure_work_pool(client, claimed.model_copy(update={"work_pool": "grown"}))
    old = old_deployment(client, "grown")
    old_deployment(client, "grown", "collect-garbage", "garbage")
    own = old_deployment(client, "grown", name="made-by-hand")
    waiting = client.create_flow_run_from_deployment(old, parameters={"model": "waits"})
    running = client.create_flow_run_from_deployment(old, parameters={"model": "runs"})
    client.set_flow_run_state(running.id, running_state(), force=True)

    installed("c", "grown", code=2)
    assert "python -m flows.setup --adopt" in capsys.readouterr().err
    assert client.read_deployment(old), "nothing was changed"
    for _ in range(2):
        installed("c", "grown", "--adopt")
    names = {
        deployment.name
        for deployment in client.read_deployments()
        if deployment.work_pool_name == "grown"
    }
    assert names == {"optimize@c", "reconcile@c", "garbage@c", "made-by-hand"}
    assert client.read_deployment(own)
    assert models(client, f"{OPTIMIZE}@c") == ["waits"]
    assert client.read_flow_run(waiting.id).state.is_cancelled()
    assert client.read_flow_run(running.id).state.is_running()
    deployment = client.read_deployment_by_name(f"{OPTIMIZE}@c")
    counted = {run.id for run in own_runs(client, deployment, "optimize-model")}
    assert running.id in counted, "a run under way counts: reconcile starts no second one"


def running_state():
    from prefect.states import Running

    return Running()
