"""Kernels on their way from the pods that build to those that measure: blobs, and which is whose.

    kernels/<environment's digest>/<batch's digest>.jsonl    lines {"kernel": cost key, "blob": digest}
                                                             or {"over": shard of a Job that builds}

These lines lead to code, so each is signed (`collage.store.record_keys`): a line that is not is a miss.

Whoever measures may begin before all is built: it takes kernels as they come, and a shard that is over
brings no more. The pod that builds says so when it ends; where one came to no end, the controller does
when the Job has ended. A Job that is made again builds under another name (`token`).

A blob that is old may be swept at any moment (`collage gc`, which takes the lines too), so it counts as
absent: its kernel is built again, which makes it young. Lines are sent like costs: in batches.
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

AT_ONCE = 16
YOUNG_S = OLDER_S / 2


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A line that says which blob is a candidate's kernel."""

    key: CostKey
    blob: BlobDigest


def _kernel(fields: Fields) -> KernelLine:
    return KernelLine(
        CostKey(fields.text("kernel", most=MAX_KEY)), BlobDigest(fields.digest("blob"))
    )


def _shard(fields: Fields) -> str:
    return fields.text("over", most=MAX_KEY)


_KINDS: Mapping[str, Parse[KernelLine | str]] = {"kernel": _kernel, "over": _shard}


def shard_name(token: str, index: int) -> str:
    """Name one shard of one Job that builds."""
    return f"{token}/{index}"


class KernelIndex:
    """The kernels of one environment."""

    def __init__(self, store: Store, environment: Environment, keys: RecordKeys) -> None:
        """Open the index; nothing is read or written before the first use.

        Args:
            keys: of those whose kernels are opened here; what others wrote is a miss.
        """
        self._store, self._keys = store, keys
        self._place = f"kernels/{environment.digest}/"
        self._batches = Batches(store, self._place, b"", monotonic)
        self._known: dict[CostKey, BlobDigest] = {}
        self._over: set[str] = set()
        self._corrupt = self.unsigned = 0

    @property
    def corrupt(self) -> int:
        """Lines, and batches of them, that did not check."""
        return self._corrupt + self._batches.corrupt

    def put(self, key: CostKey, file: Path) -> None:
        """Store a kernel's file; others find it after the next `flush`. Raises StoreError."""
        digest = put_blob(self._store, file)
        self._add({"kernel": key, "blob": digest})

    def flush(self) -> None:
        """Let others find what was put. Raises StoreError."""
        self._batches.flush()

    def end(self, shards: Iterable[str]) -> None:
        """Say that these shards (`shard_name`) are over, with all that was put before. Raises StoreError."""
        for shard in shards:
            self._add({"over": shard})
        self.flush()

    def _add(self, entry: dict[str, str]) -> None:
        self._batches.add(encode_entry(self._keys.signed(entry, self._place)))

    def _is_signed(self, entry: Mapping[str, object]) -> bool:
        return self._keys.accepts(entry, self._place)

    def look(self) -> None:
        """See what others have put since the last look. Raises StoreError."""
        for data in self._batches.read_new(at_once=True):
            entries, where = decode_entries(data), f"{self._store.url}, kernels"
            checked = check_records(entries, _KINDS, where, self._is_signed)
            self._corrupt += checked.damaged
            self.unsigned += checked.unsigned
            for line in checked.values:
                if isinstance(line, str):
                    self._over.add(line)
                else:
                    self._known[line.key] = line.blob

    def count(self, keys: Collection[CostKey]) -> int:
        """Count the kernels that were there at the last look; a blob may be old."""
        return len(self._known.keys() & set(keys))

    def is_over(self, shard: str) -> bool:
        """Tell whether the shard was over at the last look."""
        return shard in self._over

    def find(self, keys: Iterable[CostKey]) -> dict[CostKey, BlobDigest]:
        """Return the blobs of those kernels that are in the store, and stay there. Raises StoreError."""
        self.look()
        known = sorted(key for key in keys if key in self._known)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            stays = pool.map(lambda key: self._stays(self._known[key]), known)
            return {key: self._known[key] for key, young in zip(known, stays, strict=True) if young}

    def _stays(self, digest: BlobDigest) -> bool:
        found = self._store.stat(blob_key(digest))
        return found is not None and found.age_s < YOUNG_S
