"""Artifacts that the MLflow server does not hand out: errors of their stores are told with advice."""

import pytest

from collage.errors import RegistryError
from collage.registry.artifact_stores import is_proxied, missing_folder, store_advice


@pytest.mark.parametrize(
    ("address", "proxied"),
    [
        ("mlflow-artifacts:/0/a/artifacts/model", True),
        ("https://mlflow/api/2.0/mlflow-artifacts/artifacts/0", True),
        ("s3://bucket/0/a", False), ("gs://bucket/0/a", False), ("file:///mlruns/0", False),
        ("/mlruns/0", False),
    ],
)  # fmt: skip
def test_which_addresses_the_server_hands_out(address, proxied):
    assert is_proxied(address) is proxied


def test_a_folder_of_the_servers_machine_is_named(tmp_path):
    assert missing_folder(f"file://{tmp_path}/a%20b") == f"{tmp_path}/a b"
    assert missing_folder(f"{tmp_path}/none") == f"{tmp_path}/none"
    assert missing_folder(str(tmp_path)) == missing_folder("s3://bucket/x") == ""


@pytest.mark.parametrize(
    ("address", "package", "variable"),
    [
        ("s3://b/p", "boto3", "AWS_ACCESS_KEY_ID"),
        ("gs://b/p", "google-cloud-storage", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("wasbs://c@a/p", "azure-storage-blob", "AZURE_STORAGE_CONNECTION_STRING"),
        ("abfss://c@a/p", "azure-storage-file-datalake", "AZURE_STORAGE_CONNECTION_STRING"),
        ("hdfs://n/p", "the client of hdfs://", "the client of hdfs://"),
    ],
)
def test_advice_names_package_or_credentials(address, package, variable):
    assert package in store_advice(address, ModuleNotFoundError("No module named 'x'"))
    assert variable in store_advice(address, RuntimeError("denied"))
    assert "--serve-artifacts" in store_advice(address, RuntimeError("denied"))


@pytest.fixture
def version_at(mlflow_user, name):
    """Register a version whose files are at an address."""

    def register(address):
        mlflow_user.client.create_registered_model(name)
        created = mlflow_user.client.create_model_version(name, address)
        return mlflow_user.registry.find(name, str(created.version))

    return register


def test_a_missing_client_of_the_store_is_advice(mlflow_user, version_at, tmp_path):
    version = version_at("gs://no-such-bucket/model")
    with pytest.raises(RegistryError, match=r"ModuleNotFoundError.*google-cloud-storage"):
        mlflow_user.registry.download(version, tmp_path)


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("{server}", r"(Access|Forbidden|InvalidAccessKeyId|NoSuchBucket)"),
        ("http://127.0.0.1:1", "connect"),
    ],
    ids=["refused", "unreachable"],
)
def test_errors_of_the_bucket_are_advice(
    mlflow_user, version_at, s3_server, tmp_path, monkeypatch, endpoint, message
):
    for variable, value in {
        "MLFLOW_S3_ENDPOINT_URL": endpoint.format(server=s3_server.url),
        "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "marked-secret-of-nobody",
        "AWS_MAX_ATTEMPTS": "1", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(variable, value)
    version = version_at("s3://no-such-bucket/model")
    with pytest.raises(RegistryError, match=rf"(?i){message}") as error:
        mlflow_user.registry.download(version, tmp_path)
    assert "MLFLOW_S3_ENDPOINT_URL" in str(error.value)
    assert "marked-secret" not in str(error.value)
