"""A kernel builder with a faulty kernel for each backend name; it runs in real worker processes."""

import fcntl
import json
import math
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from collage.cost import Cost
from collage.errors import BackendError
from collage.measure.answers import pack_answer
from collage.measure.call_overhead import DispatchOverhead
from collage.measure.device import Clocks, DeviceIdentity, StickyError
from collage.measure.kernel_builder import Prepared
from collage.measure.kernel_file import kernel_name
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import LENGTH, Ready, Setup


class Trap:
    """An object with an effect when it is unpickled."""

    def __reduce__(self):
        return Path("/tmp/collage-trap-of-a-worker").touch, ()


def frame(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


COST = asdict(Cost(1e-3, 1e-3, 1e-3))


def outcome(**changes) -> bytes:
    document = {"answer": "Outcome", "durable": True, "drifted": False, "built": False}
    return frame(json.dumps(document | {"cost": COST | changes}).encode())


LIES = {
    "pickle": frame(pickle.dumps(Trap())),
    "endless": LENGTH.pack(1 << 40),
    "deep": frame(b"[" * 100_000),
    "list": frame(b"[1, 2]"),
    "unknown": frame(b'{"answer": "Setup"}'),
    "other fields": frame(b'{"answer": "Built", "seconds": 1}'),
    "negative": outcome(seconds=-1.0),
    "no number": outcome(seconds="fast"),
    "NaN": outcome(seconds=math.nan),
    "no reason": outcome(seconds=math.inf),
    "digits": frame(b'{"answer": "Ready", "boundary": ' + b"9" * 5000 + b"}"),
    "not asked": pack_answer(Ready()),
}


def answer_pipe() -> int:
    """The descriptor on which the parent hears this process."""
    return int(sys.argv[sys.argv.index("--answers") + 1])


class FakeKernelBuilder:
    """Kernels are y = 2 x; the variant may be a number of milliseconds to sleep."""

    def __init__(self, setup: Setup) -> None:
        self.empty = lambda *_: None
        self.wake = None
        self._folder = setup.reference_dir
        self._kernels = setup.kernels and setup.kernels.path
        self._checked: set[MeasurementRequest] = set()

    def boundary(self) -> DispatchOverhead:
        return DispatchOverhead(0.0)

    def prepare(self, work: MeasurementRequest) -> Prepared:
        with open(self._folder / "built", "a") as file:
            file.write(f"{work.backend} {work.variant} {work.nodes} {os.getpid()}\n")
        if work.backend == "refusing":
            raise BackendError("no such operator:\nConvTranspose is not supported")
        x = np.arange(16, dtype=np.float32)
        y = np.full_like(x, np.nan)
        call = getattr(self, "_" + work.backend)
        return Prepared(lambda a, b: call(a, b, work), (x, y), (x,), (y,), (2 * x,))

    def build(self, work: MeasurementRequest) -> None:
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

    def _printing(self, x, y, work):
        raise IndexError("Gather_7: idx=131072 must be within [-100,99]")

    def _printing_abort(self, x, y, work):
        os.write(2, b"Check failed: idx < size (131072 vs. 100)\n")
        os.abort()

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

    def _sharing(self, x, y, work):
        """Fill shared memory that is mapped."""
        shared = mmap.mmap(-1, 1 << 30)
        for start in range(0, len(shared), 1 << 22):
            shared[start : start + (1 << 22)] = bytes(1 << 22)
            time.sleep(0.002)
        time.sleep(1000)

    def _filing(self, x, y, work):
        """Fill a file in memory that is never mapped."""
        file = os.memfd_create("segment")
        for _ in range(120):  # within the limit of one file
            os.write(file, bytes(1 << 21))
        self._hungry_file = os.memfd_create("another")
        for _ in range(120):
            os.write(self._hungry_file, bytes(1 << 21))
        time.sleep(1000)

    def _littering(self, x, y, work):
        """Fill the folder for temporary files."""
        for number in range(40):
            Path(tempfile.mkstemp(prefix=str(number))[1]).write_bytes(bytes(1 << 23))
        time.sleep(1000)

    def _large_file(self, x, y, work):
        with tempfile.TemporaryFile() as file:
            for _ in range(300):
                file.write(bytes(1 << 20))

    def _talkative(self, x, y, work):
        for _ in range(66):
            os.write(2, bytes(1 << 20))
        time.sleep(1000)

    def _compiling(self, x, y, work):
        """Start a compiler that starts another process, and wait for them."""
        file = self._folder / "compilers"
        code = "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(1000)"
        with file.open("w") as output:
            subprocess.run([sys.executable, "-c", code], stdout=output, check=False)

    def _compiling_and_crashing(self, x, y, work):
        threading.Thread(target=self._compiling, args=(x, y, work), daemon=True).start()
        while not (self._folder / "compilers").exists():
            time.sleep(0.01)
        while len((self._folder / "compilers").read_text().split()) < 2:
            time.sleep(0.01)
        os._exit(3)

    def _telling(self, x, y, work):
        """Tell what is in the environment."""
        (self._folder / "environment").write_text("\n".join(os.environ))
        y[:] = 2 * x

    def _lying(self, x, y, work):
        """Write to the parent what the variant says."""
        os.write(answer_pipe(), LIES[work.variant])
        time.sleep(1000)

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


def refuse(setup: Setup) -> FakeKernelBuilder:
    raise RuntimeError("the model file is gone")


def die(setup: Setup) -> FakeKernelBuilder:
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


class FakeGpuKernelBuilder:
    """Kernels of a simulated device, in real worker processes."""

    def __init__(self, setup: Setup) -> None:
        self._device = SimulatedDevice()

    def boundary(self) -> DispatchOverhead:
        return DispatchOverhead(0.0, 5e-6)

    def open_device(self) -> SimulatedDevice:
        return self._device

    def prepare(self, work: MeasurementRequest) -> Prepared:
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
