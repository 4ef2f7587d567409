"""The work of a building pod: the kernels of one shard, on a node without an accelerator.

Each kernel goes into the store after its build: measuring pods may wait for it. A candidate that does not
build gets an invalid cost at once, with the toolchain's reason. A candidate with a cost or a kernel in the
store is skipped. At the end the pod closes the shard (`collage.cluster.kernel_records`).
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from collage.cluster.kernel_records import shard_name
from collage.cluster.pod.shard_context import ShardContext, open_shard
from collage.cluster.shard_reports import ShardReport, ShardReports
from collage.cluster.shards import ShardRequest
from collage.cost import Cost, CostKey, LocalCostTable
from collage.errors import StoreError
from collage.measure.conditions import MeasuringConditions
from collage.measure.kernel_file import kernel_name
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import KernelFolder
from collage.pipeline.search_stage import worker_limits

UPLOADS_AT_ONCE = 4


def build_shard(
    address: str, batch_digest: str, index: int, scratch: Path, *, token: str = ""
) -> str:
    """Build the kernels of one shard; return a summary for the log.

    Args:
        token: name of the Job for pods that wait for its kernels; "" is the batch's digest.

    Raises:
        CollageError: the errors of `open_shard`.
    """
    with open_shard(address, batch_digest, index, "build", scratch=scratch) as shard:
        kernels = shard.kernels.find(CostKey(request.key) for request in shard.requests)
        missing = [
            request
            for request in shard.requests
            if CostKey(request.key) not in kernels and shard.table.get(CostKey(request.key)) is None
        ]
        began = time.time()
        builder = _ShardBuild(shard, missing, scratch).run()
        shard.table.flush()
        shard.kernels.end([shard_name(token or batch_digest, index)])
        report = ShardReport(
            batch=batch_digest,
            index=index,
            pod=os.environ.get("COLLAGE_POD", "pod"),
            node=os.environ.get("COLLAGE_NODE", "a node"),
            began=began,
            ended=time.time(),
            costs={},
            built=builder.built,
        )
        ShardReports(shard.store, shard.batch.environment).put(report)
        skipped = len(shard.requests) - len(missing)
    return f"{builder.built} built, {skipped} known, {builder.invalid} invalid"


class _ShardBuild:
    """The builds of one shard: a measurer whose costs are build times, and the upload of kernels."""

    def __init__(self, shard: ShardContext, missing: Sequence[ShardRequest], scratch: Path) -> None:
        self._shard, self._table = shard, shard.table
        self._folder, self._builds = scratch / "kernels", LocalCostTable(scratch / "builds")
        self._keys = {
            request.work(shard.batch.function): CostKey(request.key) for request in missing
        }
        self._uploads: list[Future[None]] = []

    def run(self) -> LocalMeasurer:
        """Build all kernels; return the measurer, which has the counts."""
        context = self._shard.context
        self._folder.mkdir(parents=True)
        builder = LocalMeasurer(
            [self._shard.function],
            context.backends,
            self._builds,
            MeasuringConditions(context.environment, context.options.target),
            build=context.build,
            reference_dir=self._folder,
            limits=worker_limits(context.options),
            kernels=KernelFolder(self._folder, builds=True),
        )
        try:
            with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
                costs = builder.measure(
                    list(self._keys), lambda work, cost, _: self._upload_valid(pool, work, cost)
                )
            for upload in self._uploads:
                upload.result()
            self._keep_reasons(builder, costs)
        finally:
            builder.close()
        return builder

    def _upload_valid(self, pool: ThreadPoolExecutor, work: MeasurementRequest, cost: Cost) -> None:
        if cost.is_valid:
            self._uploads.append(pool.submit(self._upload, work))

    def _upload(self, work: MeasurementRequest) -> None:
        file = self._folder / kernel_name(work)
        self._shard.kernels.put(self._keys[work], file)
        file.unlink()

    def _keep_reasons(self, builder: LocalMeasurer, costs: Sequence[Cost]) -> None:
        """Store the reasons of failed builds as costs; a failure of the worker itself is an error."""
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
