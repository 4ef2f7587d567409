"""The task that makes requests takes samples from the registry, or from the flow's parameter."""

from types import SimpleNamespace

import numpy as np
import pytest

from collage.registry import open_registry
from tests.support.models import small_model

pytest.importorskip("prefect")


def write_photo(folder, side):
    file = folder / f"{side}.npz"
    np.savez(file, x=np.zeros((1, 3, side, side), np.float32))
    return file


def submitted(model, version, samples=""):
    """Run the task without a flow: it talks to the store and the registry alone."""
    from flows.tasks import import_model

    (request,) = import_model.fn(model, version, ["a"], None, samples=samples).requests
    return request


@pytest.fixture
def one_environment(settings, monkeypatch):
    chosen = {"a": SimpleNamespace(threads=1, device="cpu")}
    monkeypatch.setattr("flows.environments._environments", lambda settings: chosen)
    return settings


def test_requests_have_the_samples_of_the_registry(one_environment, tmp_path):
    files = {"model.onnx": small_model(tmp_path / "small.onnx", dynamic=True)}
    files |= {f"samples-{side}.npz": write_photo(tmp_path, side) for side in (24, 16)}
    registry = open_registry(one_environment.registry)
    registry.add("small", "1", files)
    request = submitted("small", "1")
    assert len(request.samples) == 2
    assert request.options.shapes == ({"x": (1, 3, 16, 16)}, {"x": (1, 3, 24, 24)})
    named = submitted("small", "1", "samples-24.npz")
    assert named.options.shapes == ({"x": (1, 3, 24, 24)},)


def test_a_model_by_address_has_the_samples_of_the_parameter(one_environment, tmp_path):
    path = small_model(tmp_path / "small.onnx", dynamic=True)
    request = submitted(str(path), None, str(write_photo(tmp_path, 16)))
    assert request.options.shapes == ({"x": (1, 3, 16, 16)},)
    assert submitted(str(path), None).samples == ()
