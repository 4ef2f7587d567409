"""Shared costs: those of many machines in one store, as batches of lines (see `collage.cost.batches`).

Two costs of one key are two true measurements: the valid one holds, then the narrower interval, then the
lower time, so the order of reading does not matter. An interval of width zero counts as none, and below
`NARROWEST` all intervals are equal: no machine repeats itself that well. A cost measured under wrong
conditions is not removed, since other machines may have read it: a further line voids it. With a configured
record key, unsigned records are misses (`collage.store.record_keys`).

Each cost of this process is in a local table before the next measurement, and reaches the store a few seconds
later, or at `flush`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from collage.cost.batches import Batches
from collage.cost.cost import Cost, CostKey, Environment
from collage.cost.cost_records import (
    CostLine,
    cost_checksum,
    cost_entry,
    decode_lines,
    environment_line,
)
from collage.cost.lines import dated, encode_entry
from collage.cost.table import LocalCostTable
from collage.store.base import Store
from collage.store.record_keys import configured_keys

Ranked = tuple[tuple[bool, float, float, str, float], Cost]

NARROWEST = 1e-3
"""Smallest relative width of an interval in comparisons."""


class SharedCostTable:
    """The costs of one environment in a store, for many machines at once; implements `CostTable`."""

    def __init__(self, store: Store, local: LocalCostTable, clock: Callable[[], float]) -> None:
        """Open the table; nothing is read or written before the first use.

        Args:
            store: the store shared by all machines.
            local: this machine's costs on disk, of the same environment.
            clock: monotonic clock, in seconds.
        """
        self.environment = local.environment
        self._corrupt = self.unsigned = 0
        self._keys = configured_keys()
        self._place = costs_prefix(local.environment)
        self._store = store
        self._local = local
        self._clock = clock
        head = environment_line(local.environment) if local.environment else b""
        self._batches = Batches(store, costs_prefix(local.environment), head, clock)
        self._costs: dict[CostKey, list[Ranked]] = {}
        self._void: dict[CostKey, set[str]] = {}
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
        """Return the cost of `key`: this machine's own, else the best of all machines.

        For missing keys the store is read at most every `LOOK_EVERY_S` seconds.
        """
        own = self._local.get(key)
        if own is not None:
            return own
        if self._best(key) is None:
            self._look()
        return self._best(key)

    def put(self, key: CostKey, cost: Cost) -> None:
        """Store one cost on this machine's disk, and send it with the next batch.

        Raises:
            StoreError: the disk is full, or the store rejects the batch; stored costs stay on this machine.
        """
        self._local.put(key, cost)
        self._batches.add(encode_entry(self._signed(dated(cost_entry(key, cost)))))

    def void(self, key: CostKey, mark: str) -> None:
        """Void the cost with this checksum (`cost_checksum`) for all machines, with the next batch."""
        self._batches.add(encode_entry(self._signed(dated({"void": key, "mark": mark}))))

    def was_voided(self, key: CostKey) -> bool:
        """Tell whether a cost of the key was voided, as of the last look."""
        return key in self._void

    def flush(self) -> None:
        """Send all pending costs; other machines see them on return. Raises StoreError.

        Any thread may call it while another thread stores costs.
        """
        self._batches.flush()
        for table in list(self._within.values()):
            table.flush()

    @property
    def corrupt(self) -> int:
        """Number of damaged batches, and of damaged lines in intact batches."""
        return self._corrupt + self._batches.corrupt

    def refresh(self) -> None:
        """Read the costs of other machines now. Raises StoreError."""
        self._look(at_once=True)

    def __len__(self) -> int:
        self._look(at_once=True)
        shared = {key for key in self._costs if self._best(key) is not None}
        return len(shared | self._local.keys())

    def _look(self, at_once: bool = False) -> None:
        for data in self._batches.read_new(at_once):
            origin = f"{self._store.url}, {self._place}"
            checked = decode_lines(data, origin, self._is_signed if self._keys else None)
            self._corrupt += checked.damaged
            self.unsigned += checked.unsigned
            for line in checked.values:
                if isinstance(line, CostLine):
                    _merge(self._costs.setdefault(line.key, []), line.cost)
                else:
                    self._void.setdefault(line.key, set()).add(line.mark)

    def _signed(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._keys.signed(entry, self._place) if self._keys else entry

    def _is_signed(self, entry: Mapping[str, Any]) -> bool:
        return self._keys is not None and self._keys.accepts(entry, self._place)

    def _best(self, key: CostKey) -> Cost | None:
        costs = [cost for _, cost in self._costs.get(key, ())]
        if key in self._void:
            costs = [cost for cost in costs if cost_checksum(key, cost) not in self._void[key]]
        return costs[0] if costs else None


def costs_prefix(environment: Environment | None) -> str:
    """Return the prefix of the environment's batches."""
    return f"costs/{environment.digest if environment else 'any'}/"


def _merge(ranked: list[Ranked], cost: Cost) -> None:
    """Insert a cost into the costs of its key, the best first."""
    rank = (cost.is_invalid, _width(cost), cost.seconds, cost.reason, cost.build_s)
    if all(rank != known_rank for known_rank, _ in ranked):
        ranked.append((rank, cost))
        ranked.sort(key=lambda entry: entry[0])


def _width(cost: Cost) -> float:
    """Return the relative width of the interval, +inf without an interval."""
    if cost.is_invalid or not cost.high > cost.low:
        return math.inf
    return max(NARROWEST, (cost.high - cost.low) / cost.seconds)
