"""What a building pod does: the kernels of one shard, on a node that needs no accelerator.

Kernels go into the store as they are built. A candidate that cannot be built has its cost at once: it is
invalid, with the toolchain's reason. What the store has, a cost or a kernel, is not built again.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from collage.cluster.kernels import KernelIndex
from collage.cluster.pod import check_building_node, find_function, flushing, read_shard
from collage.cluster.records import Records, ShardRecord
from collage.cluster.shards import Batch, ShardWork
from collage.cost import Cost, CostKey, Costs, CostTable
from collage.errors import StoreError
from collage.frontend import Function
from collage.measure.kernel_file import kernel_name
from collage.measure.local import LocalMeasurer
from collage.measure.work import Work
from collage.pipeline.request import fetch_model, read_request
from collage.pipeline.searching import imported
from collage.pipeline.session import Session, open_session
from collage.pipeline.site import node_facts
from collage.store import open_store

SENDERS = 4


def build_shard(address: str, batch_digest: str, index: int, scratch: Path) -> str:
    """Build the kernels of one shard; return what was done, in words.

    Raises:
        NodeError, OptionError: no shard of this batch can be built here.
        ShardError, InputError, DamagedError: this shard can be built nowhere.
        CollageError: another try may work.
    """
    store = open_store(address, writes=False)
    batch, shard = read_shard(store, batch_digest, index, "build")
    request = read_request(store, batch.request)
    check_building_node(batch, node_facts(request))
    options = request.compile_options(address, scratch)
    path = fetch_model(store, request, scratch / "model")
    kernels = KernelIndex(store, batch.environment)
    with open_session(options, environment=batch.environment) as session, flushing(session.table):
        function = find_function(imported(path, session), batch, shard)
        table = session.table.within(batch.environment)
        known = kernels.find(CostKey(one.key) for one in shard)
        missing = [
            one
            for one in shard
            if CostKey(one.key) not in known and table.get(CostKey(one.key)) is None
        ]
        began = time.time()
        build = _Build(batch, missing, table, kernels, scratch)
        try:
            builder = build.run(function, session)
        finally:
            kernels.flush()
        record = ShardRecord(
            batch=batch_digest,
            index=index,
            pod=os.environ.get("COLLAGE_POD", "pod"),
            node=os.environ.get("COLLAGE_NODE", "a node"),
            began=began,
            ended=time.time(),
            before_s=0.0,
            after_s=0.0,
            costs={},
            built=builder.built,
        )
        Records(store, batch.environment).put(record)
    return f"{builder.built} built, {len(shard) - len(missing)} known, {builder.invalid} invalid"


class _Build:
    """The builds of one shard: a measurer whose costs are build times, and what they leave."""

    def __init__(
        self,
        batch: Batch,
        shard: Sequence[ShardWork],
        table: Costs,
        kernels: KernelIndex,
        scratch: Path,
    ) -> None:
        self._table, self._kernels = table, kernels
        self._folder, self._builds = scratch / "kernels", CostTable(scratch / "builds")
        self._keys = {one.work(batch.function): CostKey(one.key) for one in shard}
        self._sent: list[Future[None]] = []

    def run(self, function: Function, session: Session) -> LocalMeasurer:
        """Build all; return the measurer for its counts."""
        self._folder.mkdir(parents=True)
        builder = LocalMeasurer(
            [function],
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
        self._kernels.put(self._keys[work], file)
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
