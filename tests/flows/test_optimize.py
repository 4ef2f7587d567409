"""The flow around measuring: environments, retries, tags, aliases and records."""

import json
import re

import pytest

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.errors import GateError, MeasureError, ModelError, StoreError, UnprovenError
from collage.runtime.signature import trusted_keys
from collage.store import open_store
from collage.store.alias_counters import Verification
from collage.store.aliases import list_aliases, read_alias
from collage.store.bundles import fetch_bundle
from tests.flows.fake_compile_service import FakeCompileService, registered
from tests.support.keys import make_key
from tests.support.models import small_model

pytestmark = pytest.mark.full

pytest.importorskip("prefect")


@pytest.fixture
def service(settings, server, limit, tmp_path, monkeypatch):
    """Two environments, `a` and `b`, of a fake cluster."""
    created = FakeCompileService(settings.store, tmp_path / "bundles")
    before = {
        "a": MeasuringEnvironment(threads=1),
        "b": MeasuringEnvironment(threads=2, gpu_resource="nvidia.com/gpu"),
    }
    monkeypatch.setattr("flows.environments._environments", lambda settings: before)
    monkeypatch.setattr("flows.environments._cluster_service", lambda settings: created)
    for name in before:
        limit(name)
    return created


@pytest.fixture
def registry(settings, tmp_path):
    """A registry with version 1 of the model `small`, which asks to be optimized."""
    return registered(settings, small_model(tmp_path / "small.onnx"))


def optimize(*args, **kwargs):
    from flows.optimize import optimize_model

    return optimize_model(*args, **kwargs, return_state=True)


def tags(registry):
    return registry.status(registry.find("small", "1"))


def test_every_environment_gets_a_bundle_and_an_alias(service, registry, settings):
    state = optimize("small", "1")
    assert state.is_completed(), state
    actual = {alias.name: alias.bundle for alias in list_aliases(open_store(settings.store))}
    assert actual.keys() == {
        "small/1/a", "small/1/b", "small/optimized/a", "small/optimized/b",
    }  # fmt: skip
    assert actual["small/1/a"] == actual["small/optimized/a"] != actual["small/1/b"]
    status = tags(registry)
    assert status.status == "optimized"
    assert status.speedup == 1.25
    assert {pair.partition("=")[0] for pair in status.environment.split(",")} == {"a", "b"}


def test_with_a_key_bundles_and_aliases_are_signed(
    service, registry, settings, tmp_path, monkeypatch
):
    key = make_key(tmp_path)
    monkeypatch.setenv("COLLAGE_SIGN_KEY", str(key.private))
    state = optimize("small", "1")
    assert state.is_completed(), state
    store = open_store(settings.store)
    checks = Verification(trusted_keys([key.public]), tmp_path / "seen")
    for name in ("small/1/a", "small/optimized/b"):
        fetch_bundle(store, name, tmp_path / "out", verification=checks)


