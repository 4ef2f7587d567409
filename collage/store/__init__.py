"""Where blobs live: a local folder now; any object store that implements `Store` can follow."""

from pathlib import Path

from collage.store.base import BlobDigest, Store
from collage.store.directory import DirectoryStore

__all__ = ["BlobDigest", "DirectoryStore", "Store", "open_store"]


def open_store(root: Path) -> Store:
    """Open the store in the folder `root`; it is created when first written."""
    return DirectoryStore(root)
