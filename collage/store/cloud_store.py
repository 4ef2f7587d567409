"""The store in Google Cloud Storage or Azure, by their own protocols.

Both have conditional writes: a create fails where an object exists, and an update where it has another
version (Google: its generation; Azure: its ETag). Large content is written in parts without a condition: only
immutable objects are large, and their key is the digest of their content. An answer may be lost after its
write took place, so after a failed condition the pointer is read back and compared.

Parts of abandoned uploads are not listed by this protocol: Azure forgets them after a week, and Google's
bucket wants a lifecycle rule (`AbortIncompleteMultipartUpload`).
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn
from uuid import uuid4

from collage.errors import RetainedError, StoreError
from collage.store.atomic_folder import file_explained
from collage.store.base import Entry, Source, StoredObject, Version
from collage.store.cloud_client import CloudClient, ConditionError
from collage.store.cloud_settings import CloudSettings

REFRESH_AGE_S = 3600.0
"""Age in seconds from which `create` writes an existing object again, to make it young."""

log = logging.getLogger(__name__)


class CloudStore:
    """Implements `Store` in a bucket or container. Threads may share it; a forked process opens its own."""

    def __init__(self, settings: CloudSettings, client: CloudClient | None = None) -> None:
        """Make the client; nothing is sent. Raises StoreError if the settings make none."""
        self.client = client or CloudClient(settings)

    @property
    def url(self) -> str:
        return self.client.url

    def read(self, key: str) -> StoredObject | None:
        content = self.client.get(key)
        return None if content is None else StoredObject(content.read(), content.version)

    def download(self, key: str, file: Path) -> bool:
        content = self.client.get(key)
        if content is None:
            return False
        with file_explained(file):
            stream = file.open("wb")
        with stream:
            for chunk in content.chunks():
                with file_explained(file):
                    stream.write(chunk)
        return True

    def create(self, key: str, source: Source) -> None:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        entry = self.stat(key)
        is_whole = entry is not None and entry.size_bytes == size
        if entry is not None and is_whole and entry.age_s <= REFRESH_AGE_S:
            return
        try:
            self.client.put(key, source, "overwrite")
        except RetainedError:
            if not is_whole:  # else nobody can delete it either
                raise

    def swap(self, key: str, data: bytes, version: Version | None) -> bool:
        try:
            self.client.put(key, data, "create" if version is None else version)
        except ConditionError:
            content = self.read(key)
            return content is not None and content.data == data
        return True

    def copy(self, key: str, target: str) -> bool:
        if self.client.has_copies:
            return self.client.copy(key, target)
        with TemporaryDirectory(prefix="collage-copy-") as folder:
            file = Path(folder) / "content"
            if not self.download(key, file):
                return False
            self.client.put(target, file, "overwrite")
        return True

    def stat(self, key: str) -> Entry | None:
        return self.client.head(key)

    def entries(self, prefix: str) -> Iterator[Entry]:
        folder = prefix.rpartition("/")[0]  # the protocol lists whole folders
        return (entry for entry in self.client.entries(folder) if entry.key.startswith(prefix))

    def delete(self, key: str) -> None:
        self.client.delete(key)

    def link(self, key: str, expires_s: float, media_type: str) -> str:
        return self.client.sign(key, expires_s)

    def remove_partial(self, older_s: float, dry_run: bool) -> list[str]:
        return []


def probe_cloud(store: CloudStore) -> None:
    """Check the conditional writes of the service.

    Raises:
        StoreError: it ignores them (some emulators do), refuses writes, or does not answer.
    """
    key = f"probe/{uuid4().hex}"
    try:
        if not store.swap(key, b"first", None):
            _no_conditions(store, "refuses to create an object")
        if store.swap(key, b"rival", None):
            _no_conditions(store, "lets two writers create one object")
        content = store.read(key)
        if content is None or not store.swap(key, b"second", content.version):
            _no_conditions(store, "refuses the right version of an object")
        if store.swap(key, b"lost update", content.version):
            _no_conditions(store, "ignores the version of an object")
    finally:
        try:
            store.delete(key)
        except StoreError as error:
            log.info("the probe's object stays: %s", error)


def _no_conditions(store: CloudStore, symptom: str) -> NoReturn:
    raise StoreError(
        f"{store.url} has no reliable conditional writes: it {symptom}. Collage needs them so that two "
        "publishers cannot overwrite each other; use the cloud's own service, or a store in a folder"
    )