def test_a_bundle_without_a_signature_gets_no_alias(
    service, registry, settings, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLLAGE_SIGN_KEY", str(make_key(tmp_path).private))
    service.signs = False
    state = optimize("small", "1")
    assert state.is_failed()
    assert "not signed" in state.message
    assert list(list_aliases(open_store(settings.store))) == []


def test_a_registered_model_may_be_called_as_a_file_is(service, settings, tmp_path):
    actual = registered(settings, small_model(tmp_path / "small.onnx"), name="rec.onnx")
    state = optimize("rec.onnx", "1")
    assert state.is_completed(), state
    assert actual.status(actual.find("rec.onnx", "1")).status == "optimized"


def test_unchanged_it_asks_the_nodes_and_does_nothing_else(service, registry):
    optimize("small", "1")
    service.calls.clear()
    state = optimize("small", "1")
    assert state.is_completed()
    assert sorted(service.calls) == [("a", "probe"), ("b", "probe")]


def test_a_changed_environment_is_measured_again_alone(service, registry, settings):
    optimize("small", "1")
    before = read_alias(open_store(settings.store), "small/1/b").bundle
    service.calls.clear()
    service.driver["b"] = "new"
    optimize("small", "1")
    assert ("a", "finish") not in service.calls
    assert ("b", "finish") in service.calls
    assert read_alias(open_store(settings.store), "small/1/b").bundle != before


def test_an_environment_that_fails_leaves_the_others_alone(service, registry, settings):
    service.errors["a", "finish"] = [MeasureError("the image pulls nothing: ErrImagePull")]
    state = optimize("small", "1")
    assert state.is_failed()
    assert "ErrImagePull" in state.message
    store = open_store(settings.store)
    assert read_alias(store, "small/1/b") is not None
    assert read_alias(store, "small/optimized/b") is None, "only when all have passed"
    status = tags(registry)
    assert (status.status, "ErrImagePull" in status.reason) == ("failed", True)
    assert service.count("finish") == 2, "not tried again"


def test_a_gate_that_does_not_pass_moves_no_alias(service, registry, settings):
    service.errors["a", "finish"] = [UnprovenError("main is 3.0 % slower than onnxruntime")]
    state = optimize("small", "1")
    assert state.is_completed()
    assert tags(registry).status == "not-faster"
    assert "slower than onnxruntime" in tags(registry).reason
    names = [alias.name for alias in list_aliases(open_store(settings.store))]
    assert names == ["small/1/b"]


@pytest.mark.parametrize("step", ["probe", "search main", "finish"])
def test_infrastructure_is_tried_again(service, registry, step):
    service.errors["a", step] = [StoreError("503"), ConnectionError("reset")]
    state = optimize("small", "1", environments=["a"])
    assert state.is_completed(), state
    assert service.count(step) == 3


def test_infrastructure_that_stays_away_fails_with_its_reason(service, registry):
    service.errors["a", "search main"] = [StoreError("cannot write s3://b/k: 503")] * 3
    state = optimize("small", "1", environments=["a"])
    assert (state.is_failed(), state.name) == (True, "Failed")
    assert "cannot write s3://b/k" in state.message
    assert tags(registry).status == "failed"


@pytest.mark.parametrize("error", [GateError("other numbers"), ModelError("no such operator")])
def test_a_rejected_model_is_not_tried_again(service, registry, error):
    service.errors["a", "search main"] = [error]
    state = optimize("small", "1", environments=["a"])
    assert (state.is_failed(), state.name) == (True, "Rejected")
    assert str(error) in state.message
    assert service.count("search main") == 1
    status = tags(registry)
    assert (status.status, status.reason, status.bundle) == ("failed", state.message, "")


def test_an_invalid_model_file_is_rejected_with_the_reason(service, settings, tmp_path):
    (tmp_path / "no.onnx").write_bytes(b"nothing")
    registry = registered(settings, tmp_path / "no.onnx")
    state = optimize("small")
    assert (state.is_failed(), state.name) == (True, "Rejected")
    assert "not an ONNX model" in state.message
    assert tags(registry).status == "failed"
    assert not service.calls


@pytest.mark.parametrize(
    ("choice", "searched"),
    [({"device": "cuda"}, {"b"}), ({"device": "cpu"}, {"a"}), ({}, {"a", "b"})],
)
def test_a_run_is_for_the_environments_of_its_device(service, registry, choice, searched):
    assert optimize("small", "1", **choice).is_completed()
    assert {environment for environment, _ in service.calls} == searched
    devices = {request.environment: request.device for request in service.requests}
    assert devices == {name: {"a": "cpu", "b": "cuda"}[name] for name in searched}


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"environments": ["a"], "device": "cuda"},
         r"for cuda, and the environment 'a' measures on cpu: name one of a pool with GPUs, or define"),
        ({"environments": ["b"], "device": "cpu"}, r"'b' measures on cuda: leave the device out"),
        ({"environments": ["b"], "options": {"backends": ["onednn"]}},
         r"none of the backends onednn runs on cuda; there are tvm-cuda"),
    ],
)  # fmt: skip
def test_a_device_that_an_environment_lacks_is_rejected_first(service, registry, choice, reason):
    state = optimize("small", "1", **choice)
    assert (state.is_failed(), state.name) == (True, "Rejected")
    assert re.search(reason, state.message)
    assert not service.calls


