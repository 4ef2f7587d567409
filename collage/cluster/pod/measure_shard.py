"""What a measuring pod does: one shard of a batch, with the workers of `LocalMeasurer`.

It skips what the store knows, so an index that is run again repeats nothing. Kernels that are built
elsewhere are fetched as they come (`arrivals`). When it ends, with its work or by SIGTERM, it leaves a record
of what it measured and of the pace that its node had before and after (`collage.cluster.shard_reports`).
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from collage.cluster.pod.answers import NodeError
from collage.cluster.pod.control_benchmark import node_pace
from collage.cluster.pod.kernel_feed import Arrivals
from collage.cluster.pod.shard_context import OpenShard, open_shard
from collage.cluster.shard_reports import Records, ShardRecord
from collage.cluster.shards import ShardWork
from collage.cost import Cost, CostKey
from collage.cost.cost_records import cost_mark
from collage.errors import StoreError
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import Work
from collage.pipeline.search_stage import local_measurer, sampled


def measure_shard(
    address: str,
    batch_digest: str,
    index: int,
    scratch: Path,
    builds: Mapping[str, str] | None = None,
) -> str:
    """Measure one shard; return what was done, in words.

    Args:
        builds: batches that are built meanwhile, by their Jobs' tokens; their kernels are waited for.

    Raises:
        CollageError: as `open_shard` does.
    """
    with open_shard(address, batch_digest, index, "measure", scratch) as shard:
        samples = sampled(shard.model, shard.function, shard.session)
        kernels = scratch / "kernels" if shard.batch.fetches else None
        measurer = local_measurer(shard.function, samples.reference_dir, shard.session, kernels)
        _check_keys(shard, measurer)
        arrivals = Arrivals(shard, kernels, builds or {}) if kernels else None
        return _ShardWork(shard, measurer, arrivals).recorded()


def _check_keys(shard: OpenShard, measurer: LocalMeasurer) -> None:
    for one in shard.works:
        if (key := measurer.key(one.work(shard.batch.function))) != one.key:
            raise NodeError(
                f"the key of {one.backend} on {one.nodes} is {key[:12]} here, {one.key[:12]} was "
                "expected: use a measuring image and a controller image of one version"
            )


class _ShardWork:
    """One pod's work on a shard."""

    def __init__(
        self, shard: OpenShard, measurer: LocalMeasurer, arrivals: Arrivals | None
    ) -> None:
        self._shard, self._measurer, self._arrivals = shard, measurer, arrivals
        self._device = shard.session.options.device
        self._keys = {one.work(shard.batch.function): CostKey(one.key) for one in shard.works}
        self._marks: dict[CostKey, str] = {}

    def recorded(self) -> str:
        """Measure and leave a record; return what was done, in words."""
        shard, measurer = self._shard, self._measurer
        began, before_s = time.time(), node_pace(self._device)
        try:
            self._measure()
        finally:
            measurer.close()
            shard.table.flush()
            record = ShardRecord(
                batch=shard.digest,
                index=shard.index,
                pod=os.environ.get("COLLAGE_POD", "pod"),
                node=os.environ.get("COLLAGE_NODE", "a node"),
                began=began,
                ended=time.time(),
                before_s=before_s,
                after_s=node_pace(self._device),
                costs=self._marks,
                built=measurer.built,
            )
            Records(shard.store, shard.batch.environment).put(record)
        said = (
            f"{measurer.measured} measured, {measurer.cached} known, {measurer.invalid} invalid, "
            f"{measurer.drifted} drifted, {measurer.built} built"
        )
        if self._arrivals is None:
            return said
        absent, waited_s = len(self._arrivals.absent), self._arrivals.waited_s
        return f"{said}, {absent} never came, {waited_s:.0f} s waited for kernels"

    def _measure(self) -> None:
        costs: dict[CostKey, Cost] = {}
        for part in self._parts():
            works = [one.work(self._shard.batch.function) for one in part]
            found = self._measurer.measure(works, self._note)
            costs |= {CostKey(one.key): cost for one, cost in zip(part, found, strict=True)}
        table = self._shard.table
        lost = [cost.reason for key, cost in costs.items() if table.get(key) is None]
        if lost:
            raise StoreError(
                f"{len(lost)} of {len(self._shard.works)} candidates have no cost: {lost[0]}"
            )

    def _parts(self) -> Iterator[Sequence[ShardWork]]:
        if self._arrivals is None:
            yield self._shard.works
        else:
            yield from self._arrivals.parts()

    def _note(self, work: Work, cost: Cost, cached: bool) -> None:
        if not cached:
            key = self._keys[work]
            self._marks[key] = cost_mark(key, cost)
