"""Options of a version through the flow: from its tag to the request, the reason, and the bundle."""

import pytest

pytest.importorskip("prefect")

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.errors import DimensionError
from tests.flows.fake_compile_service import FakeCompileService, registered
from tests.flows.runs import Runs
from tests.support.models import small_model

pytestmark = pytest.mark.full


@pytest.fixture
def service(settings, server, limit, tmp_path, monkeypatch):
    """Two environments, `a` for the processor and `b` for a GPU, of a fake cluster."""
    created = FakeCompileService(settings.store, tmp_path / "bundles")
    environments = {
        "a": MeasuringEnvironment(threads=1),
        "b": MeasuringEnvironment(threads=2, gpu_resource="nvidia.com/gpu"),
    }
    monkeypatch.setattr("flows.environments._environments", lambda settings: environments)
    monkeypatch.setattr("flows.environments._cluster_service", lambda settings: created)
    for name in environments:
        limit(name)
    return created


@pytest.fixture
def registry(settings, tmp_path):
    return registered(settings, small_model(tmp_path / "small.onnx"))


def optimize(**parameters):
    from flows.optimize import optimize_model

    return optimize_model("small", "1", **parameters, return_state=True)


def set_options(registry, **options):
    registry.set_options(registry.find("small", "1"), options)


def test_they_reach_the_request_and_choose_environments(service, registry):
    set_options(registry, dims={"side": 8}, environments=["b"], effort="quick")
    state = optimize(options={"seed": 5, "dims": {"side": 4}}, device="cpu")
    assert state.is_completed(), state
    assert {request.environment for request in service.requests} == {"b"}
    options = service.requests[0].options
    assert (options.dims, options.seed, options.measure_budget_s) == ({"side": 8}, 5, 20.0)
    status = registry.status(registry.find("small", "1"))
    assert status.options_digest == registry.user_tags(registry.find("small", "1")).digest != ""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"workers": 64}, "'workers' cannot be set for a version"),
        ({"environments": ["c"]}, "no environment 'c' is configured"),
        ({"backends": ["typo"]}, "typo"),
    ],
)
def test_wrong_ones_are_rejected_with_their_place(service, registry, options, reason):
    set_options(registry, **options)
    state = optimize()
    assert state.name == "Rejected"
    status = registry.status(registry.find("small", "1"))
    for text in (state.message, status.reason):
        assert reason in text
        assert "small/1/options.json" in text
    assert not service.calls
    assert status.options_digest != ""


def test_an_unbound_dimension_says_what_to_set(service, registry):
    error = DimensionError("--dim side=...", {"dims": {"side": 1}})
    service.errors["a", "search main"] = [error]
    state = optimize(environments=["a"])
    assert state.name == "Rejected"
    reason = registry.status(registry.find("small", "1")).reason
    assert "small/1/options.json in" in reason
    assert 'to {"dims": {"side": 1}}, with your sizes' in reason
    assert "--dim" not in reason


def test_a_rejected_version_is_compiled_once_its_options_bind_it(server, limit, settings, tmp_path):
    """The whole way with real measuring: no size, the reason, the options, the bundle."""
    model = small_model(tmp_path / "dynamic.onnx", dynamic=True)
    registry = registered(settings, model)
    runs = Runs(server, settings.store, tmp_path / "runs", measure_budget_s=4)
    runs.tell({"COLLAGE_REGISTRY": settings.registry})
    runs.model = "small"
    rejected = runs.end(runs.start("cache", "1"))
    assert rejected["state"] == "Rejected", rejected
    reason = registry.status(registry.find("small", "1")).reason
    assert '{"dims": {"side": 1}}' in reason

    set_options(registry, dims={"side": 12})
    finished = runs.end(runs.start("cache", "1"))
    assert finished["state"] == "Completed", finished
    (outcome,) = finished["outcomes"]
    status = registry.status(registry.find("small", "1"))
    assert status.options_digest == registry.user_tags(registry.find("small", "1")).digest
    if outcome["status"] == "optimized":  # a busy machine may leave the gate's proof open
        (function,) = runs.fetched(outcome["bundle"])["functions"]
        assert function["inputs"][0]["shape"] == [1, 3, 12, 12]
