"""Timing of kernels on a device behind a queue, such as a GPU.

A GPU runs behind a queue, so host clocks measure nothing; events on the stream do. The second-level cache is
flushed between calls (twice its size), as other kernels of the model would evict it. Clocks change with
temperature and power, so they are read before and after every batch of samples. A batch is discarded if the
device was throttled or its clock moved; after `MAX_DISCARDS` discards the discarded samples count, with
`drifted` set. After a sticky error (an illegal address, an Xid) every later call fails: the process has to
end, and the parent loses that candidate only (`StickyError`).

The time between two events around the smallest possible work is some microseconds. It is measured once
and subtracted; the dispatch overhead inside an executable is added instead (`call_overhead`).

`Device` is the protocol. `collage.measure.cuda_device` implements it for NVIDIA GPUs, the tests with a
simulated device. One stream is used, as in deployment, so a sample includes the launch.
"""

import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from collage.cost.cost import SHORTEST_S, Cost
from collage.errors import MeasureError
from collage.measure.timing import Call, Timing, TimingLimits, beaten, summary

Launch = Callable[[], object]
BATCH = 8
"""Samples between two readings of the clocks."""
MAX_DISCARDS = 5
CLOCK_TOLERANCE = 0.02
FLUSHES = 2
"""Size of the cache flush, as a multiple of the cache's size."""


class StickyError(MeasureError):
    """The device's context is lost: every later call in this process fails."""


@dataclass(frozen=True)
class DeviceIdentity:
    """Identity of a device in the environment of costs.

    Attributes:
        mig: MIG profile; "" without.
        clocks: clock policy: application clocks, power limit, persistence.
        sharing: way of sharing with other processes; "" if unknown.
    """

    name: str
    compute_capability: str
    driver: str
    mig: str = ""
    clocks: str = "unknown clocks"
    sharing: str = ""

    @property
    def text(self) -> str:
        """One line, for the environment of every cost."""
        mig = f" MIG {self.mig}" if self.mig else ""
        shared = f", {self.sharing}" if self.sharing else ""
        card = f"{self.name}{mig} sm_{self.compute_capability} driver {self.driver}"
        return f"{card}, {self.clocks}{shared}"


def capability_of(driver: str) -> str:
    """Return the compute capability in an identity's text, e.g. "90"; "" for an environment without a GPU."""
    match = re.search(r" sm_(\d+) driver ", driver)
    return match[1] if match else ""


@dataclass(frozen=True)
class Clocks:
    """Clock of a device, and the reasons for a lower clock than possible."""

    sm_mhz: int
    throttled: tuple[str, ...] = ()


class Device(Protocol):
    """A device for timing. Methods raise StickyError once the context is lost."""

    identity: DeviceIdentity
    cache_bytes: int
    """Size of the second-level cache."""

    def sweep(self, size_bytes: int) -> None:
        """Queue a write of `size_bytes` bytes of otherwise unused memory."""
        ...

    def timed(self, launch: Launch) -> float:
        """Run `launch` between two events and return the seconds between them."""
        ...

    def empty(self) -> object:
        """Queue the smallest possible work."""
        ...

    def clocks(self) -> Clocks:
        """Read clock and throttle reasons."""
        ...


@dataclass
class DeviceTimer:
    """Times kernels on a device; see the module."""

    device: Device
    limits: TimingLimits = field(default_factory=TimingLimits)
    discarded: int = 0
    """Discarded batches of all kernels."""
    _event_overhead_s: float | None = None
    """Smallest time between two events around `Device.empty`; interruptions only add to it."""

    def time(
        self,
        call: Call,
        arguments: Sequence[object],
        inputs: Sequence[np.ndarray] = (),
        *,
        best_s: float = math.inf,
        dispatch_overhead_s: float = 0.0,
        resolution_s: float = 0.0,
    ) -> Timing:
        """Time `call(*arguments)`, as `Timer.time` does on the CPU; the flush evicts `inputs` too.

        Raises:
            StickyError: the kernel has lost the device's context.
        """

        def launch() -> object:
            return call(*arguments)

        if self._event_overhead_s is None:
            self._event_overhead_s = min(self._batch(self.device.empty)[0])
        launch()  # loads code, chooses an algorithm, allocates persistent memory
        samples: list[float] = []
        spoiled: list[float] = []
        discards, start = 0, time.perf_counter()
        while not self._enough(
            samples,
            time.perf_counter() - start,
            best_s - dispatch_overhead_s + self._event_overhead_s,
            resolution_s,
        ):
            batch, clean = self._batch(launch)
            if clean:
                samples += batch
                continue
            discards, spoiled = discards + 1, spoiled + batch
            self.discarded += 1
            if discards >= MAX_DISCARDS:
                break
        usable = samples or spoiled
        cost = summary(
            [
                max(sample - self._event_overhead_s, SHORTEST_S) + dispatch_overhead_s
                for sample in usable
            ]
        )
        return Timing(cost, drifted=not samples)

    def _batch(self, launch: Launch) -> tuple[list[float], bool]:
        """Take samples; tell whether the clock was steady all the time."""
        before = self.device.clocks()
        samples = []
        for _ in range(BATCH):
            self.device.sweep(FLUSHES * self.device.cache_bytes)
            samples.append(self.device.timed(launch))
        after = self.device.clocks()
        moved = abs(after.sm_mhz - before.sm_mhz) > CLOCK_TOLERANCE * max(1, before.sm_mhz)
        return samples, not (before.throttled or after.throttled or moved)

    def _enough(
        self, samples: Sequence[float], elapsed_s: float, best_s: float, resolution_s: float
    ) -> bool:
        if not samples:
            return False
        if beaten(samples, best_s) or len(samples) >= self.limits.repeats[1]:
            return True
        if elapsed_s > self.limits.time_s:
            return True
        cost: Cost = summary(samples)
        relative_s = self.limits.relative_width * statistics.median(samples)
        return cost.high - cost.low < max(relative_s, self.limits.resolution_s, resolution_s)
