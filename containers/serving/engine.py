"""The executables and their queue.

An executable computes one request at a time: its inputs lie in buffers that its kernels know. More
requests at once need more executables (`copies`), each with its own buffers and, like the first, as
many kernel threads as it was measured with. One copy gives the latency that was measured; copies times
kernel threads equal to the cores gives the most requests a second; more only makes all of them slower.

What is admitted is bounded: `copies` running and `queue` waiting. Whoever comes then is told at once
(503), while there is still somebody who can go elsewhere. The place is taken before the body is read,
so memory is bounded too.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np

from collage.runtime.loader import LoadedBundle


class Overloaded(Exception):
    """All executables are busy and the queue is full."""


class Engine:
    """Runs requests on copies of one bundle."""

    def __init__(self, copies: Sequence[LoadedBundle], queue: int) -> None:
        self.copies = len(copies)
        self.queue = queue
        self.admitted = 0
        self.signatures = copies[0].signatures
        self._free: SimpleQueue[LoadedBundle] = SimpleQueue()
        for bundle in copies:
            self._free.put(bundle)
        self._pool = ThreadPoolExecutor(len(copies), "executable")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place from the request's first byte to its answer. Raises Overloaded."""
        if self.admitted >= self.copies + self.queue:
            raise Overloaded(f"{self.admitted} requests are under way; try again, or elsewhere")
        self.admitted += 1
        try:
            yield
        finally:
            self.admitted -= 1

    async def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the outputs as soon as an executable is free. Raises InputError as the bundle does."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, inputs)

    def close(self) -> None:
        """Wait for what is running."""
        self._pool.shutdown()

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        bundle = self._free.get()
        try:
            return bundle.run(inputs)
        finally:
            self._free.put(bundle)
