"""The work of a measuring pod: one shard of a batch, with the workers of `LocalMeasurer`.

Costs in the store are skipped, so a restarted index repeats nothing. Kernels from build Jobs are fetched as
they become available (`kernel_feed`). At its end, regular or by SIGTERM, the pod leaves a report with the
costs that it measured and the times of the control kernels before and after (`cluster.shard_reports`).
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from collage.cluster.pod.answers import NodeError
from collage.cluster.pod.control_benchmark import control_times
from collage.cluster.pod.kernel_feed import KernelFeed
from collage.cluster.pod.shard_context import ShardContext, open_shard
from collage.cluster.shard_reports import ShardReport, ShardReports
from collage.cluster.shards import ShardRequest
from collage.cost import Cost, CostKey
from collage.cost.cost_records import cost_checksum
from collage.errors import StoreError
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import KernelFolder
from collage.pipeline.search_stage import local_measurer, sampled
from collage.verify.body_reference import save_body_reference


def measure_shard(
    address: str,
    batch_digest: str,
    index: int,
    scratch: Path,
    *,
    builds: Mapping[str, str] | None = None,
) -> str:
    """Measure one shard; return a summary for the log.

    Args:
        builds: digests of the batches under construction, by their Jobs' tokens; None without build Jobs.

    Raises:
        CollageError: the errors of `open_shard`.
    """
    with open_shard(address, batch_digest, index, "measure", scratch=scratch) as shard:
        reference_dir = _reference_values(shard)
        kernels = scratch / "kernels" if shard.batch.fetches else None
        folder = KernelFolder(kernels) if kernels else None
        measurer = local_measurer(shard.function, reference_dir, shard.context, folder)
        _check_keys(shard, measurer)
        feed = KernelFeed(shard, kernels, builds or {}) if kernels else None
        return _ShardMeasurement(shard, measurer, feed).run()


def _reference_values(shard: ShardContext) -> Path:
    """Return the folder of the searched function's values; those of a body come from its callers' values."""
    caller = shard.caller
    folder = sampled(shard.model, caller, shard.context).reference_dir
    for body in shard.bodies:
        folder = save_body_reference(
            shard.model.path, caller, body, folder, work_dir=shard.context.work_dir
        )
        caller = body.function
    return folder


def _check_keys(shard: ShardContext, measurer: LocalMeasurer) -> None:
    for request in shard.requests:
        if (key := measurer.key(request.work(shard.batch.function))) != request.key:
            raise NodeError(
                f"the key of {request.backend} on {request.nodes} is {key[:12]} here, {request.key[:12]} was "
                "expected: use a measuring image and a controller image of one version"
            )


class _ShardMeasurement:
    """The measurement of one shard by one pod."""

    def __init__(
        self, shard: ShardContext, measurer: LocalMeasurer, feed: KernelFeed | None
    ) -> None:
        self._shard, self._measurer, self._feed = shard, measurer, feed
        self._device = shard.context.options.target
        self._keys = {
            request.work(shard.batch.function): CostKey(request.key) for request in shard.requests
        }
        self._marks: dict[CostKey, str] = {}

    def run(self) -> str:
        """Measure and leave a report; return a summary for the log."""
        shard, measurer = self._shard, self._measurer
        began, before_s = time.time(), control_times(self._device)
        try:
            self._measure()
        finally:
            measurer.close()
            shard.table.flush()
            report = ShardReport(
                batch=shard.digest,
                index=shard.index,
                pod=os.environ.get("COLLAGE_POD", "pod"),
                node=os.environ.get("COLLAGE_NODE", "a node"),
                began=began,
                ended=time.time(),
                before_s=before_s,
                after_s=control_times(self._device),
                costs=self._marks,
                built=measurer.built,
            )
            ShardReports(shard.store, shard.batch.environment).put(report)
        summary = (
            f"{measurer.measured} measured, {measurer.cached} known, {measurer.invalid} invalid, "
            f"{measurer.drifted} drifted, {measurer.built} built"
        )
        if self._feed is None:
            return summary
        absent, waited_s = len(self._feed.absent), self._feed.waited_s
        return f"{summary}, {absent} never came, {waited_s:.0f} s waited for kernels"

    def _measure(self) -> None:
        costs: dict[CostKey, Cost] = {}
        for requests in self._batches():
            function = self._shard.batch.function
            results = self._measurer.measure(
                [request.work(function) for request in requests], self._note
            )
            costs |= {
                CostKey(request.key): cost for request, cost in zip(requests, results, strict=True)
            }
        table = self._shard.table
        lost = [cost.reason for key, cost in costs.items() if table.get(key) is None]
        if lost:
            raise StoreError(
                f"{len(lost)} of {len(self._shard.requests)} candidates have no cost: {lost[0]}"
            )

    def _batches(self) -> Iterator[Sequence[ShardRequest]]:
        if self._feed is None:
            yield self._shard.requests
        else:
            yield from self._feed.batches()

    def _note(self, work: MeasurementRequest, cost: Cost, cached: bool) -> None:
        if not cached:
            key = self._keys[work]
            self._marks[key] = cost_checksum(key, cost)
