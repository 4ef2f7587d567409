"""A registry of ONNX files in a folder or in S3, through the same protocol as the store.

    NAME/VERSION/model.onnx        the model, and the files with its data beside it;
                                   several ENTRY.onnx for a bundle of several entries   create
    NAME/VERSION/samples*.npz      samples of the model's inputs, one set a file               create
    NAME/VERSION/version.json      every file with size and SHA-256, written last       swap, once
    NAME/VERSION/options.json      options of the version, JSON or YAML, by users             swap
    NAME/VERSION/status.json       status of the optimization                           swap
    NAME/aliases/ALIAS.json        {"version": "3"}                                     swap

A version exists if its `version.json` does: an interrupted upload has none, and later changes of files do
not match it. Aliases and statuses change by compare-and-swap; a random token in each lets a writer with a
lost response detect its own success.
"""

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

from collage.errors import ModelError, OptionError, RegistryError, StoreError
from collage.registry.base import (
    SAMPLES,
    ModelVersion,
    UserTags,
    VersionStatus,
    from_tags,
    named_samples,
    to_tags,
)
from collage.store import Store, Version
from collage.store.blobs import digest_of
from collage.store.records import RecordError, parse_object

MODEL = "model.onnx"
_VERSION, _STATUS, _OPTIONS, _ALIASES = "version.json", "status.json", "options.json", "aliases"
_OWN = (_VERSION, _STATUS, _OPTIONS)
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
_ATTEMPTS = 100
"""Attempts of a swap; each failure means success of another writer."""


P = ParamSpec("P")
T = TypeVar("T")


