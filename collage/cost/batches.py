"""Lines of many machines in one store: batches that are only ever added, merged by whoever reads.

There is no file that all could append to, so every writer puts its lines of the last seconds as one
immutable object under a prefix, named by its digest; nobody waits for anybody, and the same batch sent
twice is there once. A reader lists the prefix and reads the batches that it has not seen.

    costs/<environment's digest>/<batch's digest>.jsonl     lines as in `collage.cost.table`
    tuning/<environment's digest>/<batch's digest>.jsonl    lines as in `collage.tuning.records`
    shards/<environment's digest>/<batch's digest>.jsonl    lines as in `collage.cluster.shard_reports`
    kernels/<environment's digest>/<batch's digest>.jsonl   lines as in `collage.cluster.kernel_records`

A damaged batch is a miss: it is counted in `corrupt`. Many small batches are merged into one by
`compact`, which readers need not know of.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import Lock

from collage.cost.lines import DAY_S, day_of
from collage.errors import DamagedError
from collage.store.base import Store
from collage.store.blobs import read_checked
from collage.store.records import report_damage

SEND_EVERY_S = 5.0
SEND_AT = 256
"""Lines that wait for the next batch at most."""

LOOK_EVERY_S = 20.0
"""Seconds between two listings while something is missed."""

KEEP_S = 180 * DAY_S
"""As `collage.store.gc.Retention.costs`."""

LISTINGS = 3
READERS = 16
FOLDERS = ("costs/", "shards/", "tuning/")
_SUFFIX = ".jsonl"


class Batches:
    """The batches under one prefix: those that others sent, and what this process sends."""

    def __init__(self, store: Store, prefix: str, head: bytes, clock: Callable[[], float]) -> None:
        """Open the prefix; nothing is read or written before the first use.

        Args:
            store: that all machines share.
            prefix: one of `FOLDERS` and the environment's digest, with its "/".
            head: a line that every batch starts with, for people; b"" is none.
            clock: monotonic seconds.
        """
        self.corrupt = 0
        self._store, self._prefix, self._head, self._clock = store, prefix, head, clock
        self._seen: set[str] = set()
        self._looked: float | None = None
        self._pending: list[bytes] = []
        self._pending_since = 0.0
        self._sending = Lock()

    def add(self, line: bytes) -> None:
        """Let the line wait for the next batch; send that when it is due.

        Raises:
            StoreError: the store does not take the batch; its lines go on waiting.
        """
        if not self._pending:
            self._pending_since = self._clock()
        self._pending.append(line)
        if len(self._pending) >= SEND_AT or self._clock() - self._pending_since >= SEND_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Send what waits; other machines see it when this returns. Raises StoreError."""
        with self._sending:
            waiting = len(self._pending)
            if waiting:
                _write(self._store, self._prefix, [self._head, *self._pending[:waiting]])
                del self._pending[:waiting]  # what another thread has added meanwhile stays

    def read_new(self, at_once: bool = False) -> Iterator[bytes]:
        """Yield the batches that are new; the store is asked at most every `LOOK_EVERY_S`.

        Args:
            at_once: ask the store now.
        """
        now = self._clock()
        if at_once or self._looked is None or now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            for _ in range(LISTINGS):
                gone = yield from self._listed()
                if not gone:
                    return  # else a batch was merged into another between listing and reading

    def _listed(self) -> Generator[bytes, None, bool]:
        keys = {entry.key for entry in self._store.entries(self._prefix)}
        new = sorted(keys - self._seen)
        gone, damaged = False, []
        for key, data in zip(new, _read_all(self._store, new), strict=True):
            if data is None:
                gone = True
                continue
            self._seen.add(key)
            if isinstance(data, DamagedError):
                damaged.append(str(data))
            else:
                yield data
        self.corrupt += len(damaged)
        report_damage(f"{self._store.url}, batches of {self._prefix}", damaged)
        return gone


def compact(store: Store, older_s: float, at_least: int = 64, keep_s: float = KEEP_S) -> int:
    """Merge the batches of every environment that has many; return how many objects went.

    Lines of days that are longer ago than `keep_s` are left out: merging makes the object young, and no
    line may live for ever by that.

    The merged batch is there before those that it holds are deleted; whoever reads in between reads
    some lines twice. Batches younger than `older_s` and damaged ones stay.
    """
    folders: dict[str, list[str]] = {}
    for entry in (entry for folder in FOLDERS for entry in store.entries(folder)):
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
    lines: dict[bytes, None] = {}  # a set that keeps the order
    whole = []
    for key, data in zip(keys, _read_all(store, keys), strict=True):
        if isinstance(data, bytes):
            whole.append(key)
            for line in data.splitlines(keepends=True):
                day = day_of(line)
                if day is None or day >= oldest:
                    lines[line] = None
    if len(whole) < 2:
        return 0
    merged = _write(store, folder, lines)
    for key in whole:
        if key != merged:
            store.delete(key)
    return len(whole) - 1


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
