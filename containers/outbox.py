"""The outbox of the receiver: answered deliveries, and accepted runs that are to start.

Both are written in one transaction before the answer to a delivery, to a small SQLite file that is synced to
disk. So a receiver killed at any moment later starts every accepted run, and refuses a replay of every
answered delivery. Both tables are bounded. With a full table the receiver answers "busy": a dropped id would
allow its replay, and MLflow tries again later.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from containers.webhook_signature import Delivery

MAX_DELIVERIES = 20_000
"""Limit of remembered deliveries, each for at most ten minutes."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS deliveries (id TEXT PRIMARY KEY, expires REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON deliveries (expires);
CREATE TABLE IF NOT EXISTS starts (
    key TEXT PRIMARY KEY, name TEXT NOT NULL, version TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Start:
    """A run to start; `key` is equal for equal requests."""

    key: str
    name: str
    version: str
    attempts: int = 0


class Replayed(Exception):
    """The delivery has an answer already."""


class Busy(Exception):
    """A table is full; the sender tries again."""


class Outbox:
    """The two tables in `file`; threads of one process may share it. Times are Unix times."""

    def __init__(self, file: Path, max_starts: int) -> None:
        """Open or create the file. Raises sqlite3.Error, OSError."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._max_starts = max_starts
        self._lock = threading.Lock()
        self._database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def take(self, delivery: Delivery, start: Start | None, now_s: float) -> None:
        """Store the delivery and its requested run, on disk at the return.

        A version whose run waits to be started gets no second one.

        Raises:
            Replayed: the delivery is stored already.
            Busy: a table is full; nothing is stored.
        """
        with self._transaction() as do:
            do.execute("DELETE FROM deliveries WHERE expires < ?", (now_s,))
            if do.execute("SELECT 1 FROM deliveries WHERE id = ?", (delivery.id,)).fetchone():
                raise Replayed
            if _count(do, "deliveries") >= MAX_DELIVERIES:
                raise Busy
            do.execute("INSERT INTO deliveries VALUES (?, ?)", (delivery.id, delivery.expires))
            if start is not None:
                if _count(do, "starts") >= self._max_starts:
                    raise Busy
                do.execute(
                    "INSERT OR IGNORE INTO starts SELECT ?, ?, ?, 0, ? WHERE NOT EXISTS "
                    "(SELECT 1 FROM starts WHERE name = ? AND version = ?)",
                    (start.key, start.name, start.version, now_s, start.name, start.version),
                )

    def due(self, now_s: float) -> Start | None:
        """Return the run with the earliest due time, None without a due one."""
        with self._lock:
            row = self._database.execute(
                "SELECT key, name, version, attempts FROM starts WHERE due <= ? ORDER BY due LIMIT 1",
                (now_s,),
            ).fetchone()
        return Start(*row) if row else None

    def postpone(self, start: Start, due: float) -> None:
        """Count a failed attempt; the next one is at the Unix time `due`."""
        with self._transaction() as do:
            do.execute(
                "UPDATE starts SET attempts = attempts + 1, due = ? WHERE key = ?", (due, start.key)
            )

    def done(self, start: Start) -> None:
        """Delete the run after its start or its last attempt."""
        with self._transaction() as do:
            do.execute("DELETE FROM starts WHERE key = ?", (start.key,))

    def waiting(self) -> int:
        """Return the number of waiting runs. Raises sqlite3.Error for a damaged file."""
        with self._lock:
            return _count(self._database, "starts")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                self._database.execute("ROLLBACK")
                raise


def _count(database: sqlite3.Connection, table: str) -> int:
    (rows,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(rows)