class FileRegistry:
    """A `Registry` on a store; `add`, `set_options` and `set_alias` are for users."""

    def __init__(self, store: Store, alias: str, accepted: str) -> None:
        self._store = store
        self._alias = alias
        self._accepted = accepted

    @property
    def url(self) -> str:
        return self._store.url

    def candidates(self) -> Iterator[ModelVersion]:
        suffix = f"/{_ALIASES}/{self._alias}.json"
        ages_s = self._do("list the models of", self._ages)
        now_s = time.time()
        for key in sorted(ages_s):
            name = key.removesuffix(suffix)
            if key.endswith(suffix) and _PART.fullmatch(name):
                version = self._alias_of(name, self._alias)
                if version and self._record(name, version) is not None:
                    age_s = ages_s.get(f"{name}/{version}/{_VERSION}", 0.0)
                    yield self._version(name, version, now_s - age_s)

    def find(self, name: str, version: str | None = None) -> ModelVersion:
        _check(name)
        number = version or self._alias_of(name, self._alias)
        if not number:
            raise RegistryError(
                f"{self.url} has no model {name!r} with the alias {self._alias!r}; add it with "
                f"`FileRegistry.add`, or name the version"
            )
        if self._record(name, _check(number)) is None:
            raise RegistryError(
                f"{self.url} has no whole version {number!r} of {name!r}: there is no "
                f"{name}/{number}/{_VERSION}, which is written last. Add it with `FileRegistry.add`"
            )
        return self._version(name, number)

    def download(self, version: ModelVersion, folder: Path) -> Path:
        files = self._record(version.name, version.version)
        if files is None:
            raise RegistryError(f"{version} is gone, or was never whole; add it again")
        for name, digest in files.items():
            self._fetch(version, name, digest, folder)
        models = _models(files)
        return folder / models[0] if len(models) == 1 else folder

    def samples(self, version: ModelVersion, folder: Path, path: str = "") -> tuple[Path, ...]:
        if path:
            return (named_samples(folder, path, version),)
        return tuple(sorted(folder.glob(f"{SAMPLES}*.npz")))

    def user_tags(self, version: ModelVersion) -> UserTags:
        entry = self._do("read from", self._store.read, _options_key(version))
        return UserTags(_without_token(entry.data) if entry else "")

    def options_place(self, version: ModelVersion) -> str:
        return f"{_options_key(version)} in {self.url}"

    def status(self, version: ModelVersion) -> VersionStatus:
        return from_tags(self._read(_status_key(version))[0])

    def record_status(self, version: ModelVersion, status: VersionStatus) -> None:
        tags = {name: value for name, value in to_tags(status).items() if value}
        self._swap(_status_key(version), tags)

    def accept(self, version: ModelVersion) -> None:
        self.set_alias(version, self._accepted)

    def set_alias(self, version: ModelVersion, alias: str = "") -> None:
        """Point an alias of the model, by default the request alias, to this version."""
        self._swap(_alias_key(version.name, alias or self._alias), {"version": version.version})

    def set_options(self, version: ModelVersion, options: Mapping[str, object]) -> None:
        """Replace the options of the version (`collage.pipeline.version_options`)."""
        self._swap(_options_key(version), options)

    def add(self, name: str, version: str, files: Mapping[str, Path]) -> ModelVersion:
        """Upload a version: `model.onnx`, or several ONNX files, with their external data, by relative name.

        A repeated call with the same content does nothing; an interrupted call can be repeated.

        Raises:
            OptionError: an invalid name.
            RegistryError: the version exists with other content, or the store fails.
        """
        for part in (name, version, *files):
            _check(part)
        if not _has_models(files) or version == _ALIASES or set(files) & set(_OWN):
            raise OptionError(
                f"a version holds {MODEL}, or several .onnx files, is not called {_ALIASES!r}, and has no "
                f"file {' or '.join(_OWN)}"
            )
        digests = {file: str(digest_of(path)) for file, path in sorted(files.items())}
        if self._is_there(name, version, digests):
            return self._version(name, version)
        for file, path in files.items():
            self._do("write to", self._store.create, f"{name}/{version}/{file}", path)
        record = json.dumps({"files": digests, "token": uuid4().hex}).encode()
        key = f"{name}/{version}/{_VERSION}"
        if not self._do("write to", self._store.swap, key, record, None):
            self._is_there(name, version, digests)
        return self._version(name, version)

    def _is_there(self, name: str, version: str, digests: Mapping[str, str]) -> bool:
        stored_digests = self._record(name, version)
        if stored_digests is not None and stored_digests != digests:
            raise RegistryError(
                f"{self.url} has version {version!r} of {name!r} with other content; versions never "
                "change: choose another version"
            )
        return stored_digests is not None

    def _version(self, name: str, version: str, registered_s: float = 0.0) -> ModelVersion:
        source = f"{self.url}/{name}/{version}/{MODEL}"
        return ModelVersion(self.url, name, version, source, registered_s=registered_s)

    def _record(self, name: str, version: str) -> dict[str, str] | None:
        """Return the digests of a version's files by name; None for an incomplete version."""
        key = f"{name}/{version}/{_VERSION}"
        fields, stored_version = self._read(key)
        files = fields.get("files")
        if stored_version is None:
            return None
        if (
            not isinstance(files, dict)
            or not _has_models(files)
            or not all(map(_PART.fullmatch, files))
        ):
            raise RegistryError(
                f"{key} in {self.url} is damaged; delete the version and add it again"
            )
        return files

    def _fetch(self, version: ModelVersion, name: str, digest: str, folder: Path) -> None:
        key = f"{version.name}/{version.version}/{name}"
        if not self._do("read from", self._store.download, key, folder / name):
            raise ModelError(
                f"{version} lacks its file {name}: it was deleted. Add the version again"
            )
        if digest_of(folder / name) != digest:
            (folder / name).unlink()
            raise ModelError(
                f"{version}: its file {name} is not what was added, but changed, mixed or truncated. "
                "Add the model as another version"
            )

    def _alias_of(self, name: str, alias: str) -> str:
        version = self._read(_alias_key(name, alias))[0].get("version", "")
        if not isinstance(version, str) or (version and not _PART.fullmatch(version)):
            raise RegistryError(
                f"{_alias_key(name, alias)} in {self.url} names no version; write "
                '{"version": "1"} there, with quotes around the version'
            )
        return version

    def _read(self, key: str) -> tuple[dict[str, Any], Version | None]:
        entry = self._do("read from", self._store.read, key)
        if entry is None:
            return {}, None
        try:
            return parse_object(entry.data), entry.version
        except RecordError as error:
            raise RegistryError(
                f"{key} in {self.url} is no JSON object: {error}; repair or delete it"
            ) from error

    def _swap(self, key: str, fields: Mapping[str, object]) -> None:
        for _ in range(_ATTEMPTS):
            current_fields, version = self._read(key)
            current_fields.pop("token", None)
            if version is not None and current_fields == fields:
                return
            data = json.dumps({**fields, "token": uuid4().hex}).encode()
            if self._do("write to", self._store.swap, key, data, version):
                return
        raise RegistryError(f"{key} in {self.url} was changed by others in {_ATTEMPTS} attempts")

    def _ages(self) -> dict[str, float]:
        """Return the age of every object by its key, in seconds."""
        return {entry.key: entry.age_s for entry in self._store.entries("")}

    def _do(self, action: str, act: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        try:
            return act(*args, **named)
        except StoreError as error:
            raise RegistryError(f"cannot {action} the registry {self.url}: {error}") from error


def _models(files: Iterable[str]) -> list[str]:
    """Return the names of the ONNX files, sorted."""
    return sorted(name for name in files if name.endswith(".onnx"))


def _has_models(files: Collection[str]) -> bool:
    return MODEL in files or len(_models(files)) > 1


def _check(part: str) -> str:
    if not _PART.fullmatch(part):
        raise OptionError(
            f"{part!r} cannot be a model, a version or a file in this registry: use at most 100 letters, "
            "digits, '-', '_' and '.', not beginning with '.'"
        )
    return part


def _status_key(version: ModelVersion) -> str:
    return f"{_check(version.name)}/{_check(version.version)}/{_STATUS}"


def _options_key(version: ModelVersion) -> str:
    return f"{_check(version.name)}/{_check(version.version)}/{_OPTIONS}"


def _without_token(data: bytes) -> str:
    """Return the options' text; the writer's token, which changes with every write, is no part of it."""
    text = data.decode(errors="replace")
    try:
        fields = parse_object(text)
    except RecordError:  # written by a user, perhaps in YAML
        return text
    fields.pop("token", None)
    return json.dumps(fields) if fields else ""


def _alias_key(name: str, alias: str) -> str:
    return f"{_check(name)}/{_ALIASES}/{_check(alias)}.json"
