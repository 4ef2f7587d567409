"""What a measuring pod does: one shard of a batch, with the workers of `LocalMeasurer`.

It skips what the store knows, so an index that is run again repeats nothing. Kernels that were built
elsewhere are fetched some at a time. When it ends, with its work or by SIGTERM, it leaves a record of what
it measured and of the pace that its node had before and after (`collage.cluster.records`).
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from collage.cluster.pod import (
    NodeError,
    check_measuring_node,
    find_function,
    flushing,
    read_shard,
)
from collage.cluster.records import Records, ShardRecord
from collage.cluster.shards import Batch, ShardWork
from collage.cost import Cost, CostKey, Costs
from collage.cost.table import cost_mark
from collage.errors import StoreError
from collage.measure.kernel_file import kernel_name
from collage.measure.local import LocalMeasurer
from collage.measure.timing import Control
from collage.measure.work import Work
from collage.pipeline.request import fetch_model, read_request
from collage.pipeline.searching import imported, local_measurer, sampled
from collage.pipeline.session import open_session
from collage.pipeline.site import node_facts
from collage.store import open_store
from collage.store.base import BlobDigest, Store
from collage.store.blobs import fetch_blob

KERNELS_AT_ONCE = 32
"""Kernels that lie on the node's disk at once: one may hold all weights of the model."""

PACES = 25
PAUSE_S = 4e-3


def measure_shard(address: str, batch_digest: str, index: int, scratch: Path) -> str:
    """Measure one shard; return what was done, in words.

    Raises:
        NodeError, OptionError: no shard of this batch can be measured here.
        ShardError, InputError, DamagedError: this shard can be measured nowhere.
        CollageError: another try may work.
    """
    store = open_store(address, writes=False)
    batch, shard = read_shard(store, batch_digest, index, "measure")
    request = read_request(store, batch.request)
    check_measuring_node(batch, node_facts(request))
    options = request.compile_options(address, scratch)
    path = fetch_model(store, request, scratch / "model")
    kernels = scratch / "kernels" if any(one.kernel for one in shard) else None
    with open_session(options) as session, flushing(session.table):
        model = imported(path, session)
        function = find_function(model, batch, shard)
        samples = sampled(model, function, session)
        measurer = local_measurer(function, samples.reference_dir, session, kernels)
        _check_keys(batch, shard, measurer)
        work = _ShardWork(store, batch, shard, session.table.within(batch.environment), kernels)
        return work.recorded(batch_digest, index, measurer)


def pace_s() -> float:
    """Return what the control kernel takes on this node now, on one core, within a tenth of a second."""
    control, found = Control(64), []
    for _ in range(PACES):
        found.append(control.seconds())
        time.sleep(PAUSE_S)
    return median(found)


def _check_keys(batch: Batch, shard: Sequence[ShardWork], measurer: LocalMeasurer) -> None:
    for one in shard:
        if (key := measurer.key(one.work(batch.function))) != one.key:
            raise NodeError(
                f"the key of {one.backend} on {one.nodes} is {key[:12]} here, {one.key[:12]} was "
                "expected: use a measuring image and a controller image of one version"
            )


class _ShardWork:
    """One pod's work on a shard."""

    def __init__(
        self,
        store: Store,
        batch: Batch,
        shard: Sequence[ShardWork],
        table: Costs,
        kernels: Path | None,
    ) -> None:
        self._store, self._batch, self._shard = store, batch, shard
        self._table, self._kernels = table, kernels
        self._keys = {one.work(batch.function): CostKey(one.key) for one in shard}
        self._marks: dict[CostKey, str] = {}

    def recorded(self, digest: str, index: int, measurer: LocalMeasurer) -> str:
        """Measure and leave a record; return what was done, in words."""
        began, before_s = time.time(), pace_s()
        try:
            self._measure(measurer)
        finally:
            measurer.close()
            self._table.flush()
            record = ShardRecord(
                batch=digest,
                index=index,
                pod=os.environ.get("COLLAGE_POD", "pod"),
                node=os.environ.get("COLLAGE_NODE", "a node"),
                began=began,
                ended=time.time(),
                before_s=before_s,
                after_s=pace_s(),
                costs=self._marks,
                built=measurer.built,
            )
            Records(self._store, self._batch.environment).put(record)
        return (
            f"{measurer.measured} measured, {measurer.cached} known, {measurer.invalid} invalid, "
            f"{measurer.drifted} drifted, {measurer.built} built"
        )

    def _measure(self, measurer: LocalMeasurer) -> None:
        costs: list[Cost] = []
        for part in self._parts():
            works = [one.work(self._batch.function) for one in part]
            costs += measurer.measure(works, self._note)
        lost = [
            cost.reason
            for one, cost in zip(self._shard, costs, strict=True)
            if self._table.get(CostKey(one.key)) is None
        ]
        if lost:
            raise StoreError(
                f"{len(lost)} of {len(self._shard)} candidates have no cost: {lost[0]}"
            )

    def _note(self, work: Work, cost: Cost, cached: bool) -> None:
        if not cached:
            key = self._keys[work]
            self._marks[key] = cost_mark(key, cost)

    def _parts(self) -> Iterator[Sequence[ShardWork]]:
        """Yield the shard, or what of it has its kernels here at the moment."""
        if self._kernels is None:
            yield self._shard
            return
        for start in range(0, len(self._shard), KERNELS_AT_ONCE):
            part = self._shard[start : start + KERNELS_AT_ONCE]
            self._kernels.mkdir(parents=True)
            for one in part:
                if self._table.get(CostKey(one.key)) is None:
                    file = self._kernels / kernel_name(one.work(self._batch.function))
                    fetch_blob(self._store, BlobDigest(one.kernel), file)
            yield part
            shutil.rmtree(self._kernels)
