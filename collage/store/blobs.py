"""Blobs: content under its digest, with a check of every read.

All content from a store is hashed and compared with the digest in its key or in the record of its name. A
mismatch is read again before it is an error, because a bad network is more frequent than a bad disk.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from collage.errors import DamagedError, StoreError
from collage.runtime.json_fields import is_digest
from collage.store.atomic_folder import file_explained
from collage.store.base import BlobDigest, Source, Store
from collage.store.records import RecordError, parse_object

READS = 3
"""Number of reads with a wrong digest before an error."""


def digest_of(source: Source) -> BlobDigest:
    """Return the SHA-256 of the content, in hex."""
    if isinstance(source, bytes):
        return BlobDigest(hashlib.sha256(source).hexdigest())
    with source.open("rb") as stream:
        return BlobDigest(hashlib.file_digest(stream, "sha256").hexdigest())


def blob_key(digest: BlobDigest) -> str:
    """Return the key of a blob. Raises StoreError for an invalid digest."""
    if not is_digest(digest):
        raise StoreError(f"{digest!r} is no blob's digest")
    return f"blobs/{digest[:2]}/{digest}"


def put_blob(store: Store, source: Source) -> BlobDigest:
    """Store the content and return its digest; existing content is not sent again.

    Raises:
        StoreError: the file is unreadable or changed meanwhile (nothing wrong stays), or the store fails.
    """
    if isinstance(source, Path):
        return _put_file(store, source)
    digest = digest_of(source)
    store.create(blob_key(digest), source)
    return digest


def keep_blobs(store: Store, files: Mapping[BlobDigest, Path]) -> None:
    """Store absent blobs again, after the write of the record with their names.

    So a sweep (`collage.store.gc`) that began before the record removes none of its blobs.
    """
    for digest, file in files.items():
        if store.stat(blob_key(digest)) is None:
            put_blob(store, file)


def trash_key(key: str) -> str:
    """Return the key in the trash of a blob or manifest; readers look there too."""
    return f"trash/{key}"


def get_blob(store: Store, digest: BlobDigest) -> bytes:
    """Return the blob. Raises StoreError if it is absent or damaged."""
    key = blob_key(digest)
    for place in (key, trash_key(key)):
        if (content := read_checked(store, place, digest)) is not None:
            return content
    return _absent(store, key)


def fetch_blob(store: Store, digest: BlobDigest, file: Path) -> None:
    """Write the blob to `file`. Raises StoreError, without a file, if it is absent or damaged."""
    key = blob_key(digest)
    try:
        for _ in range(READS):
            if not (store.download(key, file) or store.download(trash_key(key), file)):
                _absent(store, key)
            with file_explained(file):
                actual = digest_of(file)
            if actual == digest:
                return
        raise _wrong(store, key, digest, actual)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def read_checked(store: Store, key: str, digest: str) -> bytes | None:
    """Return the object `key`, or None if it is absent. Raises DamagedError for another digest."""
    for _ in range(READS):
        content = store.read(key)
        if content is None:
            return None
        actual = digest_of(content.data)
        if actual == digest:
            return content.data
    raise _wrong(store, key, digest, actual)


def seal(fields: dict[str, str | None]) -> bytes:
    """Return a small record with its own digest: `<sha256> <JSON>`."""
    text = json.dumps(fields, sort_keys=True).encode()
    return f"{digest_of(text)} ".encode() + text + b"\n"


def unseal(data: bytes) -> dict[str, str | None] | None:
    """Return the fields of a sealed record, or None if it is changed or damaged."""
    digest, _, text = data.removesuffix(b"\n").partition(b" ")
    if digest_of(text).encode() != digest:
        return None
    try:
        fields = parse_object(text)
    except RecordError:  # damaged
        return None
    fits = all(value is None or isinstance(value, str) for value in fields.values())
    return fields if fits else None


def _put_file(store: Store, file: Path) -> BlobDigest:
    try:
        before = _state(file)
        digest = digest_of(file)
        store.create(blob_key(digest), file)
        changed = _state(file) != before
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror or error}") from error
    if changed:
        store.delete(blob_key(digest))
        raise StoreError(f"{file} changed while it was being stored; do it again")
    return digest


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _absent(store: Store, key: str) -> bytes:
    raise StoreError(f"the store {store.url} has no {key}; run the stage that makes it again")


def _wrong(store: Store, key: str, expected: str, actual: str) -> DamagedError:
    return DamagedError(
        f"{key} in the store {store.url} was changed or damaged: its content has SHA-256 "
        f"{actual[:12]}..., not {expected[:12]}... in {READS} reads. Nothing of it was used. Delete it "
        "there and publish (or measure) again"
    )
