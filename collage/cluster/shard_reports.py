"""Reports of pods about their shards: working time, and speed of the node before and after.

    shards/<environment's digest>/<batch's digest>.jsonl    one line for each pod that reached its end

The reports serve two purposes. The working time of a batch is the union of the pods' intervals, without
queues and node start-up. And control kernels with fixed work (`pod.control_benchmark`) reveal a node that is
throttled or busy: each pod times them before and after its shard, one on the processor and, for kernels on
a GPU, one there. If a time differs from the typical one of the environment (the median over all pods) by
more than the environment's `control_tolerance`, the pod measured under other conditions. All of its costs
are off alike, so no confidence interval shows it. `collage.measure.timing` and `collage.measure.device`
handle drift within a shard.
"""

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from time import monotonic
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from collage.cost import CostKey, Environment
from collage.cost.batches import Batches
from collage.cost.cost import LONGEST_S, SHORTEST_S
from collage.cost.lines import decode_entries, encode_entry
from collage.store.base import Store
from collage.store.records import Fields, Parse, check_records

MIN_REPORTS = 3
"""Least number of reports for a typical time."""


Moment = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ControlTime = Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_S)]


class ShardReport(BaseModel):
    """The work of one pod on one shard.

    Attributes:
        began, ended: start and end by the node's clock, in seconds since 1970.
        before_s, after_s: times of the control kernels, in seconds, by device; empty for a building pod.
        costs: mark (`collage.cost.cost_records.cost_checksum`) of each measured cost, by cost key.
        built: number of built kernels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: str
    index: int
    pod: str
    node: str
    began: Moment
    ended: Moment
    before_s: Mapping[str, ControlTime] = {}
    after_s: Mapping[str, ControlTime] = {}
    costs: Mapping[CostKey, str]
    built: int

    def change(self, typical_s: Mapping[str, float]) -> tuple[float, str]:
        """Return the largest relative change of a control time, e.g. 0.02, and its device."""
        changes = [
            (max(time_s / typical_s[control], typical_s[control] / time_s) - 1, control)
            for times_s in (self.before_s, self.after_s)
            for control, time_s in times_s.items()
            if control in typical_s
        ]
        return max(changes, default=(0.0, ""))


def _parse_report(fields: Fields) -> ShardReport:
    return ShardReport.model_validate(fields.entry)


_KINDS: Mapping[str, Parse[ShardReport]] = {"batch": _parse_report}


class ShardReports:
    """The shard reports of one environment."""

    def __init__(self, store: Store, environment: Environment) -> None:
        """Open the reports; the first use reads or writes."""
        self._batches = Batches(store, f"shards/{environment.digest}/", b"", monotonic)
        self._known: dict[str, ShardReport] = {}
        self._url, self._corrupt = store.url, 0

    def put(self, report: ShardReport) -> None:
        """Store a report; it is visible to other processes at the return. Raises StoreError."""
        self._batches.add(encode_entry(report.model_dump(mode="json")))
        self._batches.flush()

    def refresh(self) -> None:
        """Read new reports; damaged ones count in `corrupt`. Raises StoreError."""
        for data in self._batches.read_new(at_once=True):
            checked = check_records(decode_entries(data), _KINDS, f"{self._url}, records of shards")
            self._corrupt += checked.damaged
            for report in checked.values:
                self._known[f"{report.batch} {report.index} {report.pod} {report.began}"] = report

    @property
    def corrupt(self) -> int:
        """Number of damaged reports and damaged batches of reports."""
        return self._corrupt + self._batches.corrupt

    def of(self, batches: Collection[str]) -> list[ShardReport]:
        """Return the reports of these batches, in order of shards."""
        reports = [report for report in self._known.values() if report.batch in batches]
        return sorted(reports, key=lambda report: (report.batch, report.index, report.began))

    def typical_s(self) -> Mapping[str, float]:
        """Return the median time of each control kernel, in seconds, if enough pods have timed it."""
        times_s: dict[str, list[float]] = {}
        for report in self._known.values():
            for control in report.before_s.keys() & report.after_s.keys():
                times_s.setdefault(control, []).extend(
                    (report.before_s[control], report.after_s[control])
                )
        return {
            control: median(samples_s)
            for control, samples_s in times_s.items()
            if len(samples_s) >= 2 * MIN_REPORTS
        }


def worked_s(reports: Sequence[ShardReport]) -> float:
    """Return the duration with at least one working pod, in seconds."""
    total_s, end = 0.0, float("-inf")
    for report in sorted(reports, key=lambda report: report.began):
        total_s += max(0.0, report.ended - max(report.began, end))
        end = max(end, report.ended)
    return total_s
