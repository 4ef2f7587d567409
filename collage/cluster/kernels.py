"""Kernels on their way from the pods that build to those that measure: blobs, and which is whose.

    kernels/<environment's digest>/<batch's digest>.jsonl    lines {"kernel": cost key, "blob": digest}

A blob that is old may be swept at any moment (`collage gc`, which takes the lines too), so it counts as
absent: its kernel is built again, which makes it young. Lines are sent like costs: in batches.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from collage.cost import CostKey, Environment
from collage.cost.batches import Batches
from collage.cost.lines import decode_entries, encode_entry
from collage.store.base import BlobDigest, Store
from collage.store.blobs import blob_key, put_blob
from collage.store.gc import OLDER_S

AT_ONCE = 16
YOUNG_S = OLDER_S / 2


class KernelIndex:
    """The kernels of one environment."""

    def __init__(self, store: Store, environment: Environment) -> None:
        """Open the index; nothing is read or written before the first use."""
        self._store = store
        self._batches = Batches(store, f"kernels/{environment.digest}/", b"", monotonic)
        self._known: dict[CostKey, BlobDigest] = {}

    def put(self, key: CostKey, file: Path) -> None:
        """Store a kernel's file; others find it after the next `flush`. Raises StoreError."""
        digest = put_blob(self._store, file)
        self._batches.add(encode_entry({"kernel": key, "blob": digest}))

    def flush(self) -> None:
        """Let others find what was put. Raises StoreError."""
        self._batches.flush()

    def find(self, keys: Iterable[CostKey]) -> dict[CostKey, BlobDigest]:
        """Return the blobs of those kernels that are in the store, and stay there. Raises StoreError."""
        for data in self._batches.read_new(at_once=True):
            for entry in decode_entries(data):
                if entry is not None:
                    self._known[CostKey(entry["kernel"])] = BlobDigest(entry["blob"])
        known = sorted(key for key in keys if key in self._known)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            stays = pool.map(lambda key: self._stays(self._known[key]), known)
            return {key: self._known[key] for key, young in zip(known, stays, strict=True) if young}

    def _stays(self, digest: BlobDigest) -> bool:
        found = self._store.stat(blob_key(digest))
        return found is not None and found.age_s < YOUNG_S
