"""The executables and their queue.

An executable computes one request at a time: its inputs lie in buffers that its kernels know. More
requests at once need more executables (`copies`), each with its own buffers and, like the first, as
many kernel threads as it was measured with. One copy gives the latency that was measured; copies times
kernel threads equal to the cores gives the most requests a second; more only makes all of them slower.

What is admitted is bounded: `copies` running and `queue` waiting. Whoever comes then is told at once
(503), while there is still somebody who can go elsewhere. Whoever waits may leave: its place is free
at once. A call has a deadline; one that misses it is answered (504), and its executable comes back
when the call returns. A call that never returns cannot be stopped from outside: the server is not
ready meanwhile, and ends (`containers.serving.watchdog`).
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from collage.errors import InputError
from collage.runtime.loader import LoadedBundle
from containers.serving.memory import Overloaded

Result = TypeVar("Result")


class TooSlow(Exception):
    """A call missed its deadline."""


class Executable:
    """One copy of the bundle, and the thread that calls it. Times are `time.monotonic`'s."""

    def __init__(self, bundle: LoadedBundle, number: int) -> None:
        self.bundle = bundle
        self.begun: float | None = None
        """Begin of the call that runs, None where none does."""
        self.proven = time.monotonic()
        """End of the last call that worked, or of the last check."""
        self.problem = ""
        """Why the last check failed."""
        self.pool = ThreadPoolExecutor(1, f"executable-{number}")


class Engine:
    """Runs requests on copies of one bundle; a call may take `call_s` seconds, and waiting too."""

    def __init__(self, copies: Sequence[LoadedBundle], queue: int, call_s: float) -> None:
        self.copies = len(copies)
        self.queue = queue
        self.call_s = call_s
        self.admitted = 0
        self.signatures = copies[0].signatures
        self.executables = [Executable(bundle, number) for number, bundle in enumerate(copies)]
        self._waiting = 0
        self._free: asyncio.Queue[Executable] = asyncio.Queue()
        for executable in self.executables:
            self._free.put_nowait(executable)

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

    async def take(self) -> Executable:
        """Wait for a free executable; give it to `run` at once. Raises Overloaded."""
        self._waiting += 1
        try:
            async with asyncio.timeout(self.call_s):
                return await self._free.get()
        except TimeoutError:
            raise Overloaded(f"no executable was free within {self.call_s:g} s") from None
        finally:
            self._waiting -= 1

    def take_idle(self, idle_s: float = 0.0) -> Executable | None:
        """Take an executable that is free, and has proven nothing for so long; none before who waits."""
        for _ in range(0 if self._waiting else self._free.qsize()):
            executable = self._free.get_nowait()
            if time.monotonic() - executable.proven >= idle_s:
                return executable
            self._free.put_nowait(executable)
        return None

    async def run(
        self, executable: Executable, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Compute the outputs. Raises TooSlow, and InputError as the bundle does."""
        return await self.call(executable, lambda: executable.bundle.run(inputs))

    async def call(self, executable: Executable, work: Callable[[], Result]) -> Result:
        """Do `work` in the executable's thread; after that it is free. Raises TooSlow, and what it raises."""
        executable.begun = time.monotonic()
        future = asyncio.get_running_loop().run_in_executor(executable.pool, work)
        future.add_done_callback(lambda done: self._ended(executable, done))
        done, _ = await asyncio.wait([future], timeout=self.call_s)
        if not done:
            raise TooSlow(f"the model did not answer within {self.call_s:g} s")
        return future.result()

    def longest_s(self) -> float:
        """Return how long the call that began first has been running."""
        begun = [
            executable.begun for executable in self.executables if executable.begun is not None
        ]
        return time.monotonic() - min(begun) if begun else 0.0

    def problem(self) -> str:
        """Say why requests should go elsewhere; "" where they need not."""
        if (seconds := self.longest_s()) > self.call_s:
            return f"a call has been running for {seconds:.0f} s; its deadline is {self.call_s:g} s"
        return next(
            (executable.problem for executable in self.executables if executable.problem), ""
        )

    def _ended(self, executable: Executable, future: "asyncio.Future[Result]") -> None:
        executable.begun = None
        error = None if future.cancelled() else future.exception()
        if error is None:
            executable.proven = time.monotonic()
        elif not isinstance(error, InputError):
            executable.proven = (
                -math.inf
            )  # odd values may fail; whether the model does, a check tells
        self._free.put_nowait(executable)
