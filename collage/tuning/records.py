"""Tuning records on disk and in the shared store, one for each trial.

A trial takes about a second. Its record is on disk before the next trial begins, so a killed process
loses one trial at most. Records are lines like costs (`collage.cost.lines`): one file for each environment,
batches in the shared store. A workload is the structure of a region and the toolchain with its versions.
So equal kernels of different models share records, and another version has other workloads.

    {"workload": ..., "trace": [...], "latency_s": ..., "trial_s": ..., "toolchain": ...}

A trace with more than a schedule is refused by the reader, and again before its use
(`collage.backends.common.tvm.trace_check`): the record counts as damaged and is a miss. Records in the shared
store are signed (`collage.store.record_keys`); an unsigned record is a miss too.

A failed trial has a reason and no `latency_s`. A record without a trace ends its workload, with the reason:
TVM crashed or hung, or there are no more schedules.
"""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NewType

from collage.backends.common.tvm.trace_check import check_trace
from collage.cost import Environment
from collage.cost.batches import Batches
from collage.cost.cost import LONGEST_S, SHORTEST_S
from collage.cost.cost_records import environment_line
from collage.cost.lines import LineFile, dated, decode_entries, encode_entry
from collage.store.base import Store
from collage.store.record_keys import RecordKeys, record_keys
from collage.store.records import Fields, check_records

WorkloadDigest = NewType("WorkloadDigest", str)
"""SHA-256 hex of a region's structure and the toolchain that makes kernels of it."""


def workload_digest(region_digest: str, toolchain: str) -> WorkloadDigest:
    """Return the digest of a region's structure and a toolchain (name, versions, target)."""
    text = json.dumps([region_digest, toolchain])
    return WorkloadDigest(hashlib.sha256(text.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """One trial.

    Attributes:
        latency_s: latency in seconds; +inf for a failed trial.
        trial_s: duration of the trial, in seconds.
        reason: reason of a failure, or "".
    """

    workload: WorkloadDigest
    trace: str
    latency_s: float
    trial_s: float = 0.0
    reason: str = ""

    @property
    def worked(self) -> bool:
        return math.isfinite(self.latency_s)

    @property
    def rank(self) -> tuple[float, str]:
        """Sort key, best first; ties of latency are broken by the trace."""
        return self.latency_s, self.trace


class TuningRecords:
    """The records of one environment: this machine's file and, optionally, the shared store.

    >>> import tempfile
    >>> environment = Environment("cpu", "", 2, 1, "", "")
    >>> records = TuningRecords(Path(tempfile.mkdtemp()), environment)
    >>> records.add(TuningRecord("w", "[]", 2e-3), "tvm 1")
    >>> records.best("w").latency_s
    0.002
    """

    def __init__(
        self,
        root: Path,
        environment: Environment,
        store: Store | None = None,
        *,
        clock: Callable[[], float] = lambda: 0.0,
        keys: RecordKeys | None = None,
    ) -> None:
        """Open the records; nothing is created before the first one.

        Args:
            root: folder of the local store.
            environment: environment of the trials.
            store: shared store; None without one.
            clock: function returning monotonic seconds; needed with `store`.
            keys: trusted keys for records of the shared store; None is `record_keys(root)`.
        """
        self._corrupt = self.unsigned = 0
        self._store = store
        self._head = environment_line(environment)
        self._file = LineFile(root / "tuning" / f"{environment.digest}.jsonl", "tuning records")
        self._root, self._configured_keys = root, keys
        self._place = f"tuning/{environment.digest}/"
        self._batches = Batches(store, self._place, self._head, clock) if store else None
        self._records: dict[WorkloadDigest, dict[str, TuningRecord]] = {}

    @property
    def corrupt(self) -> int:
        """Number of damaged lines and batches."""
        return self._corrupt + (self._batches.corrupt if self._batches else 0)

    def add(self, record: TuningRecord, toolchain: str) -> None:
        """Add a record; it is on this machine's disk when this returns.

        Raises:
            StoreError: the disk is full, or the store does not take the records.
        """
        entry = _entry(record, toolchain)
        self._file.append(encode_entry(entry), self._head)
        self._take(record)
        if self._batches:
            self._batches.add(encode_entry(self._keys.signed(dated(entry), self._place)))

    def of(self, workload: WorkloadDigest) -> tuple[TuningRecord, ...]:
        """Return the workload's trials, best first, failures last."""
        self._refresh()
        records = self._records.get(workload, {})
        return tuple(
            sorted((record for record in records.values() if record.trace), key=lambda r: r.rank)
        )

    def best(self, workload: WorkloadDigest) -> TuningRecord | None:
        """Return the fastest trial of the workload, or None."""
        records = self.of(workload)
        return records[0] if records and records[0].worked else None

    def ended(self, workload: WorkloadDigest) -> str:
        """Return the reason against further trials of the workload, or ""."""
        self._refresh()
        last = self._records.get(workload, {}).get("")
        return last.reason if last else ""

    def flush(self) -> None:
        """Write all records to the shared store. Raises StoreError."""
        if self._batches:
            self._batches.flush()

    def _refresh(self) -> None:
        self._read(self._file.read_new(), str(self._file.path), None)
        if self._batches and self._store:
            for data in self._batches.read_new():
                self._read(data, f"{self._store.url}, tuning records", self._is_signed)

    @functools.cached_property
    def _keys(self) -> RecordKeys:
        return self._configured_keys or record_keys(self._root)

    def _is_signed(self, entry: Mapping[str, object]) -> bool:
        return self._keys.accepts(entry, self._place)

    def _read(
        self, data: bytes, source: str, is_signed: Callable[[Mapping[str, object]], bool] | None
    ) -> None:
        checked = check_records(decode_entries(data), {"workload": _record}, source, is_signed)
        self._corrupt += checked.damaged
        self.unsigned += checked.unsigned
        for record in checked.values:
            self._take(record)

    def _take(self, record: TuningRecord) -> None:
        """Keep the better of two records of one schedule, in any order of reading."""
        own = self._records.setdefault(record.workload, {})
        before = own.get(record.trace)
        if before is None or (record.rank, record.reason) < (before.rank, before.reason):
            own[record.trace] = record


def _entry(record: TuningRecord, toolchain: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "workload": record.workload,
        "trace": json.loads(record.trace) if record.trace else None,
        "trial_s": record.trial_s,
        "toolchain": toolchain,
    }
    if record.worked:
        return entry | {"latency_s": record.latency_s}
    return entry | {"reason": record.reason}


def _record(fields: Fields) -> TuningRecord:
    trace = fields.value("trace")
    return TuningRecord(
        WorkloadDigest(fields.digest("workload")),
        "" if trace is None else json.dumps(check_trace(trace), separators=(",", ":")),
        fields.number("latency_s", math.inf, SHORTEST_S),
        fields.number("trial_s", maximum=LONGEST_S),
        reason=fields.text("reason", ""),
    )
