"""Local cache of fetched bundles: the next fetch transfers only new files.

The cache is a store in a folder: content under its digest, checked on every read; wrong content is fetched
again. All content exists in a store too, so a read-only cache only costs time, and its folder may be deleted
at any moment. Files unused for a month are removed, and the least recently used ones above the size limit
(`collage.store.cache_pruning`).
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from collage.errors import StoreError
from collage.store.base import BlobDigest, Store
from collage.store.blobs import blob_key, fetch_blob, put_blob, read_checked
from collage.store.cache_pruning import prune_fetched
from collage.store.directory import DirectoryStore

log = logging.getLogger(__name__)


class BundleCache:
    """Files and manifests of bundles in the folder `root`; processes may share it."""

    def __init__(self, root: Path) -> None:
        self._store = DirectoryStore(root)
        prune_fetched(root)

    def manifest(self, digest: BlobDigest) -> bytes | None:
        """Return the manifest with this digest, or None if it is not cached."""
        try:
            content = read_checked(self._store, blob_key(digest), digest)
        except StoreError as error:  # a damaged or unreadable copy: the store has the manifest
            log.debug("the cache's manifest %s is not used: %s", digest, error)
            return None
        self._use(digest)
        return content

    def keep_manifest(self, data: bytes) -> None:
        """Add a manifest to the cache."""
        self._keep(data)

    def through(self, store: Store) -> Callable[[BlobDigest, Path], None]:
        """Return a `fetch_blob` that reads from the cache first and adds files fetched from `store`."""

        def fetch(digest: BlobDigest, file: Path) -> None:
            try:
                if self._store.stat(blob_key(digest)):
                    fetch_blob(self._store, digest, file)
                    self._use(digest)
                    return
            except StoreError as error:  # a damaged or unreadable copy: the store has the file
                log.debug("the cache's file %s is not used: %s", digest, error)
            fetch_blob(store, digest, file)
            self._keep(file)

        return fetch

    def _use(self, digest: BlobDigest) -> None:
        with suppress(OSError):  # read-only, or pruned meanwhile
            os.utime(self._store.root / blob_key(digest))

    def _keep(self, source: bytes | Path) -> None:
        try:
            put_blob(self._store, source)
        except StoreError as error:  # the cache's disk is full or read-only
            log.debug("the cache does not keep a file: %s", error)
