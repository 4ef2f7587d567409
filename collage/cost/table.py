"""Tables of costs: the protocol of the stages, and the table of one environment on disk.

The table is one file of lines per environment (`collage.cost.lines`, `collage.cost.cost_records`). The
later of two lines of one key holds. Failures without relation to the candidate must not be stored; the
measurer tells them apart.
"""

from collections.abc import KeysView
from pathlib import Path
from typing import Protocol

from collage.cost.cost import Cost, CostKey, Environment
from collage.cost.cost_records import CostLine, decode_lines, encode_line, environment_line
from collage.cost.lines import LineFile


class CostTable(Protocol):
    """Protocol of a table of costs, with the implementations `LocalCostTable` and `SharedCostTable`."""

    @property
    def corrupt(self) -> int:
        """Number of damaged lines and batches."""
        ...

    def within(self, environment: Environment) -> "CostTable":
        """Return the table of `environment` in the same store."""
        ...

    def get(self, key: CostKey) -> Cost | None:
        """Return the cost of `key`, or None. Raises StoreError when the table cannot be read."""
        ...

    def put(self, key: CostKey, cost: Cost) -> None:
        """Store one cost; it is on this machine's disk on return."""
        ...

    def flush(self) -> None:
        """Make every stored cost visible to other machines; it is visible on return."""
        ...

    def refresh(self) -> None:
        """Read the costs of other machines now; `get` alone may see them some seconds later."""
        ...

    def __len__(self) -> int: ...


class LocalCostTable:
    """The costs of one environment under a store's folder.

    Several processes may use one table at once; each sees the costs of all.

    >>> import tempfile
    >>> table = LocalCostTable(Path(tempfile.mkdtemp()))
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

    def within(self, environment: Environment) -> "LocalCostTable":
        """Return the table of `environment` in the same store."""
        return self if environment == self.environment else LocalCostTable(self.root, environment)

    def get(self, key: CostKey) -> Cost | None:
        """Return the cost of `key`, or None. Raises StoreError when the file cannot be read."""
        if key not in self._costs:
            self._refresh()
        return self._costs.get(key)

    def put(self, key: CostKey, cost: Cost) -> None:
        """Append one cost; it is on disk on return.

        Raises:
            StoreError: the disk is full or not writable. The file is unchanged.
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
