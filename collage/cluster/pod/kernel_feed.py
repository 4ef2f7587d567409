"""Kernels as they come: what a measuring pod takes from those that build, some at a time.

A pod may begin while most of its kernels are still built. It measures those that are in the store, then
looks for more, until every candidate has its kernel, or its cost (one that cannot be built is invalid), or
its build is over without either. A Job that builds may be lost together with the controller that would have
said so; so nobody waits longer than `PATIENCE_S` without a new kernel. What never came has no cost then, and
the next batch has it again.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from collage.cluster.kernel_records import shard_name
from collage.cluster.pod.shard_context import OpenShard, read_batch
from collage.cluster.shards import ShardWork
from collage.cost import CostKey
from collage.measure.kernel_file import kernel_name
from collage.store.base import BlobDigest, Store
from collage.store.blobs import fetch_blob

KERNELS_AT_ONCE = 32
"""Kernels that lie on the node's disk at once: one may hold all weights of the model."""

LOOK_S = 1.0
PATIENCE_S = 900.0


class Arrivals:
    """The candidates of one shard in the order in which they can be measured."""

    def __init__(
        self, shard: OpenShard, folder: Path, builds: Mapping[str, str], looked_s: float = LOOK_S
    ) -> None:
        """Look for the kernels of a shard.

        Args:
            folder: where kernels lie while they are measured.
            builds: batches that are built meanwhile, by their Jobs' tokens.
            looked_s: between two looks.
        """
        self._shard, self._folder, self._looked_s = shard, folder, looked_s
        self._builders = _builders(shard.store, builds)
        self.waited_s = 0.0
        self.absent: list[ShardWork] = []
        """Candidates whose kernels never came."""

    def parts(self) -> Iterator[Sequence[ShardWork]]:
        """Yield candidates whose kernels are in the folder, and those that have a cost already."""
        left = list(self._shard.works)
        since = time.monotonic()
        while left:
            known = [one for one in left if self._has_cost(one)]
            kernels = self._shard.kernels.find(CostKey(one.key) for one in left)
            old = {one.key for one in known}
            ready = {one.key: one for one in left if one.key in kernels and one.key not in old}
            part = [*known, *list(ready.values())[:KERNELS_AT_ONCE]]
            if part:
                yield from self._fetched(part, {key: kernels[CostKey(key)] for key in ready})
                done = {one.key for one in part}
                left = [one for one in left if one.key not in done]
                since = time.monotonic()
                continue
            over = [one for one in left if self._is_over(one)]
            if over or time.monotonic() - since > PATIENCE_S:
                left = self._given_up(left, over or left)
                continue
            time.sleep(self._looked_s)
            self.waited_s += self._looked_s

    def _fetched(
        self, part: Sequence[ShardWork], kernels: Mapping[str, BlobDigest]
    ) -> Iterator[Sequence[ShardWork]]:
        self._folder.mkdir(parents=True)
        for one in part:
            if one.key in kernels:
                file = self._folder / kernel_name(one.work(self._shard.batch.function))
                fetch_blob(self._shard.store, kernels[one.key], file)
        yield part
        shutil.rmtree(self._folder)

    def _given_up(self, left: list[ShardWork], some: list[ShardWork]) -> list[ShardWork]:
        """Return what is left without those that will get no kernel; one may have its cost now."""
        self._shard.table.refresh()
        kernels = self._shard.kernels.find(CostKey(one.key) for one in some)
        gone = [one for one in some if one.key not in kernels and not self._has_cost(one)]
        self.absent += gone
        lost = {one.key for one in gone}
        return [one for one in left if one.key not in lost]

    def _has_cost(self, one: ShardWork) -> bool:
        return self._shard.table.get(CostKey(one.key)) is not None

    def _is_over(self, one: ShardWork) -> bool:
        """Tell whether nobody builds the kernel, or does any more."""
        builders = self._builders.get(one.key, ())
        return all(self._shard.kernels.is_over(shard) for shard in builders)


def _builders(store: Store, builds: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    """Return the shards, by name, that build each key."""
    found: dict[str, list[str]] = {}
    for token, digest in builds.items():
        for index, shard in enumerate(read_batch(store, digest).shards):
            for one in shard:
                found.setdefault(one.key, []).append(shard_name(token, index))
    return found
