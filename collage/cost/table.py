"""Costs on disk: one file of lines per environment (see `collage.cost.lines`).

A line that does not check is counted in `corrupt` (see `collage.store.records`). So is a cost that
nobody can have measured: one below `SHORTEST_S`, or outside of its own interval. The later of two lines
of one key holds. Invalid costs are stored like others (no number, a reason). Failures that say nothing
about the candidate must not be put here; the measurer knows which.
"""

import json
import math
from collections.abc import Callable, KeysView, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from collage.cost.cost import LONGEST_S, SHORTEST_S, Cost, CostKey, Environment
from collage.cost.lines import LineFile, decode_entries, encode_entry
from collage.store.records import Checked, Fields, RecordError, check_records

MAX_KEY = 200
"""Characters of a key or a mark."""

MAX_ERROR = 1e6
"""Relative; a kernel with a greater error is invalid."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """A line that says what a candidate costs."""

    key: CostKey
    cost: Cost


@dataclass(frozen=True, slots=True)
class VoidLine:
    """A line that says that the key's cost with this mark does not hold."""

    key: CostKey
    mark: str


class Costs(Protocol):
    """What stages ask of a table of costs; `CostTable` and `SharedCostTable` are the two."""

    @property
    def corrupt(self) -> int:
        """How many lines, and batches of them, did not check."""
        ...

    def within(self, environment: Environment) -> "Costs":
        """Return the table of `environment` in the same store."""
        ...

    def get(self, key: CostKey) -> Cost | None:
        """Return the cost of `key`, or None. Raises StoreError when the table cannot be read."""
        ...

    def put(self, key: CostKey, cost: Cost) -> None:
        """Keep one cost; it is on this machine's disk when this returns."""
        ...

    def flush(self) -> None:
        """Let others see every cost that was put; they do when this returns."""
        ...

    def refresh(self) -> None:
        """Look now for what others have put; `get` alone may know it some seconds later."""
        ...

    def __len__(self) -> int: ...


class CostTable:
    """The costs of one environment under a store's folder.

    Several processes may use one table at once; each sees what the others put.

    >>> import tempfile
    >>> table = CostTable(Path(tempfile.mkdtemp()))
    >>> table.put(CostKey("k"), Cost(2e-3, 1e-3, 3e-3, (2e-3,)))
    >>> table.get(CostKey("k")).seconds
    0.002
    """

    def __init__(self, root: Path, environment: Environment | None = None) -> None:
        """Open the table of `environment` under `root`; nothing is created before the first put."""
        self.root = root
        self.environment = environment
        name = environment.digest if environment else "any"
        self.path = root / "costs" / f"{name}.jsonl"
        self.corrupt = 0
        self._costs: dict[CostKey, Cost] = {}
        self._file = LineFile(self.path, "costs")

    def within(self, environment: Environment) -> "CostTable":
        """Return the table of `environment` in the same store."""
        return self if environment == self.environment else CostTable(self.root, environment)

    def get(self, key: CostKey) -> Cost | None:
        """Return the cost of `key`, or None. Raises StoreError when the file cannot be read."""
        if key not in self._costs:
            self._refresh()
        return self._costs.get(key)

    def put(self, key: CostKey, cost: Cost) -> None:
        """Append one cost; it is on disk when this returns.

        Raises:
            StoreError: the disk is full or not writable. The file is as it was before.
        """
        if cost.is_unknown:
            raise ValueError("an unknown cost says nothing: do not store it")
        head = environment_line(self.environment) if self.environment else b""
        self._file.append(encode_line(key, cost), head)
        self._costs[key] = cost

    def flush(self) -> None:
        """Do nothing: every cost is on disk already."""

    def refresh(self) -> None:
        """Do nothing: every `get` of a missing key reads the file."""

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> KeysView[CostKey]:
        """The keys of all costs."""
        self._refresh()
        return self._costs.keys()

    def _refresh(self) -> None:
        checked = decode_lines(self._file.read_new(), str(self.path))
        self.corrupt += checked.damaged
        for line in checked.values:
            if isinstance(line, CostLine):
                self._costs[line.key] = line.cost


def encode_line(key: CostKey, cost: Cost) -> bytes:
    """Return the line of one cost, with its check and its end."""
    return encode_entry(cost_entry(key, cost))


def cost_entry(key: CostKey, cost: Cost) -> dict[str, Any]:
    """Return the fields of one cost's line."""
    entry: dict[str, Any] = {"key": key, "build_s": cost.build_s}
    if cost.is_invalid:
        entry["reason"] = cost.reason
    else:
        entry |= {"seconds": cost.seconds, "samples": list(cost.samples)}
        bounds = {"low": cost.low, "high": cost.high}
        entry |= {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
        entry |= {"error": cost.error} if cost.error else {}
    return entry


def cost_mark(key: CostKey, cost: Cost) -> str:
    """Return what tells this cost from another one of the key: the check of its line."""
    return encode_line(key, cost)[:8].decode()


def environment_line(environment: Environment) -> bytes:
    """Return the line that says, for people, what the costs below it are true for."""
    return encode_entry({"environment": json.dumps(asdict(environment))})


def decode_lines(
    data: bytes, where: str, is_signed: Callable[[Mapping[str, Any]], bool] | None = None
) -> Checked[CostLine | VoidLine]:
    """Return what whole lines say; damaged ones are counted, and logged as lying at `where`."""
    return check_records(decode_entries(data), {"void": _void, "key": _keyed}, where, is_signed)


def _void(fields: Fields) -> VoidLine:
    return VoidLine(CostKey(fields.text("void", most=MAX_KEY)), fields.text("mark", most=MAX_KEY))


def _keyed(fields: Fields) -> CostLine:
    return CostLine(CostKey(fields.text("key", most=MAX_KEY)), _cost(fields))


def _cost(fields: Fields) -> Cost:
    build_s = fields.number("build_s", most=LONGEST_S)
    if "seconds" not in fields.entry:
        return Cost(math.inf, math.inf, math.inf, (), fields.text("reason"), build_s)
    cost = Cost(
        fields.number("seconds", None, SHORTEST_S, LONGEST_S),
        fields.number("low", math.nan, SHORTEST_S, LONGEST_S),
        fields.number("high", math.nan, SHORTEST_S, LONGEST_S),
        fields.numbers("samples", SHORTEST_S, LONGEST_S),
        "",
        build_s,
        fields.number("error", 0.0, most=MAX_ERROR),
    )
    if cost.low > cost.seconds or cost.high < cost.seconds:
        raise RecordError("the cost lies outside of its own interval")
    return cost
