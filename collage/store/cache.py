"""Files of fetched bundles on this machine, so that the next fetch transfers only what is new.

The cache is a store in a folder: content under its digest, checked on every read, and wrong content is
fetched again rather than used. It holds nothing that is not elsewhere, so a cache that cannot be
written costs speed and no fetch, and its folder may be deleted at any time. What no fetch has used for a
month goes, and the least recently used files where it is large (`collage.store.cache_pruning`).
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from collage.errors import StoreError
from collage.store.base import BlobDigest, Store
from collage.store.blobs import blob_key, fetch_blob, put_blob, read_checked
from collage.store.cache_pruning import prune_fetched
from collage.store.directory import DirectoryStore


class BundleCache:
    """Files and manifests of bundles in the folder `root`, which processes may share."""

    def __init__(self, root: Path) -> None:
        self._store = DirectoryStore(root)
        prune_fetched(root)

    def manifest(self, digest: BlobDigest) -> bytes | None:
        """Return the manifest with this digest, or None where it is not here."""
        try:
            found = read_checked(self._store, blob_key(digest), digest)
        except StoreError:
            return None
        self._use(digest)
        return found

    def keep_manifest(self, data: bytes) -> None:
        """Keep a manifest."""
        self._keep(data)

    def through(self, store: Store) -> Callable[[BlobDigest, Path], None]:
        """Return a `fetch_blob` that looks here first and keeps what it fetched from `store`."""

        def fetch(digest: BlobDigest, file: Path) -> None:
            try:
                if self._store.stat(blob_key(digest)):
                    fetch_blob(self._store, digest, file)
                    self._use(digest)
                    return
            except StoreError:
                pass  # damaged or unreadable here: the store has it
            fetch_blob(store, digest, file)
            self._keep(file)

        return fetch

    def _use(self, digest: BlobDigest) -> None:
        with suppress(OSError):
            os.utime(self._store.root / blob_key(digest))

    def _keep(self, source: bytes | Path) -> None:
        with suppress(StoreError):  # a full or read-only disk under the cache
            put_blob(self._store, source)
