"""The registry in an MLflow server; the only module with MLflow imports.

Aliases and tags are the contract (stages are deprecated): the module reads the request alias and writes
tags of the version and the result alias. A version is a candidate in MLflow's state READY. A model of
`mlflow.onnx` has an entry `onnx` in its file `MLmodel`; that small file is fetched first, to avoid the
download of other flavours. Files are read at the address that the server names, never at `models:/NAME/1`:
names may hold every character but `/` and `:`, and such an address gives `@`, `?` and `%` meanings of its
own.

The client's timeouts are seconds: its defaults retry for minutes.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

_CLIENT_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
for _name, _value in _CLIENT_SETTINGS.items():
    os.environ.setdefault(_name, _value)

import requests  # noqa: E402
import yaml  # noqa: E402
from mlflow import MlflowClient, set_registry_uri, set_tracking_uri  # noqa: E402
from mlflow.entities.model_registry import ModelVersion as Found  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.store.artifact.artifact_repo import ArtifactRepository  # noqa: E402
from mlflow.store.artifact.artifact_repository_registry import (  # noqa: E402
    get_artifact_repository,
)

from collage.errors import ModelError, RegistryError  # noqa: E402
from collage.registry.artifact_stores import (  # noqa: E402
    is_proxied,
    missing_folder,
    store_advice,
)
from collage.registry.base import (  # noqa: E402
    NO_SAMPLES_TAG,
    OPTIONS_TAG,
    SAMPLES,
    SAMPLES_TAG,
    TEAM_TAG,
    ModelVersion,
    UserTags,
    VersionStatus,
    from_tags,
    named_samples,
    to_tags,
)
from collage.registry.input_example import example_files  # noqa: E402

PAGE = 100
_DESCRIPTION = "MLmodel"
_ABSENT = "RESOURCE_DOES_NOT_EXIST"
_DENIED = ("PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED")

P = ParamSpec("P")
T = TypeVar("T")


class MlflowRegistry:
    """A `Registry` on the server at `url` (http or https, without credentials)."""

    def __init__(self, url: str, alias: str, accepted: str) -> None:
        """Create the client without a request."""
        self._server = url
        self._alias = alias
        self._accepted = accepted
        self._uris = {"tracking_uri": url, "registry_uri": url}
        # For `models:/` addresses MLflow makes clients of its own, with the process's server.
        set_tracking_uri(url)
        set_registry_uri(url)
        self._client = MlflowClient(tracking_uri=url, registry_uri=url)

    @property
    def url(self) -> str:
        return f"mlflow+{self._server}"

    def candidates(self) -> Iterator[ModelVersion]:
        token: str | None = None
        while True:
            page = self._do(
                "list the models",
                self._client.search_registered_models,
                max_results=PAGE,
                order_by=["name ASC"],
                page_token=token,
            )
            for model in page:
                if self._alias in model.aliases:
                    yield from self._ready(model.name, str(model.aliases[self._alias]))
            token = page.token
            if not token:
                return

    def find(self, name: str, version: str | None = None) -> ModelVersion:
        if version is not None:
            return self._version(self._get(name, version))
        record = self._do(
            f"find the version of {name!r} with the alias {self._alias!r}",
            self._client.get_model_version_by_alias,
            name,
            self._alias,
        )
        return self._version(record)

    def download(self, version: ModelVersion, folder: Path) -> Path:
        artifacts = self._artifacts(version)
        data = self._onnx_file(version, artifacts, folder)
        downloaded = self._read(
            f"download {version}", artifacts, lambda: artifacts.download_artifacts("", str(folder))
        )
        return _pick(version, Path(downloaded), data)

    def samples(self, version: ModelVersion, folder: Path, path: str = "") -> tuple[Path, ...]:
        path = path or self._get(version.name, version.version).tags.get(SAMPLES_TAG, "")
        if path == NO_SAMPLES_TAG:
            return ()
        if path:
            return (named_samples(folder, path, version),)
        if (folder / SAMPLES).is_dir():
            return (folder / SAMPLES,)
        files = tuple(sorted(folder.glob(f"{SAMPLES}*.npz")))
        return files or tuple(example_files(folder, version))

    def user_tags(self, version: ModelVersion) -> UserTags:
        tags = self._get(version.name, version.version).tags
        return UserTags(tags.get(OPTIONS_TAG, ""), tags.get(TEAM_TAG, ""))

    def options_place(self, version: ModelVersion) -> str:
        return f"the tag {OPTIONS_TAG} of {version.name} version {version.version}"

    def status(self, version: ModelVersion) -> VersionStatus:
        return from_tags(self._get(version.name, version.version).tags)

    def record_status(self, version: ModelVersion, status: VersionStatus) -> None:
        name, number = version.name, version.version
        current_tags = self._get(name, number).tags
        for tag, value in to_tags(status).items():
            if value and current_tags.get(tag) != value:
                self._do(
                    f"set the tag {tag} of {version}",
                    self._client.set_model_version_tag,
                    name,
                    number,
                    tag,
                    value,
                )
            elif not value and tag in current_tags:
                self._do(
                    f"delete the tag {tag} of {version}",
                    self._client.delete_model_version_tag,
                    name,
                    number,
                    tag,
                )

    def accept(self, version: ModelVersion) -> None:
        model = self._do(
            f"read the model of {version}",
            self._client.get_registered_model,
            version.name,
        )
        if str(model.aliases.get(self._accepted, "")) != version.version:
            self._do(
                f"set the alias {self._accepted!r} to {version}",
                self._client.set_registered_model_alias,
                version.name,
                self._accepted,
                version.version,
            )

    def _ready(self, name: str, version: str) -> Iterator[ModelVersion]:
        try:
            record = self._get(name, version)
        except _Absent:
            return  # deleted since it was listed
        if record.status == "READY":
            yield self._version(record)

    def _get(self, name: str, version: str) -> Found:
        return self._do(
            f"find version {version!r} of {name!r}",
            self._client.get_model_version,
            name,
            version,
        )

    def _version(self, record: Found) -> ModelVersion:
        created_s = (record.creation_timestamp or 0) / 1000
        return ModelVersion(
            self.url, record.name, str(record.version), record.source or "", registered_s=created_s
        )

    def _artifacts(self, version: ModelVersion) -> ArtifactRepository:
        """Return MLflow's reader of the version's files."""
        action = f"locate the files of {version}"
        address = self._do(
            action, self._client.get_model_version_download_uri, version.name, version.version
        )
        try:
            reader = get_artifact_repository(address, **self._uris)
        except ImportError as error:
            raise RegistryError(f"cannot {action}: {store_advice(address, error)}") from error
        return getattr(reader, "repo", reader)  # the reader of the address behind `models:/ID`

    def _onnx_file(self, version: ModelVersion, artifacts: ArtifactRepository, folder: Path) -> str:
        """Return the path of the model inside the version, from its file MLmodel."""
        files = self._read(
            f"list the files of {version}", artifacts, lambda: artifacts.list_artifacts(None)
        )
        if not any(Path(file.path).name == _DESCRIPTION for file in files):
            raise ModelError(
                f"{version} has no file {_DESCRIPTION}: it was not logged as a model, or not whole. Log "
                "it with mlflow.onnx.log_model and give that version the alias"
            )
        file = self._read(
            f"read {_DESCRIPTION} of {version}",
            artifacts,
            lambda: artifacts.download_artifacts(_DESCRIPTION, str(folder)),
        )
        return _flavour(version, Path(file).read_text(errors="replace"))

    def _read(self, action: str, artifacts: ArtifactRepository, act: Callable[[], T]) -> T:
        """Return the result of a call of the reader. Raises RegistryError with advice for its store."""
        address = artifacts.artifact_uri
        if folder := missing_folder(address):
            raise RegistryError(
                f"cannot {action}: the MLflow server {self._server} keeps them in {folder}, a folder that is "
                "not on this machine. Let it hand out the files: mlflow server --serve-artifacts "
                "--artifacts-destination"
            )
        if is_proxied(address):
            return self._do(action, act)
        try:
            return act()
        except Exception as error:  # the client of each store has errors of its own
            raise RegistryError(f"cannot {action}: {store_advice(address, error)}") from error

    def _do(self, action: str, act: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        try:
            return act(*args, **named)
        except MlflowException as error:
            code = str(error.error_code)
            kind = _Absent if code == _ABSENT else RegistryError
            raise kind(
                f"the MLflow server {self._server} did not {action}: {_advise(code, error)}"
            ) from error
        except (requests.RequestException, OSError) as error:
            raise RegistryError(
                f"the MLflow server {self._server} did not {action}: {type(error).__name__}. See whether "
                "the server and its artifact store answer and whether there is space here, then try again"
            ) from error


class _Absent(RegistryError):
    """Missing model, version or alias."""


def _advise(code: str, error: MlflowException) -> str:
    if code == _ABSENT:
        return "there is none. Register it, or set the alias on one of its versions"
    if code in _DENIED or error.get_http_status_code() in (401, 403):
        return (
            f"{code}. Give MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN, of a user who may edit the model"
        )
    return f"{code}. See whether the server answers, and its log"


def _flavour(version: ModelVersion, description: str) -> str:
    try:
        flavours = yaml.safe_load(description)["flavors"]
        names = ", ".join(sorted(flavours)) or "none"
        onnx = flavours.get("onnx")
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        raise ModelError(f"the file {_DESCRIPTION} of {version} is damaged; log it again") from None
    if not isinstance(onnx, dict) or not isinstance(onnx.get("data"), str):
        raise ModelError(
            f"{version} is no ONNX model: its flavours are {names}. Export it to ONNX, log it with "
            "mlflow.onnx.log_model, and give that version the alias"
        )
    return str(onnx["data"])


def _pick(version: ModelVersion, artifacts: Path, data: str) -> Path:
    """Return the .onnx file at `data`, a file or its folder; the folder for several."""
    file = (artifacts / data).resolve()
    models = sorted(file.glob("*.onnx")) if file.is_dir() else [file]
    if len(models) == 1:
        (file,) = models
    if not file.is_relative_to(artifacts.resolve()) or not models or not models[0].is_file():
        raise ModelError(f"{version} lacks its file {data!r}; log it again")
    return file
