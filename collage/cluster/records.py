"""What each pod says of its shard when it ends: when it worked, and at which pace its node ran.

    shards/<environment's digest>/<batch's digest>.jsonl    lines, one a pod that came to its end

Two things go by them. The time in which candidates were built or measured is the union of the pods'
intervals: queues and nodes that start are not in it. And a node that is throttled, or busy with something
else, shows in a kernel with fixed work that each pod times before and after its shard: a pod whose pace
differs from the environment's usual one (the median over all its pods) by more than `tolerance` measured
under other conditions than the rest, all of its costs alike, so no interval shows it. Drift within a
shard is the concern of `collage.measure.timing`, which has the same kernel.
"""

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from time import monotonic

from pydantic import BaseModel, ConfigDict, ValidationError

from collage.cost import CostKey, Environment
from collage.cost.batches import Batches
from collage.cost.lines import decode_entries, encode_entry
from collage.store.base import Store

FEWEST = 3
"""Pods that say what is usual; fewer say nothing."""


class ShardRecord(BaseModel):
    """One pod's work on one shard.

    Attributes:
        began, ended: by the node's clock, seconds since 1970.
        before_s, after_s: that the control kernel took; 0 for a pod that builds.
        costs: mark (`collage.cost.table.cost_mark`) of each cost that it measured, by key.
        built: kernels that this pod has built.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: str
    index: int
    pod: str
    node: str
    began: float
    ended: float
    before_s: float
    after_s: float
    costs: Mapping[CostKey, str]
    built: int

    def change(self, usual_s: float) -> float:
        """Return how far the pace was from the usual one, relative, e.g. 0.02."""
        return (
            max(max(pace_s / usual_s, usual_s / pace_s) for pace_s in (self.before_s, self.after_s))
            - 1
        )


class Records:
    """The records of one environment."""

    def __init__(self, store: Store, environment: Environment) -> None:
        """Open them; nothing is read or written before the first use."""
        self._batches = Batches(store, f"shards/{environment.digest}/", b"", monotonic)
        self._known: dict[str, ShardRecord] = {}

    def put(self, record: ShardRecord) -> None:
        """Store a record; others see it when this returns. Raises StoreError."""
        self._batches.add(encode_entry(record.model_dump(mode="json")))
        self._batches.flush()

    def refresh(self) -> None:
        """Read what is new; a line that is none of this version is skipped. Raises StoreError."""
        for data in self._batches.read_new(at_once=True):
            for entry in decode_entries(data):
                try:
                    found = ShardRecord.model_validate(entry)
                except ValidationError:
                    continue
                self._known[f"{found.batch} {found.index} {found.pod} {found.began}"] = found

    def of(self, batches: Collection[str]) -> list[ShardRecord]:
        """Return the records of these batches, in order of shards."""
        found = [one for one in self._known.values() if one.batch in batches]
        return sorted(found, key=lambda one: (one.batch, one.index, one.began))

    def usual_s(self) -> float | None:
        """Return what the control kernel usually takes; None while too few pods have said it."""
        timed = [one for one in self._known.values() if one.before_s > 0]
        if len(timed) < FEWEST:
            return None
        return median(pace_s for one in timed for pace_s in (one.before_s, one.after_s))


def worked_s(records: Sequence[ShardRecord]) -> float:
    """Return the seconds in which one pod or several worked."""
    total_s, until = 0.0, float("-inf")
    for one in sorted(records, key=lambda one: one.began):
        total_s += max(0.0, one.ended - max(one.began, until))
        until = max(until, one.ended)
    return total_s
