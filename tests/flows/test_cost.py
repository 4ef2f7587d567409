"""The cost of a run in its summary, in tags and in the store; limits stop runs with a reason."""

import pytest

pytest.importorskip("prefect")

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.store import open_store
from collage.store.usage import Usage, WorkOwner, day_prefix, list_usage, today, total
from tests.flows.fake_compile_service import FakeCompileService, registered
from tests.support.models import small_model

pytestmark = pytest.mark.full


@pytest.fixture
def service(settings, server, limit, tmp_path, monkeypatch):
    """Two environments of a fake cluster; a node of `b` has a price, one of `a` has none."""
    created = FakeCompileService(settings.store, tmp_path / "bundles")
    created.usage = {
        "probe": Usage.of(1.0, 2, 0), "search": Usage.of(30.5, 2, 1), "finish": Usage.of(8.0, 2, 1),
    }  # fmt: skip
    environments = {
        "a": MeasuringEnvironment(threads=1),
        "b": MeasuringEnvironment(threads=2, price_per_node_second=0.01),
    }
    monkeypatch.setattr("flows.environments._environments", lambda settings: environments)
    monkeypatch.setattr("flows.environments._cluster_service", lambda settings: created)
    for name in environments:
        limit(name)
    return created


@pytest.fixture
def registry(settings, tmp_path):
    return registered(settings, small_model(tmp_path / "small.onnx"))


def optimize(model="small", version="1", **parameters):
    from flows.optimize import optimize_model

    return optimize_model(model, version, **parameters, return_state=True)


def status(registry):
    return registry.status(registry.find("small", "1"))


def summaries(client, state):
    from prefect.client.schemas.filters import ArtifactFilter

    run = {"any_": [state.state_details.flow_run_id]}
    listed = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=run))
    return [artifact.data for artifact in listed if "summary" in (artifact.key or "")]


def test_summary_tags_and_records_have_the_same_cost(service, registry, settings, client):
    registry.set_options(registry.find("small", "1"), {"team": "ocr"})
    state = optimize(environments=["b"])
    assert state.is_completed(), state
    used = total(list_usage(open_store(settings.store), day_prefix(today())))
    assert (used.node_s, used.gpu_s) == (39.5, 38.5)
    (summary,) = summaries(client, state)
    assert "cost: 39.5 node-seconds, 38.5 GPU-seconds, price 0.3950" in summary
    marked = status(registry)
    assert (marked.node_seconds, marked.gpu_seconds, marked.price) == (39.5, 38.5, 0.395)
    run = str(state.state_details.flow_run_id)
    assert service.owners == {WorkOwner(run, "small", "1", "ocr")}


def test_environments_add_up_and_an_unknown_price_stays_unknown(service, registry):
    assert optimize().is_completed()
    marked = status(registry)
    assert (marked.node_seconds, marked.gpu_seconds, marked.price) == (79.0, 77.0, None)


def test_a_run_that_finds_its_result_costs_its_probe(service, registry):
    optimize(environments=["b"])
    optimize(environments=["b"])
    assert status(registry).node_seconds == 1.0


def test_a_failed_run_has_its_cost(service, registry):
    from collage.errors import GateError

    service.errors["b", "finish"] = [GateError("other numbers")]
    assert optimize(environments=["b"]).is_failed()
    assert status(registry).node_seconds == 39.5


@pytest.mark.parametrize(
    ("setting", "name", "reason"),
    [
        ("RUN_NODE_SECONDS", "Rejected", "this run has used"),
        ("MODEL_NODE_SECONDS", "OverLimit", "the model 'small' has used"),
        ("TEAM_GPU_SECONDS", "OverLimit", "the team 'without a name' has used"),
        ("DAY_NODE_SECONDS", "OverLimit", "all runs have used"),
    ],
)
def test_a_limit_stops_a_run_with_its_setting(
    service, registry, monkeypatch, setting, name, reason
):
    monkeypatch.setenv(f"COLLAGE_LIMITS__{setting}", "20")
    state = optimize(environments=["b"])
    assert state.name == name, state
    for text in (state.message, status(registry).reason):
        assert reason in text
        assert f"COLLAGE_LIMITS__{setting}" in text
    assert service.count("finish") == 0
    assert status(registry).node_seconds == 31.5, "the search was under way"


def test_over_a_daily_limit_nothing_starts(service, registry, monkeypatch):
    optimize(environments=["b"])
    service.calls.clear()
    monkeypatch.setenv("COLLAGE_LIMITS__MODEL_NODE_SECONDS", "39")
    state = optimize()
    assert (state.name, service.calls) == ("OverLimit", [])
    assert "or wait for tomorrow" in status(registry).reason


def test_local_steps_count_their_time(settings, server, limit, tmp_path, monkeypatch):
    fake = FakeCompileService(settings.store, tmp_path / "bundles")
    monkeypatch.setattr("flows.environments.LocalCompileService", lambda *arguments: fake)
    monkeypatch.setenv("COLLAGE_PRICE_PER_NODE_SECOND", "2")
    registry = registered(settings, small_model(tmp_path / "small.onnx"))
    assert optimize().is_completed()
    entries = list_usage(open_store(settings.store), day_prefix(today()))
    assert [entry.place for entry in entries] == ["local", "local"]
    marked = status(registry)
    assert total(entries).node_s > 0
    assert marked.node_seconds == pytest.approx(total(entries).node_s, abs=0.002)
    assert marked.price == pytest.approx(2 * total(entries).node_s, abs=0.004)
