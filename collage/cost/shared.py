"""Costs of many machines in one store: batches that are only ever added, merged by whoever reads.

There is no file that all could append to, so every writer puts its costs of the last seconds as one
immutable object under the environment's prefix, named by its digest; nobody waits for anybody, and the
same batch sent twice is there once. A reader lists the prefix and reads the batches that it has not
seen. Two costs of one key are two true measurements: the valid one holds, then the narrower interval,
then the lower time, so the order of reading does not matter.

    costs/<environment's digest>/<batch's digest>.jsonl     lines as in `collage.cost.table`

What this process measures is in a local table before the measurer goes on, and reaches the store a few
seconds later, or at `flush`. A damaged batch is a miss: it is counted in `corrupt`. Many small batches
are merged into one by `compact`, which readers need not know of.
"""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from collage.cost.cost import Cost, CostKey, Environment
from collage.cost.table import CostTable, decode_lines, encode_line, environment_line
from collage.errors import DamagedError
from collage.store.base import Store
from collage.store.blobs import read_checked

SEND_EVERY_S = 5.0
SEND_AT = 256
"""Costs that wait for the next batch at most."""

LOOK_EVERY_S = 20.0
"""Seconds between two listings while keys are missed."""

LISTINGS = 3
READERS = 16
_FOLDER, _SUFFIX = "costs/", ".jsonl"

Ranked = tuple[tuple[bool, float, float, str], Cost]


class SharedCostTable:
    """The costs of one environment in a store, for use by many machines at once; has `Costs`."""

    def __init__(self, store: Store, local: CostTable, clock: Callable[[], float]) -> None:
        """Open the table; nothing is read or written before the first use.

        Args:
            store: that all machines share.
            local: keeps this machine's costs until they are sent, and after; its environment is this
                table's.
            clock: monotonic seconds.
        """
        self.environment = local.environment
        self.corrupt = 0
        self._store = store
        self._local = local
        self._clock = clock
        self._prefix = costs_prefix(self.environment)
        self._costs: dict[CostKey, Ranked] = {}
        self._seen: set[str] = set()
        self._looked: float | None = None
        self._pending: list[bytes] = []
        self._pending_since = 0.0
        self._within: dict[str, SharedCostTable] = {}

    def within(self, environment: Environment) -> "SharedCostTable":
        """Return the table of `environment` in the same store; `flush` of this one flushes it too."""
        if environment == self.environment:
            return self
        if environment.digest not in self._within:
            local = self._local.within(environment)
            self._within[environment.digest] = SharedCostTable(self._store, local, self._clock)
        return self._within[environment.digest]

    def get(self, key: CostKey) -> Cost | None:
        """Return the cost of `key`: this machine's own, else the best that any machine has sent.

        A key that is missed is looked for in the store at most every `LOOK_EVERY_S` seconds.
        """
        own = self._local.get(key)
        if own is not None:
            return own
        if key not in self._costs and self._may_look():
            self._look()
        found = self._costs.get(key)
        return found[1] if found else None

    def put(self, key: CostKey, cost: Cost) -> None:
        """Keep one cost on this machine's disk, and send it with the next batch.

        Raises:
            StoreError: the disk is full, or the store does not take the batch; what was put stays here.
        """
        self._local.put(key, cost)
        if not self._pending:
            self._pending_since = self._clock()
        self._pending.append(encode_line(key, cost))
        if len(self._pending) >= SEND_AT or self._clock() - self._pending_since >= SEND_EVERY_S:
            self._send()

    def flush(self) -> None:
        """Send what waits; other machines see it when this returns. Raises StoreError."""
        self._send()
        for table in self._within.values():
            table.flush()

    def refresh(self) -> None:
        """Look now for what others have sent. Raises StoreError."""
        self._look()

    def __len__(self) -> int:
        self._look()
        return len(self._costs.keys() | self._local.keys())

    def _send(self) -> None:
        if not self._pending:
            return
        _write_batch(self._store, self._prefix, self.environment, self._pending)
        self._pending = []

    def _may_look(self) -> bool:
        return self._looked is None or self._clock() - self._looked >= LOOK_EVERY_S

    def _look(self) -> None:
        self._looked = self._clock()
        for _ in range(LISTINGS):
            if not self._read_new():
                return  # else a batch was merged into another between the listing and the reading

    def _read_new(self) -> bool:
        """Read the batches that are new; return whether one of them was gone."""
        keys = {entry.key for entry in self._store.entries(self._prefix)}
        new = sorted(keys - self._seen)
        gone = False
        for key, data in zip(new, _read_all(self._store, new), strict=True):
            if data is None:
                gone = True
                continue
            self._seen.add(key)
            if isinstance(data, DamagedError):
                self.corrupt += 1
            else:
                self.corrupt += _merge(self._costs, data)
        return gone


def costs_prefix(environment: Environment | None) -> str:
    """Return the prefix of the environment's batches."""
    return f"{_FOLDER}{environment.digest if environment else 'any'}/"


def compact(store: Store, older_s: float, at_least: int = 64) -> int:
    """Merge the batches of every environment that has many; return how many objects went.

    The merged batch is there before those that it holds are deleted; whoever reads in between reads
    some costs twice. Batches younger than `older_s` and damaged ones stay.
    """
    folders: dict[str, list[str]] = {}
    for entry in store.entries(_FOLDER):
        folder, _, name = entry.key.rpartition("/")
        if folder.count("/") == 1 and name.endswith(_SUFFIX) and entry.age_s >= older_s:
            folders.setdefault(f"{folder}/", []).append(entry.key)
    return sum(
        _compact(store, folder, sorted(keys))
        for folder, keys in sorted(folders.items())
        if len(keys) >= at_least
    )


def _compact(store: Store, folder: str, keys: list[str]) -> int:
    lines: dict[bytes, None] = {}  # a set that keeps the order
    whole = []
    for key, data in zip(keys, _read_all(store, keys), strict=True):
        if isinstance(data, bytes):
            whole.append(key)
            lines |= dict.fromkeys(data.splitlines(keepends=True))
    if len(whole) < 2:
        return 0
    merged = _write_batch(store, folder, None, lines)
    for key in whole:
        if key != merged:
            store.delete(key)
    return len(whole) - 1


def _write_batch(
    store: Store, prefix: str, environment: Environment | None, lines: Iterable[bytes]
) -> str:
    head = environment_line(environment) if environment else b""
    data = head + b"".join(lines)
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


def _merge(costs: dict[CostKey, Ranked], data: bytes) -> int:
    """Let the better cost of each key hold; return how many lines were corrupt."""
    corrupt = 0
    for entry in decode_lines(data):
        if entry is None:
            corrupt += 1
            continue
        key, cost = entry
        spread = (cost.high - cost.low) / cost.seconds if cost.is_valid and cost.seconds else 0.0
        width = math.inf if math.isnan(spread) else spread
        rank = (cost.is_invalid, width, cost.seconds, cost.reason)
        if key not in costs or rank < costs[key][0]:
            costs[key] = (rank, cost)
    return corrupt
