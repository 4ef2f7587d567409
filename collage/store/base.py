"""What a store is: immutable blobs under the digest of their content, and names that point to them.

A blob that is there is whole and right: it appears in one step, and its digest is checked whenever
it is read. A name may be rebound; a reader sees the old or the new blob, never a mixture. Nothing
else is needed to resume a run, to share results, and to publish "blobs first, manifest last".
"""

from typing import NewType, Protocol

BlobDigest = NewType("BlobDigest", str)
"""SHA-256 of the content, hex."""


class Store(Protocol):
    """Blobs and names. Every method raises StoreError when the storage does not answer."""

    def put(self, data: bytes) -> BlobDigest:
        """Store `data`, durable when this returns; a blob that is already there is not rewritten."""
        ...

    def get(self, digest: BlobDigest) -> bytes:
        """Return the blob. Raises StoreError when it is absent or is not what was stored."""
        ...

    def has(self, digest: BlobDigest) -> bool:
        """Tell whether the blob is there (its content is checked by `get`)."""
        ...

    def bind(self, name: str, digest: BlobDigest) -> None:
        """Let `name` (words, digits, `-_./`) stand for the blob from now on."""
        ...

    def resolve(self, name: str) -> BlobDigest | None:
        """Return what `name` stands for, or None."""
        ...