def test_named_backends_go_to_environments_of_their_device(service, registry):
    optimize("small", "1", options={"backends": ["onednn", "cudnn", "onnxruntime"]})
    requested = {request.environment: request.options.backends for request in service.requests}
    assert requested == {"a": ("onednn", "onnxruntime"), "b": ("cudnn",)}


def test_no_environment_of_a_device_says_how_to_describe_one(service, registry, monkeypatch):
    before = {"a": MeasuringEnvironment(threads=1)}
    monkeypatch.setattr("flows.environments._environments", lambda settings: before)
    state = optimize("small", "1", device="cuda")
    assert state.name == "Rejected"
    assert "no environment is for cuda, there are a: describe one" in state.message
    assert "gpuResource: nvidia.com/gpu" in state.message


def test_an_unknown_environment_is_rejected(service, registry):
    state = optimize("small", "1", environments=["c"])
    assert state.name == "Rejected"
    assert "no environment 'c'" in state.message


def test_a_missing_limit_lets_nobody_measure(service, registry, client):
    client.delete_global_concurrency_limit_by_name("collage-a")
    state = optimize("small", "1", environments=["a"])
    assert state.is_failed()
    assert service.count("search main") == 0


def test_several_functions_are_searched_and_finished_once(service, registry):
    service.names = ("main", "main_1", "main_2")
    state = optimize("small", "1", environments=["a"])
    assert state.is_completed()
    steps = [step for _, step in service.calls]
    assert sorted(steps[1:4]) == ["search main", "search main_1", "search main_2"]
    assert steps[4:] == ["finish"]


def test_what_prefect_shows(service, registry, client):
    state = optimize("small", "1", environments=["a"])
    run = state.state_details.flow_run_id
    actual = {artifact.key: artifact for artifact in artifacts(client, run)}
    rows = json.loads(actual["collage-alternatives-small-a-main"].data)
    assert rows[0]["predicted"] == "1.00 ms"
    assert "| onnxruntime | 1.25 ms | 1.25x |" in actual["collage-summary-small-a"].data
    assert "/blobs/" in actual["collage-report-small-a"].data
    progress = [shown for shown in artifacts(client, run) if shown.type == "progress"]
    assert [shown.data for shown in progress] == [100.0]
    assert "main on a: measure  2/2  1 cached" in progress[0].description


def artifacts(client, run):
    from prefect.client.schemas.filters import ArtifactFilter

    return client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id={"any_": [run]}))


def test_events_tell_what_was_published_and_rejected(service, registry, monkeypatch):
    reported = []
    monkeypatch.setattr(
        "flows.artifacts.emit_event",
        lambda event, resource, payload: reported.append((event, resource["prefect.resource.id"])),
    )
    service.errors["b", "finish"] = [UnprovenError("main is 3.0 % slower than onnxruntime")]
    optimize("small", "1")
    resource = "collage.model.small"
    assert sorted(reported) == sorted([
        ("collage.plan.ready", resource), ("collage.plan.ready", resource),
        ("collage.artifact.published", resource), ("collage.artifact.rejected", resource),
    ])  # fmt: skip


def test_records_that_fail_do_not_fail_the_run(service, registry, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("the API is away")

    for name in ("emit_event", "create_table_artifact", "create_markdown_artifact",
                 "create_link_artifact"):  # fmt: skip
        monkeypatch.setattr(f"flows.artifacts.{name}", broken)
    monkeypatch.setattr("flows.progress.create_progress_artifact", broken)
    assert optimize("small", "1", environments=["a"]).is_completed()
    assert tags(registry).status == "optimized"
