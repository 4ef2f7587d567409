"""The store protocol: objects under keys, immutable ones to create and pointers to swap.

There are two kinds of objects. The key of an immutable object contains the digest of its content (a blob, a
manifest, a batch of costs): all its writers write the same bytes, so they need no agreement, and a reader
can verify the content. A pointer (an alias) changes by compare-and-swap alone: of several writers with the
same version one succeeds, and the others learn of it. A folder and S3 implement the protocol:

    blobs/<2 digits>/<digest>          content                            create
    bundles/<digest>.json              a bundle's manifest, written last  create
    signatures/<bundle>/<file>         signed statement of a manifest     create
    costs/<environment>/<digest>.jsonl a batch of costs                   create
    tuning/<environment>/<digest>.jsonl a batch of tuning records         create
    shards/<environment>/<digest>.jsonl a batch of shard reports         create
    kernels/<environment>/<digest>.jsonl a batch of kernel records       create
    aliases/<name>.json                the bundle of a name               swap
    requests/<digest>.json             a compile request                  create
    samples/<digest>.npz               a request's samples                create
    searches/<digest>.json             a search checkpoint                swap
    results/<request>/<node>.json      the result of a request            swap
    answers/<token>.json               the answer of a pod                create
    usage/<day>/<owner>/<work>.json    what pods ran (`store.usage`)      create
    probe/<token>                      test object of the start-up check  both
    trash/<key>                        a removed object, for a day        copy

An object exists whole or not at all. Digests are checked one level up (`collage.store.blobs`), once for
both implementations; this level does not know the meaning of the kinds.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol

from collage.errors import StoreError

log = logging.getLogger(__name__)

BlobDigest = NewType("BlobDigest", str)
"""SHA-256 of the content, hex."""

Version = NewType("Version", str)
"""Version of a pointer for `swap`, opaque to callers."""

Source = bytes | Path
"""Content in memory, or a file that must not change during the write."""

_HASH = "[0-9a-f]{64}"
_NAMED = "[A-Za-z0-9_-][A-Za-z0-9_./-]*"
_LAYOUT = re.compile(
    rf"(trash/)?(blobs/[0-9a-f]{{2}}/{_HASH}|(bundles|requests)/{_HASH}\.json"
    rf"|samples/{_HASH}\.npz)"
    rf"|signatures/{_HASH}/{_NAMED}|(costs|tuning|shards|kernels)/({_HASH}|any)/{_HASH}\.jsonl"
    rf"|aliases/{_NAMED}\.json|searches/{_HASH}\.json|results/{_HASH}/{_HASH}\.json"
    rf"|answers/[0-9a-f]{{32}}\.json|probe/[0-9a-f]{{32}}|usage/\d{{4}}-\d\d-\d\d/{_NAMED}\.json"
)
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
MAX_KEY_LENGTH = 800
"""S3 allows 1024 bytes with the store's prefix."""
_foreign: dict[tuple[str, str], int] = {}
"""Numbers of ignored objects in the last warnings, by store and prefix."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object without its content; `age_s` is its age by the storage's own clock, in seconds."""

    key: str
    size_bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content of an object and its version."""

    data: bytes
    version: Version


class Store(Protocol):
    """Objects under keys. Every method raises StoreError if the storage fails."""

    @property
    def url(self) -> str:
        """Address for messages, without secrets and settings."""
        ...

    def read(self, key: str) -> StoredObject | None:
        """Return the object, or None if it is absent."""
        ...

    def download(self, key: str, file: Path) -> bool:
        """Write the object's content to `file`; return False if it is absent."""
        ...

    def create(self, key: str, source: Source) -> None:
        """Write the immutable object `key`, durably at the return.

        An existing object becomes young again (`Entry.age_s`), so that the garbage collector does not
        remove an object with a new reference.
        """
        ...

    def swap(self, key: str, data: bytes, version: Version | None) -> bool:
        """Replace the pointer `key` if it still has `version` (None: if it is absent).

        Args:
            data: content with a random token, unique to this writer: after a lost answer the store reads
                the pointer back and compares.
        """
        ...

    def copy(self, key: str, target: str) -> bool:
        """Copy the immutable object `key` to `target`, as a young object; return False if it is absent."""
        ...

    def stat(self, key: str) -> Entry | None:
        """Return the object's size and age, or None if it is absent."""
        ...

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Iterate over all objects with this prefix of the key, in no particular order."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object, if it exists."""
        ...

    def link(self, key: str, expires_s: float, media_type: str) -> str:
        """Return an address with which a browser opens the object, without credentials of its own.

        Args:
            key: key of an object; its existence is not checked.
            expires_s: life of the address, in seconds; credentials of a role may end it earlier.
            media_type: content type that the browser is told, where the protocol can say it.
        """
        ...

    def remove_partial(self, older_s: float, dry_run: bool) -> list[str]:
        """Remove partial writes of killed writers, invisible to readers; return their descriptions."""
        ...


def is_ours(key: str) -> bool:
    """Tell whether the key is one of Collage's: a bucket's root may hold objects of other programs."""
    return _LAYOUT.fullmatch(key) is not None and _KEY.fullmatch(key) is not None


def own_entries(store: Store, prefix: str) -> Iterator[Entry]:
    """Iterate over Collage's objects with this prefix; others are ignored and logged.

    Consoles leave folder markers, file managers `.DS_Store`, people notes: none may stop a search. The
    warning comes again only after a change of their number, since searches list every few seconds.
    """
    foreign: list[str] = []
    for entry in store.entries(prefix):
        if is_ours(entry.key):
            yield entry
        else:
            foreign.append(entry.key)
    if foreign and _foreign.get((store.url, prefix)) != len(foreign):
        _foreign[store.url, prefix] = len(foreign)
        log.warning(
            "%s: %d objects below %s are not of Collage and are ignored, e.g. %r",
            store.url, len(foreign), prefix, min(foreign),
        )  # fmt: skip


def check_key(key: str) -> str:
    """Return `key`. Raises StoreError unless it is valid in every store."""
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY_LENGTH:
        raise StoreError(
            f"{key!r} cannot be a name in a store: use at most {MAX_KEY_LENGTH} letters, digits, "
            "'-', '_', '.' and '/'; no part may be empty or begin with '.'"
        )
    return key
