"""Costs on disk: one append-only file of lines per environment.

A measurement takes seconds of a machine, so it is on disk before the next begins, and nothing that
happens to one line may reach another: every line carries its own CRC-32, is written by one append
under an exclusive lock, and a line that does not check (a killed writer, a bad disk, another
version) is counted in `corrupt` and is otherwise a miss. Reading takes a shared lock, so a partial
last line is really a truncated one. The later of two lines of one key holds.

    <crc32 of the rest, 8 hex digits> {"key": ..., "seconds": ..., "samples": [...], ...}

Invalid costs are stored like others (no number, a reason). Failures that say nothing about the
candidate must not be put here; the measurer knows which.
"""

import fcntl
import json
import math
import os
import zlib
from collections.abc import Iterator, KeysView
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from collage.cost.cost import Cost, CostKey, Environment
from collage.errors import StoreError

Line = dict[str, str | float | list[float]]


class Costs(Protocol):
    """What stages ask of a table of costs; `CostTable` and `SharedCostTable` are the two."""

    corrupt: int

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
        self._read = 0

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
        try:
            with self._locked(os.O_RDWR | os.O_CREAT | os.O_APPEND, fcntl.LOCK_EX) as file:
                self._append(file, encode_line(key, cost))
        except OSError as error:
            raise StoreError(
                f"the costs {self.path} cannot be written: {error.strerror}; free space there or "
                "choose another folder with --cache-dir. Costs measured so far are kept"
            ) from error
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

    def _append(self, file: int, line: bytes) -> None:
        size = os.fstat(file).st_size
        if size == 0 and self.environment:
            line = environment_line(self.environment) + line
        if size and os.pread(file, 1, size - 1) != b"\n":
            line = b"\n" + line
        try:
            written = os.write(file, line)
            if written < len(line):
                raise OSError(28, "No space left on device")
            os.fdatasync(file)
        except OSError:
            os.ftruncate(file, size)
            raise

    def _refresh(self) -> None:
        try:
            with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as file:
                size = os.fstat(file).st_size
                if size < self._read:
                    self._read = 0
                data = _read_range(file, self._read, size)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(
                f"the costs {self.path} cannot be read: {error.strerror}; give read permission, "
                "or choose another folder with --cache-dir"
            ) from error
        self._read += len(data)
        for entry in decode_lines(data):
            if entry is None:
                self.corrupt += 1
            else:
                self._costs[entry[0]] = entry[1]

    @contextmanager
    def _locked(self, flags: int, lock: int) -> Iterator[int]:
        if flags & os.O_CREAT:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, flags, 0o666)
        try:
            fcntl.flock(file, lock)
            yield file
        finally:
            os.close(file)


def _read_range(file: int, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        part = os.pread(file, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def encode_line(key: CostKey, cost: Cost) -> bytes:
    """Return the line of one cost, with its check and its end."""
    entry: Line = {"key": key, "build_s": cost.build_s}
    if cost.is_invalid:
        entry["reason"] = cost.reason
    else:
        entry |= {"seconds": cost.seconds, "samples": list(cost.samples)}
        bounds = {"low": cost.low, "high": cost.high}
        entry |= {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
    return _line(entry)


def environment_line(environment: Environment) -> bytes:
    """Return the line that says, for people, what the costs below it are true for."""
    return _line({"environment": json.dumps(asdict(environment))})


def decode_lines(data: bytes) -> Iterator[tuple[CostKey, Cost] | None]:
    """Iterate over the costs in whole lines; None stands for a line that does not check."""
    for line in data.splitlines():
        if line and not line.isspace():
            yield from _decode(line)


def _line(entry: Line) -> bytes:
    text = json.dumps(entry, sort_keys=True, allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode(line: bytes) -> list[tuple[CostKey, Cost] | None]:
    """Return the cost of `line`, nothing for a line about something else, [None] if corrupt."""
    try:
        crc, text = line[:8], line[9:]
        if line[8:9] != b" " or int(crc, 16) != zlib.crc32(text):
            return [None]
        entry = json.loads(text)
        if not isinstance(entry, dict):
            return [None]
        if "key" not in entry:
            return []
        cost = _cost(entry)
        return [None if cost.is_unknown else (CostKey(entry["key"]), cost)]
    except (ValueError, KeyError, TypeError):
        return [None]


def _cost(entry: dict[str, float]) -> Cost:
    if "seconds" not in entry:
        reason = entry["reason"]
        return Cost(math.inf, math.inf, math.inf, (), str(reason), float(entry["build_s"]))
    return Cost(
        float(entry["seconds"]),
        float(entry.get("low", math.nan)),
        float(entry.get("high", math.nan)),
        tuple(float(sample) for sample in entry["samples"]),  # type: ignore[attr-defined]
        "",
        float(entry["build_s"]),
    )
