"""The store of blobs, costs and bundles: a local folder, S3, or another cloud."""

from collage.store.base import BlobDigest, Entry, Source, Store, StoredObject, Version
from collage.store.open import open_store

__all__ = ["BlobDigest", "Entry", "StoredObject", "Source", "Store", "Version", "open_store"]
