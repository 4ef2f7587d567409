"""The kernel feed of a measuring pod: candidates in batches, each as soon as its kernel is in the store.

A pod may start while most of its kernels are still being built. It measures candidates whose kernels are in
the store and then polls, until every candidate has a kernel, or a cost (a candidate that does not build is
invalid), or its build has ended without either. A build Job may be lost together with the controller that
would have closed its shards; so a pod waits at most `NO_KERNEL_LIMIT_S` without a new kernel. A candidate
without a kernel stays without a cost, and the next batch has it again.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from collage.cluster.kernel_records import shard_name
from collage.cluster.pod.shard_context import ShardContext, read_batch
from collage.cluster.shards import ShardRequest
from collage.cost import CostKey
from collage.measure.kernel_file import kernel_name
from collage.store.base import BlobDigest, Store
from collage.store.blobs import fetch_blob

KERNELS_AT_ONCE = 32
"""Largest number of kernels on the node's disk: one may hold all weights of the model."""

POLL_S = 1.0
NO_KERNEL_LIMIT_S = 900.0


class KernelFeed:
    """The candidates of one shard in the order in which their kernels become available."""

    def __init__(
        self,
        shard: ShardContext,
        folder: Path,
        builds: Mapping[str, str],
        *,
        poll_s: float = POLL_S,
    ) -> None:
        """Prepare the feed of a shard.

        Args:
            folder: place of the kernels during their measurement.
            builds: digests of the batches under construction, by their Jobs' tokens.
            poll_s: pause between two polls, in seconds.
        """
        self._shard, self._folder, self._poll_s = shard, folder, poll_s
        self._builders = _builders(shard.store, builds)
        self.waited_s = 0.0
        self.absent: list[ShardRequest] = []
        """Candidates that got no kernel."""

    def batches(self) -> Iterator[Sequence[ShardRequest]]:
        """Yield candidates whose kernels are in the folder, and candidates that have a cost already."""
        pending = list(self._shard.requests)
        since = time.monotonic()
        while pending:
            batch, kernels = self._available(pending)
            if batch:
                yield from self._fetched(batch, kernels)
                done = {request.key for request in batch}
                pending = [request for request in pending if request.key not in done]
                since = time.monotonic()
                continue
            closed = [request for request in pending if self._is_closed(request)]
            if closed or time.monotonic() - since > NO_KERNEL_LIMIT_S:
                pending = self._drop(closed or pending, pending)
                continue
            time.sleep(self._poll_s)
            self.waited_s += self._poll_s

    def _available(
        self, pending: Sequence[ShardRequest]
    ) -> tuple[list[ShardRequest], Mapping[str, BlobDigest]]:
        """Return candidates that have a cost or a kernel now, and the kernels by cost key."""
        costed = [request for request in pending if self._has_cost(request)]
        stored = self._shard.kernels.find(CostKey(request.key) for request in pending)
        costed_keys = {request.key for request in costed}
        ready = {
            request.key: request
            for request in pending
            if request.key in stored and request.key not in costed_keys
        }
        batch = [*costed, *list(ready.values())[:KERNELS_AT_ONCE]]
        return batch, {key: stored[CostKey(key)] for key in ready}

    def _fetched(
        self, batch: Sequence[ShardRequest], kernels: Mapping[str, BlobDigest]
    ) -> Iterator[Sequence[ShardRequest]]:
        self._folder.mkdir(parents=True)
        for request in batch:
            if request.key in kernels:
                file = self._folder / kernel_name(request.work(self._shard.batch.function))
                fetch_blob(self._shard.store, kernels[request.key], file)
        yield batch
        shutil.rmtree(self._folder)

    def _drop(
        self, overdue: Sequence[ShardRequest], pending: Sequence[ShardRequest]
    ) -> list[ShardRequest]:
        """Return the pending candidates without the overdue ones that have no kernel and no cost."""
        self._shard.table.refresh()  # the cost of an invalid candidate may be new
        kernels = self._shard.kernels.find(CostKey(request.key) for request in overdue)
        absent = [
            request
            for request in overdue
            if request.key not in kernels and not self._has_cost(request)
        ]
        self.absent += absent
        absent_keys = {request.key for request in absent}
        return [request for request in pending if request.key not in absent_keys]

    def _has_cost(self, request: ShardRequest) -> bool:
        return self._shard.table.get(CostKey(request.key)) is not None

    def _is_closed(self, request: ShardRequest) -> bool:
        """Tell whether no open shard of a build Job has the kernel."""
        builders = self._builders.get(request.key, ())
        return all(self._shard.kernels.is_over(shard) for shard in builders)


def _builders(store: Store, builds: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    """Return the names of the build shards of each cost key."""
    builders: dict[str, list[str]] = {}
    for token, digest in builds.items():
        for index, shard in enumerate(read_batch(store, digest).shards):
            for request in shard:
                builders.setdefault(request.key, []).append(shard_name(token, index))
    return builders
