"""A workshop whose "backends" are faults; it runs inside real worker processes."""

import fcntl
import os
import signal
import time
from pathlib import Path

import numpy as np

from collage.errors import BackendError
from collage.measure.boundary import Boundary
from collage.measure.device import Clocks, DeviceIdentity, StickyError
from collage.measure.kernel_file import kernel_name
from collage.measure.messages import Setup
from collage.measure.work import Work
from collage.measure.workshop import Prepared


class FakeWorkshop:
    """Kernels are y = 2 x; the variant may be a number of milliseconds to sleep."""

    def __init__(self, setup: Setup) -> None:
        self.empty = lambda *_: None
        self.wake = None
        self._folder, self._kernels = setup.reference_dir, setup.kernels
        self._checked: set[Work] = set()

    def boundary(self) -> Boundary:
        return Boundary(0.0)

    def prepare(self, work: Work) -> Prepared:
        with open(self._folder / "built", "a") as file:
            file.write(f"{work.backend} {work.variant} {work.nodes} {os.getpid()}\n")
        if work.backend == "refusing":
            raise BackendError("no such operator:\nConvTranspose is not supported")
        x = np.arange(16, dtype=np.float32)
        y = np.full_like(x, np.nan)
        call = getattr(self, "_" + work.backend)
        return Prepared(lambda a, b: call(a, b, work), (x, y), (x,), (y,), (2 * x,))

    def build(self, work: Work) -> None:
        if work.backend not in ("good", "noisy"):
            self.prepare(work)
            getattr(self, "_" + work.backend)(np.zeros(16), np.zeros(16), work)
        (self._kernels / kernel_name(work)).write_text(work.backend)

    def _good(self, x, y, work):
        if work.variant:
            time.sleep(float(work.variant) / 1e3)
        y[:] = 2 * x

    def _alone(self, x, y, work):
        """Refuse to be timed beside another one; the first call, of the check, may be anywhere."""
        with open(self._folder / "timed", "w") as file:
            if work in self._checked:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._checked.add(work)
            self._good(x, y, work)

    def _wrong(self, x, y, work):
        y[:] = 3 * x

    def _silent(self, x, y, work):
        pass

    def _in_place(self, x, y, work):
        y[:] = 2 * x
        x[:] = 0

    def _forgetful(self, x, y, work):
        y[:] = 2 * x if np.isnan(y).all() else 0

    def _raising(self, x, y, work):
        raise RuntimeError("first line\nthe vendor's last words")

    def _segfault(self, x, y, work):
        os.kill(os.getpid(), signal.SIGSEGV)

    def _abort(self, x, y, work):
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()

    def _exiting(self, x, y, work):
        os._exit(3)

    def _hang(self, x, y, work):
        time.sleep(1000)

    def _hungry(self, x, y, work):
        eaten = []
        while True:
            eaten.append(np.ones(1 << 22, np.uint8))
            time.sleep(0.002)

    def _killed(self, x, y, work):
        os.kill(os.getpid(), signal.SIGKILL)

    def _killed_once(self, x, y, work):
        marker = Path(self._folder) / "killed"
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        y[:] = 2 * x

    def _noisy(self, x, y, work):
        os.write(1, b"a vendor's library greets\n" * 100)
        print("and prints")
        y[:] = 2 * x

    def _full_disk(self, x, y, work):
        raise OSError(28, "No space left on device")


def refuse(setup: Setup) -> FakeWorkshop:
    raise RuntimeError("the model file is gone")


def die(setup: Setup) -> FakeWorkshop:
    os._exit(7)


EVENTS_S = 2e-6
"""Between two events with nothing to do between them."""


class SimulatedDevice:
    """A GPU with the interfaces of the real one: a queue of events, a cache, clocks, a context to lose.

    A kernel is a function that returns its hot and its cold seconds. It runs cold after a sweep of at
    least twice the cache; every fourth look at the clocks, a device that `throttles` is hot, and then
    everything takes three times as long.
    """

    identity = DeviceIdentity("Simulated", "90", "0")
    cache_bytes = 1 << 20

    def __init__(self, throttles: bool = False, always: bool = False) -> None:
        self.swept = 0
        self.sweeps: list[int] = []
        self.lost = ""
        self._throttles, self._always = throttles, always
        self._looks = 0

    def sweep(self, size_bytes: int) -> None:
        self.swept = size_bytes
        self.sweeps.append(size_bytes)

    def timed(self, launch) -> float:
        if self.lost:
            raise StickyError(self.lost)
        hot_s, cold_s = launch()
        cold, self.swept = self.swept >= 2 * self.cache_bytes, 0
        return (EVENTS_S + (cold_s if cold else hot_s)) * (3.0 if self._is_hot() else 1.0)

    def empty(self) -> tuple[float, float]:
        return 0.0, 0.0

    def clocks(self) -> Clocks:
        self._looks += 1
        reasons = ("hardware thermal",) if self._is_hot() else ()
        return Clocks(660 if reasons else 1980, reasons)

    def _is_hot(self) -> bool:
        return self._always or (self._throttles and self._looks % 4 == 3)


class FakeGpuWorkshop:
    """Kernels of a simulated device, in real worker processes."""

    def __init__(self, setup: Setup) -> None:
        self._device = SimulatedDevice()

    def boundary(self) -> Boundary:
        return Boundary(0.0, 5e-6)

    def open_device(self) -> SimulatedDevice:
        return self._device

    def prepare(self, work: Work) -> Prepared:
        x = np.arange(16, dtype=np.float32)
        y = np.full_like(x, np.nan)
        calls = 0

        def call(a, b):
            nonlocal calls
            calls += 1
            b[:] = 2 * a
            if work.backend == "sticky" and calls > 1:
                self._device.lost = "cudaEventSynchronize: an illegal memory access (700)"
                raise StickyError(self._device.lost)
            return 1e-5, 2e-5

        return Prepared(call, (x, y), (x,), (y,), (2 * x,))
