"""What a store is: objects under keys, immutable ones that are created and pointers that are swapped.

Everything Collage keeps fits two kinds of object. An immutable one lies under a key that is made from
the digest of its content (a blob, a manifest, a batch of costs): whoever writes it writes the same
bytes, so writers need no agreement, and a reader can prove that it got what was meant. A pointer (an
alias) changes, and only by compare-and-swap: of any number of writers that saw the same version, one
wins and the others are told. Hence this protocol, which a folder and S3 both implement:

    blobs/<2 digits>/<digest>          content                            create
    bundles/<digest>.json              a bundle's manifest, written last  create
    signatures/<bundle>/<file>         of a bundle's manifest             create
    costs/<environment>/<digest>.jsonl a batch of costs                   create
    tuning/<environment>/<digest>.jsonl a batch of tuning records         create
    shards/<environment>/<digest>.jsonl what measuring pods say of it     create
    kernels/<environment>/<digest>.jsonl which blobs are whose kernels    create
    aliases/<name>.json                which bundle a name stands for     swap
    requests/<digest>.json             what a pipeline is asked for       create
    searches/<digest>.json             how a search of such ended         swap
    results/<request>/<node>.json      what a request came to             swap
    answers/<token>.json               of a pod that was asked something  create
    probe/<token>                      of the check at start-up           both
    trash/<key>                        what was removed, for a day        copy

An object is there whole or not at all. The digests are checked one level up (`collage.store.blobs`),
once for both implementations, and so is what the kinds mean; nothing here knows what a bundle is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol

from collage.errors import StoreError

BlobDigest = NewType("BlobDigest", str)
"""SHA-256 of the content, hex."""

Version = NewType("Version", str)
"""What `swap` compares: the state of one object, opaque to callers."""

Source = bytes | Path
"""Content in memory, or a file whose content must not change meanwhile."""

_HASH = "[0-9a-f]{64}"
_NAMED = "[A-Za-z0-9_-][A-Za-z0-9_./-]*"
_LAYOUT = re.compile(
    rf"(trash/)?(blobs/[0-9a-f]{{2}}/{_HASH}|(bundles|requests)/{_HASH}\.json)"
    rf"|signatures/{_HASH}/{_NAMED}|(costs|tuning|shards|kernels)/({_HASH}|any)/{_HASH}\.jsonl"
    rf"|aliases/{_NAMED}\.json|searches/{_HASH}\.json|results/{_HASH}/{_HASH}\.json"
    r"|answers/[0-9a-f]{32}\.json|probe/[0-9a-f]{32}"
)
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
MAX_KEY_LENGTH = 800
"""S3 allows 1024 bytes with the store's prefix."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object without its content; `age_s` is counted by the storage's own clock."""

    key: str
    size_bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """The content of an object and the version that it has."""

    data: bytes
    version: Version


class Store(Protocol):
    """Objects under keys. Every method raises StoreError when the storage does not do it."""

    @property
    def url(self) -> str:
        """Where it is, for messages: no secret, no settings."""
        ...

    def read(self, key: str) -> Found | None:
        """Return the object, or None where there is none."""
        ...

    def download(self, key: str, file: Path) -> bool:
        """Write the object's content to `file`; return False where there is none."""
        ...

    def create(self, key: str, source: Source) -> None:
        """Let the immutable object `key` be `source`; durable when this returns.

        Where it is there already, this makes it young again (`Entry.age_s`), so that a sweep of old
        objects cannot take what somebody has just relied on.
        """
        ...

    def swap(self, key: str, data: bytes, version: Version | None) -> bool:
        """Replace the pointer `key` if it still has `version` (None: if there is none).

        Args:
            data: unlike what any other writer may write (it holds a random token): after a lost
                answer the store reads back whose data won.
        """
        ...

    def copy(self, key: str, other: str) -> bool:
        """Let the immutable object `other` be what `key` is, and young; return False where there is none."""
        ...

    def stat(self, key: str) -> Entry | None:
        """Return the object's size and age, or None where there is none."""
        ...

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Iterate over all objects whose key starts with `prefix`, in no particular order."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object; none is no error."""
        ...

    def remove_partial(self, older_s: float, dry_run: bool) -> list[str]:
        """Remove what killed writers left and no reader sees; return what it is, in words."""
        ...


def is_ours(key: str) -> bool:
    """Tell whether Collage writes objects under such a key: a bucket's root may hold others' as well."""
    return _LAYOUT.fullmatch(key) is not None


def check_key(key: str) -> str:
    """Return `key`. Raises StoreError when it could not be a key in every store."""
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY_LENGTH:
        raise StoreError(
            f"{key!r} cannot be a name in a store: use at most {MAX_KEY_LENGTH} letters, digits, "
            "'-', '_', '.' and '/'; no part may be empty or begin with '.'"
        )
    return key
