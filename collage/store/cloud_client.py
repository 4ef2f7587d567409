"""The client of a store in Google Cloud Storage or Azure. Only here is obstore known.

The text of an error is the service's and the library's, and may hold addresses with signatures: messages have
the HTTP status and the service's error code alone.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore

from collage.errors import RetainedError, StoreError
from collage.store.base import Entry, Source, Version, check_key
from collage.store.cloud_settings import CloudSettings

T = TypeVar("T")

_CONNECT_S = 10.0
_STATUS = re.compile(r"status(?: code)?:? \(?([1-5]\d\d)\b", re.IGNORECASE)
_CODE = re.compile(r"<Code>([A-Za-z]{3,60})</Code>")
_RETENTION = re.compile(r"immutab|retention|legal.?hold|object.?lock", re.IGNORECASE)
_CREDENTIALS = {
    "gs": (
        "The credentials are missing or wrong: set GOOGLE_APPLICATION_CREDENTIALS to a key file, or give the "
        "machine's identity (a service account) the right"
    ),
    "az": (
        "The credentials are missing or wrong: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY, or "
        "give the machine's identity the right"
    ),
}
_RIGHTS = {
    "gs": "These credentials may not do it: grant roles/storage.objectUser on the bucket",
    "az": "These credentials may not do it: grant Storage Blob Data Contributor on the container",
}
_RETAINED = (
    "A retention rule (bucket lock, legal hold, immutability policy) keeps the object: let the rule leave "
    "out the prefix"
)
_ABSENT = "The bucket or container does not exist: create it, or correct the address"
_UNREACHABLE = (
    "The service does not answer, or refuses the request: check the address, the credentials and the "
    "network; run it again later (what is stored is whole)"
)


class ConditionError(Exception):
    """The object exists, or has another version than the write asks for."""


@dataclass(frozen=True)
class CloudObject:
    """An object's answer: `read` returns its content, `chunks` iterates over it."""

    version: Version
    read: Callable[[], bytes]
    chunks: Callable[[], Iterator[bytes]]


