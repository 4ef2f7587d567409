"""Batches: lines of many machines in one store as immutable objects; readers merge them.

Object stores have no append, so every writer stores its lines of the last seconds as one immutable object
under a prefix, named by its digest. No writer waits for another, and a batch sent twice exists once. A reader
lists the prefix and reads the new batches.

    costs/<environment's digest>/<batch's digest>.jsonl     lines as in `collage.cost.cost_records`
    tuning/<environment's digest>/<batch's digest>.jsonl    lines as in `collage.tuning.records`
    shards/<environment's digest>/<batch's digest>.jsonl    lines as in `collage.cluster.shard_reports`
    kernels/<environment's digest>/<batch's digest>.jsonl   lines as in `collage.cluster.kernel_records`

A damaged batch is a miss and is counted in `corrupt`. `compact` merges many small batches into one, without
coordination with readers.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import Lock

from collage.cost.lines import DAY_S, day_of
from collage.errors import DamagedError, RetainedError
from collage.store.base import Store, own_entries
from collage.store.blobs import read_checked
from collage.store.records import report_damage

log = logging.getLogger(__name__)

SEND_EVERY_S = 5.0
"""Longest time of a line before its batch is sent, in seconds, checked at the next line."""
SEND_AT = 256
"""Largest number of lines in a batch."""

READ_EVERY_S = 20.0
"""Time between two listings for missing keys, in seconds."""

KEEP_S = 180 * DAY_S
"""Same as `collage.store.gc.Retention.costs`."""

LISTINGS = 3
"""Largest number of listings in one read, for batches merged between listing and reading."""
READERS = 16
FOLDERS = ("costs/", "shards/", "tuning/")
_SUFFIX = ".jsonl"


class Batches:
    """The batches under one prefix: received from other machines, and sent by this process."""

    def __init__(self, store: Store, prefix: str, head: bytes, clock: Callable[[], float]) -> None:
        """Open the prefix; nothing is read or written before the first use.

        Args:
            store: the store shared by all machines.
            prefix: one of `FOLDERS` and the environment's digest, with a final "/".
            head: first line of every batch, for readers; b"" for none.
            clock: monotonic clock, in seconds.
        """
        self.corrupt = 0
        self._store, self._prefix, self._head, self._clock = store, prefix, head, clock
        self._read_keys: set[str] = set()
        self._looked: float | None = None
        self._pending: list[bytes] = []
        self._pending_since = 0.0
        self._sending = Lock()

    def add(self, line: bytes) -> None:
        """Add the line to the next batch; send the batch when it is due.

        Raises:
            StoreError: the store rejects the batch; its lines stay pending.
        """
        if not self._pending:
            self._pending_since = self._clock()
        self._pending.append(line)
        if len(self._pending) >= SEND_AT or self._clock() - self._pending_since >= SEND_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Send all pending lines; other machines see them on return. Raises StoreError."""
        with self._sending:
            waiting = len(self._pending)
            if waiting:
                _write(self._store, self._prefix, [self._head, *self._pending[:waiting]])
                del self._pending[:waiting]  # lines added by other threads meanwhile stay

    def read_new(self, at_once: bool = False) -> Iterator[bytes]:
        """Yield the new batches; the store is listed at most every `READ_EVERY_S`.

        Args:
            at_once: list the store now; default False.
        """
        seconds = self._clock()
        if at_once or self._looked is None or seconds - self._looked >= READ_EVERY_S:
            self._looked = seconds
            for _ in range(LISTINGS):
                was_merged = yield from self._listed()
                if not was_merged:
                    return  # otherwise list again: a batch was merged between listing and reading

    def _listed(self) -> Generator[bytes, None, bool]:
        keys = {entry.key for entry in own_entries(self._store, self._prefix)}
        new = sorted(keys - self._read_keys)
        was_merged, damaged = False, []
        for key, data in zip(new, _read_all(self._store, new), strict=True):
            if data is None:
                was_merged = True
                continue
            self._read_keys.add(key)
            if isinstance(data, DamagedError):
                damaged.append(str(data))
            else:
                yield data
        self.corrupt += len(damaged)
        report_damage(f"{self._store.url}, batches of {self._prefix}", damaged)
        return was_merged


def compact(store: Store, older_s: float, at_least: int = 64, keep_s: float = KEEP_S) -> int:
    """Merge the batches of every environment with many batches; return the number of removed objects.

    The merged batch exists before its parts are deleted; a reader in between reads some lines twice. Damaged
    batches stay, and so do those that a retention rule of the storage keeps.

    Args:
        store: the store.
        older_s: smallest age of a merged batch, in seconds.
        at_least: smallest number of batches of an environment; default 64.
        keep_s: largest age of a kept line, in seconds; default `KEEP_S`. Merging makes the object young, so
            lines have an age of their own.
    """
    folders: dict[str, list[str]] = {}
    for entry in (entry for folder in FOLDERS for entry in own_entries(store, folder)):
        folder, _, name = entry.key.rpartition("/")
        if folder.count("/") == 1 and name.endswith(_SUFFIX) and entry.age_s >= older_s:
            folders.setdefault(f"{folder}/", []).append(entry.key)
    oldest = int((time.time() - keep_s) // DAY_S)
    return sum(
        _compact(store, folder, sorted(keys), oldest)
        for folder, keys in sorted(folders.items())
        if len(keys) >= at_least
    )


def _compact(store: Store, folder: str, keys: list[str], oldest: int) -> int:
    lines: dict[bytes, None] = {}  # an ordered set
    counts: dict[str, int] = {}  # lines of each batch; 0 for one with old lines
    for key, data in zip(keys, _read_all(store, keys), strict=True):
        if isinstance(data, bytes):
            batch = data.splitlines(keepends=True)
            fresh = [line for line in batch if _is_fresh(line, oldest)]
            counts[key] = len(set(fresh)) if len(fresh) == len(batch) else 0
            lines.update(dict.fromkeys(fresh))
    if len(counts) < 2:
        return 0
    # A batch with all lines is the rest of a sweep that could delete nothing: another copy would be waste.
    whole = next((key for key, count in counts.items() if count == len(lines) > 0), None)
    merged = whole or _write(store, folder, lines)
    removed = sum(_try_delete(store, key) for key in counts if key != merged)
    return removed if merged in counts else max(0, removed - 1)


def _is_fresh(line: bytes, oldest: int) -> bool:
    day = day_of(line)
    return day is None or day >= oldest


def _try_delete(store: Store, key: str) -> bool:
    try:
        store.delete(key)
    except RetainedError as error:
        log.info("a merged batch stays: %s", error)
        return False
    return True


def _write(store: Store, prefix: str, lines: Iterable[bytes]) -> str:
    data = b"".join(lines)
    key = f"{prefix}{sha256(data).hexdigest()}{_SUFFIX}"
    store.create(key, data)
    return key


def _read_all(store: Store, keys: list[str]) -> Iterable[bytes | DamagedError | None]:
    def read(key: str) -> bytes | DamagedError | None:
        digest = key.rpartition("/")[2].removesuffix(_SUFFIX)
        try:
            return read_checked(store, key, digest)
        except DamagedError as error:
            return error

    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(read, keys)
