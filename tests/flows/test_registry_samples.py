"""Samples of a registered version through a real flow: into the bundle's golden data, and nowhere else."""

import mlflow.onnx
import numpy as np
import onnx
import pytest

pytest.importorskip("prefect")

from collage.registry.base import SAMPLES_TAG
from collage.store import open_store
from collage.store.blobs import blob_key
from tests.flows.leaks import Places
from tests.flows.runs import Runs
from tests.registry.conftest import MlflowUser, mlflow_site  # noqa: F401
from tests.support.models import small_model
from tests.support.original_models import map_model

pytestmark = pytest.mark.full

ATTEMPTS = 3
"""Runs until the gate has its proof, which a busy machine may leave open."""


@pytest.fixture
def user(mlflow_site, tmp_path):  # noqa: F811
    return MlflowUser(mlflow_site, tmp_path)


@pytest.fixture
def runs(server, limit, settings, user, tmp_path):
    created = Runs(server, settings.store, tmp_path / "runs", measure_budget_s=4)
    created.tell({"COLLAGE_REGISTRY": user.address, "PREFECT_LOGGING_LEVEL": "DEBUG"})
    return created


def run(runs, version, attempts=1):
    """Run the flow on a version; return the outcome of its only environment."""
    runs.model = version.name
    for _ in range(attempts):
        actual = runs.end(runs.start("cache", version.version))
        assert actual["state"] == "Completed", (actual, (runs.folder / "cache.log").read_text())
        (outcome,) = actual["outcomes"]
        if outcome["status"] == "optimized":
            break
    return outcome


def golden(runs, outcome):
    """Return the manifest of the run's bundle, and its golden data."""
    manifest = runs.fetched(outcome["bundle"])
    with np.load(runs.folder / "fetched" / "golden.npz") as stored:
        return manifest, {name: stored[name] for name in stored.files}


def check_places(runs, server, client, x, golden_blobs):
    """Check that the samples are under their own prefix and in golden data alone."""
    places = Places()
    places.add_folder("run", runs.folder / "cache")
    places.add("run.log", (runs.folder / "cache.log").read_bytes())
    places.add_folder("server", server.folder)
    places.add_prefect("prefect", client)
    places.add_store("store", open_store(runs.address, writes=False))
    first = x.reshape(-1)[:4]
    forms = [first.tobytes(), first.astype(np.float64).tobytes()]
    forms += [str(value).encode() for number in first for value in (number, float(number))]
    actual = {place.split("!")[0] for place in places.with_data(*forms)}
    samples = {place for place in actual if place.startswith("store/samples/")}
    assert samples, "the search finds the samples where they are"
    assert actual - samples == {f"store/{blob_key(digest)}" for digest in golden_blobs}
    assert places.with_word("from the store") & {"prefect/logs", "run.log"}, "logs are searched"


def test_an_input_example_becomes_golden_data(runs, server, client, user, tmp_path):
    x = np.random.default_rng(7).random((1, 3, 20, 20), np.float32)
    model = onnx.load(small_model(tmp_path / "small.onnx", dynamic=True))
    mlflow.onnx.save_model(model, tmp_path / "logged", input_example={"x": x})
    version = user.add_folder("photos", tmp_path / "logged")
    outcome = run(runs, version, ATTEMPTS)
    blobs = []
    if outcome["status"] == "optimized":
        manifest, arrays = golden(runs, outcome)
        np.testing.assert_array_equal(arrays["main/input/x"], x)
        assert manifest["functions"][0]["inputs"][0]["shape"] == [1, 3, 20, 20]
        blobs = [manifest["files"]["golden.npz"]]
    check_places(runs, server, client, x, blobs)


def test_samples_at_a_tagged_path_become_golden_data(runs, server, client, user, tmp_path):
    x = np.random.default_rng(8).random((5, 3), np.float32)
    mlflow.onnx.save_model(onnx.load(map_model(tmp_path / "maps.onnx")), tmp_path / "logged")
    (tmp_path / "logged" / "real").mkdir()
    np.savez(tmp_path / "logged" / "real" / "rows.npz", x=x)
    np.savez(tmp_path / "logged" / "samples.npz", x=x + 1)
    version = user.add_folder("maps", tmp_path / "logged")
    tag = (version.name, version.version, SAMPLES_TAG, "real/rows.npz")
    user.client.set_model_version_tag(*tag)
    outcome = run(runs, version)
    assert outcome["status"] == "optimized", outcome
    manifest, arrays = golden(runs, outcome)
    assert manifest["functions"] == []
    assert any(np.array_equal(value, x) for value in arrays.values())
    check_places(runs, server, client, x, [manifest["files"]["golden.npz"]])
