"""Tuning records on disk and in the shared store: every trial, once, for whoever needs it.

A trial takes a second of a machine; its record is on disk before the next trial begins, so a process that
is killed loses the one it was at. Records are lines like costs (`collage.cost.lines`): one file an
environment, batches in the shared store. A workload is the structure of a region and the toolchain with
its versions, so equal kernels of any models share their records, and records of another version are
records of other workloads.

    {"workload": ..., "trace": [...], "latency_s": ..., "trial_s": ..., "toolchain": ...}

A trace that says more than a schedule may is refused where it is read, and again where it is applied
(`backends.common.tvm.trace_check`): it counts as a damaged record, which is a miss. In the shared store
records are signed (`collage.store.record_keys`), and what is not signed is a miss too.

`latency_s` is absent for a trial that failed, with the reason. A record without a trace says why no
trial of its workload can follow: TVM crashed or hung, or there are no more schedules.
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
from collage.cost.lines import LineFile, dated, decode_entries, encode_entry
from collage.cost.table import environment_line
from collage.store.base import Store
from collage.store.record_keys import RecordKeys, record_keys
from collage.store.records import Fields, check_records

WorkloadDigest = NewType("WorkloadDigest", str)
"""SHA-256 hex of a region's structure and the toolchain that makes kernels of it."""


def workload_digest(region_digest: str, toolchain: str) -> WorkloadDigest:
    """Name the kernels of a region's structure on a toolchain (name, versions, target)."""
    text = json.dumps([region_digest, toolchain])
    return WorkloadDigest(hashlib.sha256(text.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """One trial: `latency_s` is +inf, with the `reason`, where it failed; `trial_s` is what it took."""

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
        """Least is best; equal latencies are told apart by the trace."""
        return self.latency_s, self.trace


class TuningRecords:
    """The records of one environment: this machine's file and, where there is one, the shared store.

    >>> import tempfile
    >>> here = Environment("cpu", "", 2, 1, "", "")
    >>> records = TuningRecords(Path(tempfile.mkdtemp()), here)
    >>> records.add(TuningRecord("w", "[]", 2e-3), "tvm 1")
    >>> records.best("w").latency_s
    0.002
    """

    def __init__(
        self,
        root: Path,
        environment: Environment,
        store: Store | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        keys: RecordKeys | None = None,
    ) -> None:
        """Open the records; nothing is created before the first one.

        Args:
            root: of the local store.
            environment: of the machine that runs the trials.
            store: that other machines share.
            clock: monotonic seconds; needed with `store`.
            keys: of those whose records of the shared store are used; None are `record_keys(root)`.
        """
        self._corrupt = self.unsigned = 0
        self._store = store
        self._head = environment_line(environment)
        self._file = LineFile(root / "tuning" / f"{environment.digest}.jsonl", "tuning records")
        self._root, self._given_keys = root, keys
        self._place = f"tuning/{environment.digest}/"
        self._batches = Batches(store, self._place, self._head, clock) if store else None
        self._found: dict[WorkloadDigest, dict[str, TuningRecord]] = {}

    @property
    def corrupt(self) -> int:
        """Lines, and batches of them, that did not check."""
        return self._corrupt + (self._batches.corrupt if self._batches else 0)

    def add(self, record: TuningRecord, toolchain: str) -> None:
        """Keep one record; it is on this machine's disk when this returns.

        Raises:
            StoreError: the disk is full, or the store does not take the records.
        """
        entry = _entry(record, toolchain)
        self._file.append(encode_entry(entry), self._head)
        self._take(record)
        if self._batches:
            self._batches.add(encode_entry(self._keys.signed(dated(entry), self._place)))

    def of(self, workload: WorkloadDigest) -> tuple[TuningRecord, ...]:
        """Return the workload's trials, the best first, failed ones last."""
        self._refresh()
        found = self._found.get(workload, {})
        return tuple(sorted((one for one in found.values() if one.trace), key=lambda r: r.rank))

    def best(self, workload: WorkloadDigest) -> TuningRecord | None:
        """Return the fastest trial of the workload, None where none worked."""
        found = self.of(workload)
        return found[0] if found and found[0].worked else None

    def ended(self, workload: WorkloadDigest) -> str:
        """Return why no trial of the workload can follow, "" where they can."""
        self._refresh()
        last = self._found.get(workload, {}).get("")
        return last.reason if last else ""

    def flush(self) -> None:
        """Let other machines see every record; they do when this returns. Raises StoreError."""
        if self._batches:
            self._batches.flush()

    def _refresh(self) -> None:
        self._read(self._file.read_new(), str(self._file.path), None)
        if self._batches and self._store:
            for data in self._batches.read_new():
                self._read(data, f"{self._store.url}, tuning records", self._is_signed)

    @functools.cached_property
    def _keys(self) -> RecordKeys:
        return self._given_keys or record_keys(self._root)

    def _is_signed(self, entry: Mapping[str, object]) -> bool:
        return self._keys.accepts(entry, self._place)

    def _read(
        self, data: bytes, where: str, is_signed: Callable[[Mapping[str, object]], bool] | None
    ) -> None:
        checked = check_records(decode_entries(data), {"workload": _record}, where, is_signed)
        self._corrupt += checked.damaged
        self.unsigned += checked.unsigned
        for record in checked.values:
            self._take(record)

    def _take(self, record: TuningRecord) -> None:
        """Of two records of one schedule the better one holds, whatever the order of reading."""
        own = self._found.setdefault(record.workload, {})
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
        fields.number("trial_s", most=LONGEST_S),
        fields.text("reason", ""),
    )
