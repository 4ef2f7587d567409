"""Where blobs, costs and bundles live: a local folder, or S3."""

from collage.store.base import BlobDigest, Entry, Found, Source, Store, Version
from collage.store.open import open_store

__all__ = ["BlobDigest", "Entry", "Found", "Source", "Store", "Version", "open_store"]
