"""The executables and their queue.

An executable computes one request at a time: its kernels use fixed input buffers. Concurrent requests need
more executables (`copies`), each with its own buffers and the measured number of kernel threads. One copy
gives the measured latency; the throughput is highest if copies times kernel threads equals the cores; more
copies slow all of them down.

Admission is bounded: `copies` running and `queue` waiting requests. The server refuses the next one at once
(503), so that its client can try another server. A waiting client may disconnect, which frees its place at
once. A call has a deadline; after it the answer is 504, and the executable is free again at the call's
return. A call that never returns cannot be stopped: the server is not ready meanwhile, and ends
(`containers.serving.watchdog`).
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
from collage.runtime.dispatch import DispatchCounts
from collage.runtime.fallback import Fallback
from collage.runtime.loader import LoadedBundle
from collage.runtime.manifest import Signature
from containers.serving.memory import Overloaded

Result = TypeVar("Result")


class TooSlow(Exception):
    """A call missed its deadline."""


class Executable:
    """One copy of the bundle and its calling thread. Times are `time.monotonic`'s."""

    def __init__(self, bundle: LoadedBundle, number: int) -> None:
        self.bundle = bundle
        self.begun: float | None = None
        """Begin of the running call, None without one."""
        self.proven = time.monotonic()
        """End of the last successful call or check."""
        self.problem = ""
        """Reason of the last check's failure."""
        self.pool = ThreadPoolExecutor(1, f"executable-{number}")


class Engine:
    """Runs requests on copies of one bundle; `call_s` limits a call, and its wait, in seconds."""

    def __init__(self, copies: Sequence[LoadedBundle], queue: int, call_s: float) -> None:
        self.copies = len(copies)
        self.queue = queue
        self.call_s = call_s
        self.admitted = 0
        self.signatures = copies[0].signatures
        self.entries = copies[0].entries
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
        """Take a free executable without a call for this long; waiting requests come first."""
        for _ in range(0 if self._waiting else self._free.qsize()):
            executable = self._free.get_nowait()
            if time.monotonic() - executable.proven >= idle_s:
                return executable
            self._free.put_nowait(executable)
        return None

    def counts_of(self, entry: str) -> list[DispatchCounts]:
        """Return the ways of an entry's calls so far, for each copy."""
        return [executable.bundle.dispatch_counts(entry) for executable in self.executables]

    def fallback_of(self, entry: str) -> Fallback | None:
        """Return the original model for an entry's other shapes; None without."""
        return self.executables[0].bundle.fallback(entry)

    def defaults_of(self, entry: str) -> tuple[str, ...]:
        """Return the names of an entry's inputs with a default."""
        return self.executables[0].bundle.defaults(entry)

    def signatures_of(self, entry: str) -> tuple[Signature, ...]:
        """Return the signatures of an entry's functions."""
        return tuple(signature for signature in self.signatures if signature.entry == entry)

    async def run(
        self, executable: Executable, inputs: Mapping[str, np.ndarray], entry: str
    ) -> dict[str, np.ndarray]:
        """Compute the outputs of an entry. Raises TooSlow, and InputError as the bundle does."""
        return await self.call(executable, lambda: executable.bundle.run(inputs, entry))

    async def call(self, executable: Executable, work: Callable[[], Result]) -> Result:
        """Run `work` in the executable's thread, then free it. Raises TooSlow, and the errors of `work`."""
        executable.begun = time.monotonic()
        future = asyncio.get_running_loop().run_in_executor(executable.pool, work)
        future.add_done_callback(lambda done: self._ended(executable, done))
        done, _ = await asyncio.wait([future], timeout=self.call_s)
        if not done:
            raise TooSlow(f"the model did not answer within {self.call_s:g} s")
        return future.result()

    def longest_s(self) -> float:
        """Return the duration of the oldest running call, in seconds."""
        begun = [
            executable.begun for executable in self.executables if executable.begun is not None
        ]
        return time.monotonic() - min(begun) if begun else 0.0

    def problem(self) -> str:
        """Return the reason against readiness; "" for a ready engine."""
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
