"""Names with every kind of character that MLflow allows, from its server to keys of store and Prefect."""

import re
import string

import onnx
import pytest

from collage.pipeline.model_source import is_address
from collage.registry import VersionStatus
from collage.store import open_store
from collage.store.aliases import read_alias
from flows.names import artifact_key, model_resource, version_alias
from tests.support.model_names import COMPOSED, MODEL_NAMES


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder as `mlflow.onnx.save_model` writes it, the same for all names."""
    import mlflow.onnx

    from tests.registry.conftest import make_model

    folder = tmp_path_factory.mktemp("names") / "model"
    mlflow.onnx.save_model(make_model(), folder)
    return folder


@pytest.mark.parametrize("name", COMPOSED, ids=ascii)
def test_a_version_of_each_name_is_found_read_and_tagged(mlflow_user, saved, tmp_path, name):
    registry = mlflow_user.registry
    version = mlflow_user.add_folder(name, saved)
    mlflow_user.set_alias(version)
    assert registry.find(name) == version
    assert version in list(registry.candidates())
    onnx.checker.check_model(str(registry.download(version, tmp_path)))
    registry.record_status(version, VersionStatus("optimized", speedup=2.0))
    registry.accept(version)
    assert registry.status(version).status == "optimized"
    accepted = mlflow_user.client.get_model_version_by_alias(name, "optimized")
    assert accepted.version == version.version
    assert not is_address(name)


def test_keys_of_all_names_are_valid_and_differ(tmp_path):
    assert set("".join(MODEL_NAMES)) <= set("".join(COMPOSED)) | set(
        string.ascii_letters + string.digits + "二一é."
    )
    store = open_store(str(tmp_path / "store"))
    aliases = [version_alias(name, "1", "local") for name in MODEL_NAMES]
    assert [read_alias(store, alias) for alias in aliases] == [None] * len(MODEL_NAMES)
    artifacts = [artifact_key("summary", name, "local") for name in MODEL_NAMES]
    assert all(re.fullmatch(r"[a-z0-9-]+", key) for key in artifacts)
    resources = [model_resource(name, "")["prefect.resource.id"] for name in MODEL_NAMES]
    for keys in (aliases, artifacts, resources):
        assert len(set(keys)) == len(MODEL_NAMES)
