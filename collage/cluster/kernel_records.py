"""Kernels between building and measuring pods: blobs, and records of the candidate of each blob.

    kernels/<environment's digest>/<batch's digest>.jsonl    lines {"kernel": cost key, "blob": digest}
                                                             or {"over": shard of a build Job}

The records lead to executable code, so each is signed (`collage.store.record_keys`); an unsigned one is a
miss.

A measuring pod may start before the last build: it takes kernels as they appear, and a closed shard ("over")
adds none. The building pod closes its shard at its end; if it is killed, the controller closes the shard
after the end of the Job. A Job that is created again builds under another `token`.

`collage gc` may remove an old blob, with its records, at any moment. So an old blob counts as absent: its
kernel is built again, and the blob is young again. Records are written in batches, like costs.
"""

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from collage.cost import CostKey, Environment
from collage.cost.batches import Batches
from collage.cost.cost_records import MAX_KEY
from collage.cost.lines import decode_entries, encode_entry
from collage.store.base import BlobDigest, Store
from collage.store.blobs import blob_key, put_blob
from collage.store.gc import OLDER_S
from collage.store.record_keys import RecordKeys
from collage.store.records import Fields, Parse, check_records

STATS_AT_ONCE = 16
MAX_BLOB_AGE_S = OLDER_S / 2


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """The record of a candidate's kernel: cost key and blob."""

    key: CostKey
    blob: BlobDigest


def _kernel(fields: Fields) -> KernelEntry:
    return KernelEntry(
        CostKey(fields.text("kernel", maximum=MAX_KEY)), BlobDigest(fields.digest("blob"))
    )


def _shard(fields: Fields) -> str:
    return fields.text("over", maximum=MAX_KEY)


_KINDS: Mapping[str, Parse[KernelEntry | str]] = {"kernel": _kernel, "over": _shard}


def shard_name(token: str, index: int) -> str:
    """Name one shard of one build Job."""
    return f"{token}/{index}"


class KernelIndex:
    """The index of the kernels of one environment."""

    def __init__(self, store: Store, environment: Environment, keys: RecordKeys) -> None:
        """Open the index; the first use reads or writes.

        Args:
            keys: keys for signing and checking records; a record without a valid signature is a miss.
        """
        self._store, self._keys = store, keys
        self._place = f"kernels/{environment.digest}/"
        self._batches = Batches(store, self._place, b"", monotonic)
        self._known: dict[CostKey, BlobDigest] = {}
        self._over: set[str] = set()
        self._corrupt = self.unsigned = 0

    @property
    def corrupt(self) -> int:
        """Number of damaged records and damaged batches of records."""
        return self._corrupt + self._batches.corrupt

    def put(self, key: CostKey, file: Path) -> None:
        """Store a kernel's file; `flush` makes it visible to other processes. Raises StoreError."""
        digest = put_blob(self._store, file)
        self._add({"kernel": key, "blob": digest})

    def flush(self) -> None:
        """Make all stored kernels visible to other processes. Raises StoreError."""
        self._batches.flush()

    def end(self, shards: Iterable[str]) -> None:
        """Close these shards (`shard_name`), after a flush of their kernels. Raises StoreError."""
        for shard in shards:
            self._add({"over": shard})
        self.flush()

    def _add(self, entry: dict[str, str]) -> None:
        self._batches.add(encode_entry(self._keys.signed(entry, self._place)))

    def _is_signed(self, entry: Mapping[str, object]) -> bool:
        return self._keys.accepts(entry, self._place)

    def look(self) -> None:
        """Read the new records of other processes. Raises StoreError."""
        for data in self._batches.read_new(at_once=True):
            entries, source = decode_entries(data), f"{self._store.url}, kernels"
            checked = check_records(entries, _KINDS, source, self._is_signed)
            self._corrupt += checked.damaged
            self.unsigned += checked.unsigned
            for line in checked.values:
                if isinstance(line, str):
                    self._over.add(line)
                else:
                    self._known[line.key] = line.blob

    def count(self, keys: Collection[CostKey]) -> int:
        """Count the kernels of the last look; their blobs may be old."""
        return len(self._known.keys() & set(keys))

    def is_over(self, shard: str) -> bool:
        """Tell whether the shard was closed at the last look."""
        return shard in self._over

    def find(self, keys: Iterable[CostKey]) -> dict[CostKey, BlobDigest]:
        """Return the blobs of the kernels that are in the store and young. Raises StoreError."""
        self.look()
        indexed = sorted(key for key in keys if key in self._known)
        with ThreadPoolExecutor(STATS_AT_ONCE) as pool:
            young = pool.map(lambda key: self._is_young(self._known[key]), indexed)
            return {
                key: self._known[key] for key, usable in zip(indexed, young, strict=True) if usable
            }

    def _is_young(self, digest: BlobDigest) -> bool:
        blob = self._store.stat(blob_key(digest))
        return blob is not None and blob.age_s < MAX_BLOB_AGE_S
