"""Runs that a webhook or a crash missed are started once; no others are."""

import pytest

from collage.registry import VersionStatus
from tests.flows.fake_compile_service import registered
from tests.support.models import small_model

pytest.importorskip("prefect")


@pytest.fixture
def deployment(server, client, own_deployments, settings, monkeypatch):
    """A deployment that no worker serves: its runs stay as they were started."""
    from flows import setup

    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    assert setup.main() == 0
    return client.read_deployment_by_name("optimize-model/optimize")


def runs(client, deployment, model):
    """The deployment's runs for one model: other tests use the same server."""
    from prefect.client.schemas.filters import DeploymentFilter

    actual = client.read_flow_runs(deployment_filter=DeploymentFilter(id={"any_": [deployment.id]}))
    return [run for run in actual if run.parameters.get("model") == model]


def reconcile(**parameters):
    from flows.reconcile import reconcile_registry

    return reconcile_registry(**parameters, return_state=True).message


def end(client, run, state):
    client.set_flow_run_state(run.id, state, force=True)


def test_a_candidate_is_taken_up_once_and_again_after_a_crash(
    deployment, client, settings, tmp_path
):
    from prefect.states import Completed, Crashed

    name = f"model-{tmp_path.name}"
    registry = registered(settings, small_model(tmp_path / "small.onnx"), name)
    version = registry.find(name)
    assert reconcile() == "1 started"
    assert reconcile() == "0 started", "one is on its way"
    (first,) = runs(client, deployment, name)
    assert first.parameters["model"] == name
    assert first.parameters["version"] == "1"

    registry.record_status(version, VersionStatus(status="running"))
    end(client, first, Crashed())
    assert reconcile() == "1 started"
    second = next(run for run in runs(client, deployment, name) if run.id != first.id)

    end(client, second, Completed())
    node = reconcile_node(settings, registry)
    registry.record_status(version, VersionStatus(status="optimized", environment=f"local={node}"))
    assert reconcile(check_environments=True) == "0 started", "own tags are no reason"
    registry.record_status(version, VersionStatus(status="optimized", environment="local=another"))
    assert reconcile() == "0 started", "the nodes were not asked"
    assert reconcile(check_environments=True) == "1 started"
    assert len(runs(client, deployment, name)) == 3


def reconcile_node(settings, registry):
    from flows.reconcile import _nodes

    return _nodes(registry, settings, True)["local"]


def test_teams_have_queues_of_their_own_and_take_turns(
    deployment, client, settings, tmp_path, monkeypatch
):
    from flows import setup

    name = tmp_path.name
    teams = tmp_path / "teams.yaml"
    teams.write_text(
        f"noisy: {{prefixes: [noisy-{name}], runs: 2, queue: noisy-queue}}\n"
        f"quiet: {{prefixes: [quiet-{name}], queue: quiet-queue, priority: 1}}\n"
    )
    monkeypatch.setenv("COLLAGE_TEAMS_FILE", str(teams))

    def priorities():
        queues = client.read_work_queues(work_pool_name=settings.work_pool)
        return {queue.name: queue.priority for queue in queues}

    assert setup.main() == 0
    before = priorities()
    assert before["reconcile"] < before["quiet-queue"] < before["noisy-queue"]
    assert setup.main() == 0
    assert priorities() == before

    for model in (f"noisy-{name}-1", f"noisy-{name}-2", f"noisy-{name}-3", f"quiet-{name}"):
        registered(settings, small_model(tmp_path / "small.onnx"), model)
    assert reconcile() == "3 started"
    assert reconcile() == "0 started", "the third one of the noisy team waits for its turn"
    for model, queue in ((f"noisy-{name}-1", "noisy-queue"), (f"quiet-{name}", "quiet-queue")):
        (run,) = runs(client, deployment, model)
        assert run.work_queue_name == queue
    assert runs(client, deployment, f"noisy-{name}-3") == []


def test_set_up_again_changes_nothing(deployment, client):
    from flows import setup

    def facts():
        automations = client._client.post("/automations/filter", json={}).json()
        actual = [client.read_deployment_by_name(name) for name in (
            "optimize-model/optimize", "reconcile-registry/reconcile", "collect-garbage/garbage",
        )]  # fmt: skip
        zombies = [automation for automation in automations if automation["name"] == setup.ZOMBIES]
        schedules = [
            sorted(
                (schedule.schedule.cron, str(schedule.parameters))
                for schedule in deployed.schedules
            )
            for deployed in actual
        ]
        return [deployed.id for deployed in actual], schedules, zombies

    before = facts()
    assert setup.main() == 0
    assert facts() == before
    ids, schedules, zombies = before
    assert len(zombies) == 1
    assert [len(schedule) for schedule in schedules] == [0, 2, 1]
    assert all(deployed.pull_steps == [] for deployed in map(client.read_deployment, ids))


def test_garbage_is_only_listed_unless_told_otherwise(server, settings):
    from collage.store import open_store
    from collage.store.blobs import blob_key, put_blob
    from flows.garbage import collect_garbage

    store = open_store(settings.store)
    key = blob_key(put_blob(store, b"nobody's"))
    state = collect_garbage(older_than_s=0, return_state=True)
    assert "would delete 1 objects" in state.message
    assert store.stat(key)
    state = collect_garbage(delete=True, older_than_s=0, return_state=True)
    assert "deleted 1 objects" in state.message
    assert not store.stat(key)
