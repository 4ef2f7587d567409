"""What a building pod does: the kernels of one shard, on a node that needs no accelerator.

Kernels go into the store as they are built: pods that measure may wait for them. A candidate that cannot be
built has its cost at once: it is invalid, with the toolchain's reason. What the store has, a cost or a
kernel, is not built again. When all is done, the shard is over (`collage.cluster.kernel_records`).
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from collage.cluster.kernel_records import shard_name
from collage.cluster.pod.shard_context import OpenShard, open_shard
from collage.cluster.shard_reports import Records, ShardRecord
from collage.cluster.shards import ShardWork
from collage.cost import Cost, CostKey, CostTable
from collage.errors import StoreError
from collage.measure.kernel_file import kernel_name
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import Work

SENDERS = 4


def build_shard(address: str, batch_digest: str, index: int, scratch: Path, token: str = "") -> str:
    """Build the kernels of one shard; return what was done, in words.

    Args:
        token: of the Job, for those who wait for its kernels.

    Raises:
        CollageError: as `open_shard` does.
    """
    with open_shard(address, batch_digest, index, "build", scratch) as shard:
        known = shard.kernels.find(CostKey(one.key) for one in shard.works)
        missing = [
            one
            for one in shard.works
            if CostKey(one.key) not in known and shard.table.get(CostKey(one.key)) is None
        ]
        began = time.time()
        builder = _Build(shard, missing, scratch).run()
        shard.table.flush()
        shard.kernels.end([shard_name(token or batch_digest, index)])
        record = ShardRecord(
            batch=batch_digest,
            index=index,
            pod=os.environ.get("COLLAGE_POD", "pod"),
            node=os.environ.get("COLLAGE_NODE", "a node"),
            began=began,
            ended=time.time(),
            costs={},
            built=builder.built,
        )
        Records(shard.store, shard.batch.environment).put(record)
        known_count = len(shard.works) - len(missing)
    return f"{builder.built} built, {known_count} known, {builder.invalid} invalid"


class _Build:
    """The builds of one shard: a measurer whose costs are build times, and what they leave."""

    def __init__(self, shard: OpenShard, missing: Sequence[ShardWork], scratch: Path) -> None:
        self._shard, self._table = shard, shard.table
        self._folder, self._builds = scratch / "kernels", CostTable(scratch / "builds")
        self._keys = {one.work(shard.batch.function): CostKey(one.key) for one in missing}
        self._sent: list[Future[None]] = []

    def run(self) -> LocalMeasurer:
        """Build all; return the measurer for its counts."""
        session = self._shard.session
        self._folder.mkdir(parents=True)
        builder = LocalMeasurer(
            [self._shard.function],
            session.backends,
            self._builds,
            session.environment,
            reference_dir=self._folder,
            workers=session.options.workers,
            timeout_s=session.options.timeout_s,
            memory_bytes=session.options.memory_bytes,
            device=session.options.device,
            kernels=self._folder,
            builds=True,
        )
        try:
            with ThreadPoolExecutor(SENDERS) as pool:
                costs = builder.measure(
                    list(self._keys), lambda work, cost, _: self._take(pool, work, cost)
                )
            for one in self._sent:
                one.result()
            self._keep_reasons(builder, costs)
        finally:
            builder.close()
        return builder

    def _take(self, pool: ThreadPoolExecutor, work: Work, cost: Cost) -> None:
        if cost.is_valid:
            self._sent.append(pool.submit(self._send, work))

    def _send(self, work: Work) -> None:
        file = self._folder / kernel_name(work)
        self._shard.kernels.put(self._keys[work], file)
        file.unlink()

    def _keep_reasons(self, builder: LocalMeasurer, costs: Sequence[Cost]) -> None:
        """Store why builds failed, where that says something about the candidates."""
        builds = self._builds.within(builder.key.environment)
        lost = []
        for work, cost in zip(self._keys, costs, strict=True):
            if cost.is_valid:
                continue
            if builds.get(builder.key(work)) is None:
                lost.append(cost.reason)
            else:
                self._table.put(self._keys[work], cost)
        if lost:
            raise StoreError(f"{len(lost)} of {len(costs)} kernels were not built: {lost[0]}")