class CloudClient:
    """Requests of one store. Threads may share it; a forked process opens its own."""

    def __init__(self, settings: CloudSettings, bucket: Any = None) -> None:
        """Make the client; nothing is sent.

        Args:
            settings: place and limits.
            bucket: store of obstore in place of the settings' own; None opens that.

        Raises:
            StoreError: the settings make no client.
        """
        self.settings = settings
        self.prefix = f"{settings.prefix}/" if settings.prefix else ""
        try:
            self._bucket = _open(settings) if bucket is None else bucket
        except (BaseError, OSError, ValueError) as error:
            self._fail("open", "", error)

    @property
    def url(self) -> str:
        return f"{self.settings.scheme}://{self.settings.bucket}/{self.prefix}".rstrip("/")

    def get(self, key: str) -> CloudObject | None:
        """Return an object, or None if it is absent. Raises StoreError."""
        path = self._path(key)
        try:
            answer = self._call("read", key, lambda: obstore.get(self._bucket, path))
        except FileNotFoundError:
            return None
        return CloudObject(
            _version(answer.meta),
            lambda: self._call("read", key, lambda: bytes(answer.bytes())),
            lambda: self._chunks(key, answer),
        )

    def head(self, key: str) -> Entry | None:
        """Return size and age of an object, or None if it is absent. Raises StoreError."""
        path = self._path(key)
        try:
            meta = self._call("look at", key, lambda: obstore.head(self._bucket, path))
        except FileNotFoundError:
            return None
        return Entry(key, meta["size"], _age_s(meta))

    def put(self, key: str, source: Source, mode: str | Version) -> None:
        """Write an object: large content in parts, if the mode is `overwrite`.

        Args:
            key: key of the store.
            source: content.
            mode: `create`, `overwrite`, or the version to replace.

        Raises:
            ConditionError: the object exists, or has another version.
            StoreError: the service does not answer, or refuses.
        """
        path, part_bytes = self._path(key), self.settings.part_bytes
        put_mode = mode if mode in ("create", "overwrite") else _update(Version(mode))

        def write() -> None:
            obstore.put(self._bucket, path, source, mode=put_mode, chunk_size=part_bytes)

        try:
            self._call("write", key, write)
        except FileNotFoundError as error:
            if mode not in ("create", "overwrite"):
                raise ConditionError from error
            self._fail("write", key, error)

    def entries(self, folder: str) -> Iterator[Entry]:
        """Iterate over the objects below a folder of keys ("" is the whole store). Raises StoreError."""
        pages = self._call(
            "list", folder, lambda: iter(obstore.list(self._bucket, self.prefix + folder or None))
        )
        while (page := self._call("list", folder, lambda: next(pages, None))) is not None:
            for meta in page:
                yield Entry(meta["path"].removeprefix(self.prefix), meta["size"], _age_s(meta))

    def delete(self, key: str) -> None:
        """Delete an object, if it exists. Raises StoreError."""
        path = self._path(key)
        with suppress(FileNotFoundError):
            self._call("delete", key, lambda: obstore.delete(self._bucket, path))

    @property
    def has_copies(self) -> bool:
        """Whether a copy is complete when it is answered; Azure copies in the background."""
        return not isinstance(self._bucket, AzureStore)

    def copy(self, key: str, target: str) -> bool:
        """Copy an object in the service; return False if it is absent. Raises StoreError."""
        source_path, path = self._path(key), self._path(target)
        try:
            self._call("copy", key, lambda: obstore.copy(self._bucket, source_path, path))
        except FileNotFoundError:
            return False
        return True

    def sign(self, key: str, expires_s: float) -> str:
        """Return a signed address for reading an object. Raises StoreError."""
        path, expires = self._path(key), timedelta(seconds=expires_s)
        signed: str = self._call(
            "sign", key, lambda: obstore.sign(self._bucket, "GET", path, expires)
        )
        return signed

    def _path(self, key: str) -> str:
        return self.prefix + check_key(key)

    def _chunks(self, key: str, answer: Any) -> Iterator[bytes]:
        stream = self._call("read", key, lambda: iter(answer.stream(1 << 20)))
        while (chunk := self._call("read", key, lambda: next(stream, None))) is not None:
            yield bytes(chunk)

    def _call(self, action: str, key: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except FileNotFoundError:
            raise
        except (AlreadyExistsError, PreconditionError) as error:
            if _RETENTION.search(str(error)):
                self._fail(action, key, error)
            raise ConditionError from error
        except (BaseError, OSError, ValueError) as error:
            self._fail(action, key, error)

    def _fail(self, action: str, key: str, error: Exception) -> NoReturn:
        text = str(error)
        facts = [*_STATUS.findall(text)[:1], *_CODE.findall(text)[:1]] or [type(error).__name__]
        through = f" at {self.settings.endpoint}" if self.settings.endpoint else ""
        is_retained = _RETENTION.search(text) is not None
        kind = RetainedError if is_retained else StoreError
        raise kind(
            f"cannot {action} {self.url}/{key}{through}: {' '.join(facts)}. "
            f"{_RETAINED if is_retained else self._advice(error)}"
        ) from None

    def _advice(self, error: Exception) -> str:
        if isinstance(error, UnauthenticatedError) or "token request" in str(error):
            return _CREDENTIALS[self.settings.scheme]
        if isinstance(error, PermissionDeniedError):
            return _RIGHTS[self.settings.scheme]
        return _ABSENT if isinstance(error, FileNotFoundError) else _UNREACHABLE


def _open(settings: CloudSettings) -> Any:
    client = {
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, settings.timeout_s)),
        "read_timeout": timedelta(seconds=settings.timeout_s),
        "timeout": timedelta(days=1),  # of a whole body; `read_timeout` ends one that stands still
        "allow_http": settings.endpoint.startswith("http://"),
    }
    retries = {
        "max_retries": settings.attempts - 1,
        "retry_timeout": timedelta(seconds=settings.deadline_s),
    }
    options = {"client_options": client, "retry_config": retries}
    if settings.scheme == "gs":
        place = {"base_url": settings.endpoint} if settings.endpoint else {}
        return GCSStore(settings.bucket, **options, **place)
    place = {"account_name": settings.account} if settings.account else {}
    if settings.endpoint:
        place["endpoint"] = settings.endpoint
    return AzureStore(settings.bucket, **options, **place)


def _version(meta: Any) -> Version:
    """Return the version of an object for `swap`: its ETag and, in Google's storage, its generation."""
    return Version(json.dumps([meta.get("e_tag"), meta.get("version")]))


def _update(version: Version) -> dict[str, str]:
    e_tag, generation = json.loads(version)
    parts = {"e_tag": e_tag, "version": generation}
    return {name: value for name, value in parts.items() if value is not None}


def _age_s(meta: Any) -> float:
    """Return the seconds since the last write by this machine's clock: answers have no other."""
    modified: datetime = meta["last_modified"]
    return max(0.0, (datetime.now(UTC) - modified).total_seconds())
