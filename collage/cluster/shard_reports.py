"""What each pod says of its shard when it ends: when it worked, and at which pace its node ran.

    shards/<environment's digest>/<batch's digest>.jsonl    lines, one a pod that came to its end

Two things go by them. The time in which candidates were built or measured is the union of the pods'
intervals: queues and nodes that start are not in it. And a node that is throttled, or busy with something
else, shows in kernels with fixed work (`pace`) that each pod times before and after its shard: one on the
processor and, where kernels run on a GPU, one there. A pod whose pace differs from the environment's usual
one (the median over all its pods) by more than `tolerance` measured under other conditions than the rest,
all of its costs alike, so no interval shows it. Drift within a shard is the concern of
`collage.measure.timing` and `collage.measure.device`.
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

FEWEST = 3
"""Pods that say what is usual; fewer say nothing."""


Moment = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Pace = Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_S)]


class ShardRecord(BaseModel):
    """One pod's work on one shard.

    Attributes:
        began, ended: by the node's clock, seconds since 1970.
        before_s, after_s: that the control kernels took, by where they run; none for a pod that builds.
        costs: mark (`collage.cost.cost_records.cost_mark`) of each cost that it measured, by key.
        built: kernels that this pod has built.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: str
    index: int
    pod: str
    node: str
    began: Moment
    ended: Moment
    before_s: Mapping[str, Pace] = {}
    after_s: Mapping[str, Pace] = {}
    costs: Mapping[CostKey, str]
    built: int

    def change(self, usual_s: Mapping[str, float]) -> tuple[float, str]:
        """Return how far the pace was from the usual one, relative, e.g. 0.02, and where it was most."""
        changes = [
            (max(pace_s / usual_s[where], usual_s[where] / pace_s) - 1, where)
            for paces in (self.before_s, self.after_s)
            for where, pace_s in paces.items()
            if where in usual_s
        ]
        return max(changes, default=(0.0, ""))


def _record(fields: Fields) -> ShardRecord:
    return ShardRecord.model_validate(fields.entry)


_KINDS: Mapping[str, Parse[ShardRecord]] = {"batch": _record}


class Records:
    """The records of one environment."""

    def __init__(self, store: Store, environment: Environment) -> None:
        """Open them; nothing is read or written before the first use."""
        self._batches = Batches(store, f"shards/{environment.digest}/", b"", monotonic)
        self._known: dict[str, ShardRecord] = {}
        self._url, self._corrupt = store.url, 0

    def put(self, record: ShardRecord) -> None:
        """Store a record; others see it when this returns. Raises StoreError."""
        self._batches.add(encode_entry(record.model_dump(mode="json")))
        self._batches.flush()

    def refresh(self) -> None:
        """Read what is new; a record that is damaged is counted in `corrupt`. Raises StoreError."""
        for data in self._batches.read_new(at_once=True):
            checked = check_records(decode_entries(data), _KINDS, f"{self._url}, records of shards")
            self._corrupt += checked.damaged
            for found in checked.values:
                self._known[f"{found.batch} {found.index} {found.pod} {found.began}"] = found

    @property
    def corrupt(self) -> int:
        """Records, and batches of them, that did not check."""
        return self._corrupt + self._batches.corrupt

    def of(self, batches: Collection[str]) -> list[ShardRecord]:
        """Return the records of these batches, in order of shards."""
        found = [one for one in self._known.values() if one.batch in batches]
        return sorted(found, key=lambda one: (one.batch, one.index, one.began))

    def usual_s(self) -> Mapping[str, float]:
        """Return what each control kernel usually takes, those that enough pods have timed."""
        paces: dict[str, list[float]] = {}
        for one in self._known.values():
            for where in one.before_s.keys() & one.after_s.keys():
                paces.setdefault(where, []).extend((one.before_s[where], one.after_s[where]))
        return {where: median(found) for where, found in paces.items() if len(found) >= 2 * FEWEST}


def worked_s(records: Sequence[ShardRecord]) -> float:
    """Return the seconds in which one pod or several worked."""
    total_s, until = 0.0, float("-inf")
    for one in sorted(records, key=lambda one: one.began):
        total_s += max(0.0, one.ended - max(one.began, until))
        until = max(until, one.ended)
    return total_s
