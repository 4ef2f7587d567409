"""A registry of each kind, with what a user does to it: every test of the protocol runs against all."""

import contextlib
import itertools
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.registry import open_registry
from collage.store import open_store
from tests.servers import mlflow as mlflow_server
from tests.servers.fixtures import running
from tests.store.conftest import bucket, credentials, s3_address, s3_server  # noqa: F401

_names = itertools.count()


def make_model():
    weight = numpy_helper.from_array(np.ones((64, 64), "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])], [weight],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


def save_model(folder, external):
    folder.mkdir()
    file = folder / "model.onnx"
    options = {"location": "weights.bin", "size_threshold": 0} if external else {}
    onnx.save(make_model(), file, save_as_external_data=external, **options)
    return {file.name: file for file in folder.iterdir()}


@pytest.fixture(scope="session")
def mlflow_site(tmp_path_factory):
    with running(mlflow_server.Server, tmp_path_factory.mktemp("mlflow")) as server:
        yield server


class FileUser:
    """Adds versions to a folder or to S3."""

    def __init__(self, address, tmp_path):
        self.address = address
        self._folder = tmp_path
        self.registry = open_registry(address)
        self.store = open_store(address)

    def add(self, name, external=False):
        version = str(next(_names))
        files = save_model(self._folder / f"source-{version}", external)
        return self.registry.add(name, version, files)

    def set_alias(self, version, alias="candidate"):
        self.registry.set_alias(version, alias)

    def set_options(self, version, options):
        self.registry.set_options(version, options)


class MlflowUser:
    """Logs and registers models with MLflow's own client."""

    def __init__(self, server, tmp_path):
        import mlflow

        mlflow.set_tracking_uri(server.url)
        mlflow.set_registry_uri(server.url)  # else that of an earlier test's server is still set
        self.address = server.address
        self.client = mlflow.MlflowClient(server.url, server.url)
        self._folder = tmp_path
        self.registry = open_registry(server.address)

    def add(self, name, external=False):
        """Register what `mlflow.onnx.save_model` writes."""
        import mlflow.onnx

        folder = self._folder / f"source-{next(_names)}"
        mlflow.onnx.save_model(make_model(), folder, save_as_external_data=external)
        return self.add_folder(name, folder)

    def add_folder(self, name, folder):
        from mlflow.exceptions import MlflowException

        with contextlib.suppress(MlflowException):
            self.client.create_registered_model(name)
        run = self.client.create_run("0")
        self.client.log_artifacts(run.info.run_id, str(folder), "model")
        model_version = self.client.create_model_version(
            name, f"runs:/{run.info.run_id}/model", run_id=run.info.run_id
        )
        return self.registry.find(name, str(model_version.version))

    def set_alias(self, version, alias="candidate"):
        self.client.set_registered_model_alias(version.name, alias, version.version)

    def set_options(self, version, options):
        tag = (version.name, version.version, "collage.options")
        self.client.set_model_version_tag(*tag, json.dumps(options))


@pytest.fixture(params=["directory", "s3", "mlflow"])
def user(request, tmp_path):
    if request.param == "mlflow":
        return MlflowUser(request.getfixturevalue("mlflow_site"), tmp_path)
    if request.param == "s3":
        return FileUser(request.getfixturevalue("s3_address"), tmp_path)
    return FileUser(str(tmp_path / "registry"), tmp_path)


@pytest.fixture
def mlflow_user(mlflow_site, tmp_path):
    return MlflowUser(mlflow_site, tmp_path)


@pytest.fixture(params=["directory", "s3"])
def file_user(request, tmp_path):
    if request.param == "s3":
        return FileUser(request.getfixturevalue("s3_address"), tmp_path)
    return FileUser(str(tmp_path / "registry"), tmp_path)


@pytest.fixture
def name():
    return f"model-{next(_names)}"
