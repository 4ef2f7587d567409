"""Time kernels on a device: what the cost path needs of it, and how it uses that.

A GPU runs behind a queue, so host clocks measure nothing: events on the stream do. Its second-level cache
is swept between calls (twice its size), as other kernels of the model would evict it. Its clocks move
with heat and power, so they are read before and after every batch of samples; a batch in which the device
was throttled, or in which its clock moved, is discarded, and after some discards the kernel is measured
as it is, with `drifted` set. An error that stays (an illegal address, an Xid) makes every later call fail:
the process has to end, and the parent loses that candidate only (`StickyError`).

The way from one event over the least possible work to the next takes some microseconds; it is measured once
and subtracted, and what such work takes inside an executable is the boundary that is added (`boundary`).

`Device` is the protocol; `collage.measure.cuda_device` implements it for NVIDIA GPUs, and the tests
do it with a simulated device. One stream is used, as in deployment; what a launch costs there is in
the sample.
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
from collage.measure.timing import Call, Limits, Timing, beaten, summary

Launch = Callable[[], object]
BATCH = 8
"""Samples between two looks at the clocks."""
MAX_DISCARDS = 5
CLOCK_TOLERANCE = 0.02
SWEEPS = 2
"""Sweep this many times the cache's size."""


class StickyError(MeasureError):
    """The device's context is lost: nothing runs in this process any more."""


@dataclass(frozen=True)
class DeviceIdentity:
    """What a cost on a device is true for.

    Attributes:
        mig: the MIG profile, "" without.
        clocks: the policy: clocks that were set, the power limit, persistence.
        sharing: how other processes get at it, "" where nothing is known of any.
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
    """One look at a device: its clock, and why it is slower than it could be."""

    sm_mhz: int
    throttled: tuple[str, ...] = ()


class Device(Protocol):
    """What timing needs. Methods raise StickyError once the context is lost."""

    identity: DeviceIdentity
    cache_bytes: int
    """Of the second-level cache."""

    def sweep(self, size_bytes: int) -> None:
        """Queue a write of that many bytes of memory that nothing else uses."""
        ...

    def timed(self, launch: Launch) -> float:
        """Run `launch` between two events and return the seconds between them."""
        ...

    def empty(self) -> object:
        """Queue the least work that there is."""
        ...

    def clocks(self) -> Clocks:
        """Read clock and throttle reasons."""
        ...


@dataclass
class DeviceTimer:
    """Times kernels on a device; see the module."""

    device: Device
    limits: Limits = field(default_factory=Limits)
    discarded: int = 0
    """Batches of all kernels that were measured while the device was not itself."""
    _event_overhead_s: float | None = None
    """Seconds between two events with next to nothing between them; interruptions only add to it."""

    def time(
        self,
        call: Call,
        arguments: Sequence[object],
        inputs: Sequence[np.ndarray] = (),
        *,
        best_s: float = math.inf,
        boundary_s: float = 0.0,
        resolution_s: float = 0.0,
    ) -> Timing:
        """Time `call(*arguments)`, as `Timer.time` does on the CPU; the sweep evicts `inputs` too.

        Raises:
            StickyError: the kernel has lost the device's context.
        """

        def launch() -> object:
            return call(*arguments)

        if self._event_overhead_s is None:
            self._event_overhead_s = min(self._batch(self.device.empty)[0])
        launch()  # loads its code, chooses its algorithm, allocates what it keeps
        samples: list[float] = []
        spoiled: list[float] = []
        discards, start = 0, time.perf_counter()
        while not self._enough(
            samples,
            time.perf_counter() - start,
            best_s - boundary_s + self._event_overhead_s,
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
            [max(sample - self._event_overhead_s, SHORTEST_S) + boundary_s for sample in usable]
        )
        return Timing(cost, drifted=not samples)

    def _batch(self, launch: Launch) -> tuple[list[float], bool]:
        """Take samples; tell whether the device kept its pace all the time."""
        before = self.device.clocks()
        samples = []
        for _ in range(BATCH):
            self.device.sweep(SWEEPS * self.device.cache_bytes)
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
