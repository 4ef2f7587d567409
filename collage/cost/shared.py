"""Costs of many machines in one store, as batches of lines (see `collage.cost.batches`).

Two costs of one key are two true measurements: the valid one holds, then the narrower interval, then
the lower time, so the order of reading does not matter. An interval without width is none, and below
`NARROWEST` no interval is narrower than another: no machine repeats itself that well. A cost that turns
out to be measured under wrong conditions is not removed, for others may have read it: a further line
says that it does not hold. Where a key of records is configured, what it did not sign is a miss
(`collage.store.record_keys`).

What this process measures is in a local table before the measurer goes on, and reaches the store a few
seconds later, or at `flush`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from collage.cost.batches import Batches
from collage.cost.cost import Cost, CostKey, Environment
from collage.cost.lines import dated, encode_entry
from collage.cost.table import (
    CostLine,
    CostTable,
    cost_entry,
    cost_mark,
    decode_lines,
    environment_line,
)
from collage.store.base import Store
from collage.store.record_keys import configured_keys

Ranked = tuple[tuple[bool, float, float, str], Cost]

NARROWEST = 1e-3
"""Width of an interval over its cost."""


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
        """Return the cost of `key`: this machine's own, else the best that any machine has sent.

        A key that is missed is looked for in the store at most every `LOOK_EVERY_S` seconds.
        """
        own = self._local.get(key)
        if own is not None:
            return own
        if self._best(key) is None:
            self._look()
        return self._best(key)

    def put(self, key: CostKey, cost: Cost) -> None:
        """Keep one cost on this machine's disk, and send it with the next batch.

        Raises:
            StoreError: the disk is full, or the store does not take the batch; what was put stays here.
        """
        self._local.put(key, cost)
        self._batches.add(encode_entry(self._signed(dated(cost_entry(key, cost)))))

    def void(self, key: CostKey, mark: str) -> None:
        """Let the cost with this mark (`cost_mark`) not hold: with the next batch, and for all machines."""
        self._batches.add(encode_entry(self._signed(dated({"void": key, "mark": mark}))))

    def was_voided(self, key: CostKey) -> bool:
        """Tell whether some cost of the key was found not to hold, as of the last look."""
        return key in self._void

    def flush(self) -> None:
        """Send what waits; other machines see it when this returns. Raises StoreError.

        Any thread may do it, while another one puts costs.
        """
        self._batches.flush()
        for table in list(self._within.values()):
            table.flush()

    @property
    def corrupt(self) -> int:
        """Damaged batches, and lines that do not check in whole ones."""
        return self._corrupt + self._batches.corrupt

    def refresh(self) -> None:
        """Look now for what others have sent. Raises StoreError."""
        self._look(at_once=True)

    def __len__(self) -> int:
        self._look(at_once=True)
        shared = {key for key in self._costs if self._best(key) is not None}
        return len(shared | self._local.keys())

    def _look(self, at_once: bool = False) -> None:
        for data in self._batches.read_new(at_once):
            where = f"{self._store.url}, {self._place}"
            checked = decode_lines(data, where, self._is_signed if self._keys else None)
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
        found = [one for _, one in self._costs.get(key, ())]
        if key in self._void:
            found = [one for one in found if cost_mark(key, one) not in self._void[key]]
        return found[0] if found else None


def costs_prefix(environment: Environment | None) -> str:
    """Return the prefix of the environment's batches."""
    return f"costs/{environment.digest if environment else 'any'}/"


def _merge(known: list[Ranked], cost: Cost) -> None:
    """Put a cost among those of its key, the best first."""
    rank = (cost.is_invalid, _width(cost), cost.seconds, cost.reason)
    if all(rank != other for other, _ in known):
        known.append((rank, cost))
        known.sort(key=lambda one: one[0])


def _width(cost: Cost) -> float:
    """Return the relative width of the interval, +inf where there is none."""
    if cost.is_invalid or not cost.high > cost.low:
        return math.inf
    return max(NARROWEST, (cost.high - cost.low) / cost.seconds)
